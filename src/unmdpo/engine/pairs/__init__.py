"""From comparisons to log-probabilities: encode, lay out, score. Everything that needs a log-probability of a response
calls the one forward pass in `scorer`; no other room may compute its own."""
