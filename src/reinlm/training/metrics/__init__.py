"""The metrics that training logs, declared: samples, evaluation, updates, and the steps themselves."""

from reinlm.training.metrics import evaluation, preferences, rejection, reward_models, sampled, steps, update

METRICS = (
    *evaluation.METRICS,
    *preferences.METRICS,
    *sampled.METRICS,
    *rejection.METRICS,
    *update.METRICS,
    *steps.METRICS,
    *reward_models.METRICS,
)
