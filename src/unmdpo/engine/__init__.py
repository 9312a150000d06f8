"""Models on devices: tokens, packing, log-probabilities."""
