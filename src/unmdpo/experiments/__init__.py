"""Runs in the lab's world, where the truth is known: the demo, the sweeps, and the model they start from."""
