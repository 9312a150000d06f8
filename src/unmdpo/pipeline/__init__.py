"""From a recipe to verified numbers: the stages that produce artifacts, and the executors that run them.

`store` keeps artifacts, and `artifacts` defines the files in them. `stages/` has one table of all kinds of stages,
each with its settings, its work, its cost and its place in the graph. `executors/` run stages. `run` is the public
view of a recipe's stages in a store. `plan` and `check` look at a run before it starts, `verify` after it.
"""
