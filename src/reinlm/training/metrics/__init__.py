"""The metrics that training logs, declared: samples, evaluation, updates, and the steps themselves."""

from reinlm.training.metrics import evaluation, rejection, sampled, steps, update

METRICS = (*evaluation.METRICS, *sampled.METRICS, *rejection.METRICS, *update.METRICS, *steps.METRICS)
