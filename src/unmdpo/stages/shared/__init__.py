"""What stages share: what a stage is, the files they write, cost estimates, and steps that several of them take."""
