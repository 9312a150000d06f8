"""What a run is made of: one file for each stage, with its settings, inputs, work and cost.

`base` says what a stage is, `table` lists all kinds, `files` lists the files they write, and `pipeline` is a recipe's
stages in a store.
"""
