"""The lab at work: its reference model, the demo, experiments."""
