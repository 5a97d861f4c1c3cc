"""Models: loading and saving them with their stop tokens, tiny ones from scratch, and log-probabilities in chunks."""
