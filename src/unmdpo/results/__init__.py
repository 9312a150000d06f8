"""What a person holds after a run: Run, Policy, FittedScale, tables, exports, and a check of all of it."""
