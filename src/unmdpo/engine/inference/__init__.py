"""What frozen models are asked for: embeddings of prompts, greedy answers, scores of answers."""
