"""Minibatches of what a policy collected."""

import torch

from reinlm.classical.deep.on_policy import Batch


def test_a_pass_has_every_step_once_in_order_and_the_last_minibatch_is_smaller() -> None:
    steps = torch.arange(7.0)
    batch = Batch(
        steps[:, None] * torch.tensor([1.0, -1.0]), steps.long(), 10 * steps, 20 * steps, 30 * steps, 40 * steps
    )
    parts = list(batch.split(3))
    assert [part.actions.tolist() for part in parts] == [[0, 1, 2], [3, 4, 5], [6]]
    assert parts[1].observations.tolist() == [[3.0, -3.0], [4.0, -4.0], [5.0, -5.0]]
    for name, factor in (("advantages", 10), ("returns", 20), ("old_values", 30), ("old_logprobs", 40)):
        assert [getattr(part, name).tolist() for part in parts] == [
            [factor * a for a in part.actions.tolist()] for part in parts
        ]
    assert parts[0].advantages.data_ptr() == batch.advantages.data_ptr()
