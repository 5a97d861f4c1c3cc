"""The loops: supervised fine-tuning, reinforcement learning, evaluation."""
