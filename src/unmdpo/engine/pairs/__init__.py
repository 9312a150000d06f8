"""From comparisons to log-probabilities: encode, lay out, score. Everything that needs the log-probability of a
response calls the one forward pass in `scorer`; no other package computes its own."""
