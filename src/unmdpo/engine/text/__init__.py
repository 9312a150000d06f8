"""From comparisons to tokens: chat templates, where prompt and response meet, encoded pairs."""
