"""Preference optimization with strength margins and a learned prompt scale."""

__version__ = "0.1.0"
