"""The version, for the package and for what results say about themselves."""

__version__ = "0.3.0"
