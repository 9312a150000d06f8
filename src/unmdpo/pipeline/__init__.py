"""A recipe in, finished artifacts out: the store, the graph of stages, and what each stage does."""
