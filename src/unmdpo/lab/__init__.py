"""A small world whose noise scale is known: prompts, responses, a gold reward, simulated annotators."""
