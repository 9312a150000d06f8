"""Recipes: everything a run depends on, read from YAML, checked as a whole before any work starts.

A recipe only describes. It is strict and frozen, `key.sub=value` overrides change it while it is read, and it is
written back in full, so that a run can be repeated from its own record. No torch here.
"""

from unmdpo.recipe.loader import load_recipe, packaged, schema
from unmdpo.recipe.recipe import Recipe

__all__ = ["Recipe", "load_recipe", "packaged", "schema"]
