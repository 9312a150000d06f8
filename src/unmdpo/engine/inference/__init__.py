"""What frozen models are used for: prompt embeddings, greedy answers, and scores for answers."""
