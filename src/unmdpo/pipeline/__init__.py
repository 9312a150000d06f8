"""From a recipe to verified numbers: stages that make artifacts, and whoever runs them.

`store` keeps artifacts and `artifacts` knows the files in them. `stages/` holds every kind of stage in one table, each
with its settings, its work, its cost and where it belongs in the graph. `executors/` run stages; `run` is a recipe's
stages in a store, seen from outside; `plan`, `check` and `verify` look before and after.
"""
