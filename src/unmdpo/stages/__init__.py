"""What a run is made of: one file for each stage, with its settings, inputs, work and cost.

`table` lists all kinds of stages, `pipeline` is a recipe's stages in a store, and `shared/` has what stages share.
"""
