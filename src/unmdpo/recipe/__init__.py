"""Recipes: everything a run depends on, read from YAML and checked as a whole before any work starts.

A recipe is only a description. It is strict and frozen; `key.sub=value` overrides are applied while it is read; and
each run saves it in full, so a run can be repeated from its own record. Only `draft`, which looks at data and model,
imports torch.
"""

from unmdpo.recipe.loader import load_recipe, packaged, parse_recipe, schema
from unmdpo.recipe.recipe import Recipe

__all__ = ["Recipe", "load_recipe", "packaged", "parse_recipe", "schema"]
