"""A small world with a known noise scale: prompts, responses, a gold reward, simulated annotators."""

from pathlib import Path


def model_folder() -> Path:
    """The reference policy that ships with the package, for `from_pretrained`."""
    return Path(__file__).parent / "model"
