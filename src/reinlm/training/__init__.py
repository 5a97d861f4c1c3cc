"""The loops: supervised fine-tuning, reinforcement learning, evaluation."""

from reinlm.training import metrics as metrics  # importing training declares its metrics
