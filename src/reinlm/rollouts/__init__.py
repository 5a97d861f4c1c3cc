"""Engines and collection: prompts in, rollouts out."""
