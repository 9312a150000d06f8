"""The paper's theory and statistics as code: identification, length, ordinal model, centering."""
