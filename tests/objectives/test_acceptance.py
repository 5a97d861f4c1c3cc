"""Rejection sampling as an advantage: which answers are accepted, and that a first update of them is SFT on them."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from reinlm.algorithms import algorithm
from reinlm.errors import InputError
from reinlm.objectives import AcceptAbove, AcceptBest, Feedback, Layout, Whitened, best_of_group

NAN = float("nan")


def d(values):
    return torch.tensor(values, dtype=torch.float64)


def test_answers_above_the_bound_are_accepted_and_alone_in_the_loss():
    layout = Layout.from_lengths([2, 1, 3, 1], 2)
    feedback = Feedback(layout, d([1.0, 0.5, NAN, 0.75]))
    accepted = AcceptAbove()
    assert accepted.trained(feedback).tolist() == [True, False, False, True]
    assert accepted(feedback).tolist() == [1.0, 1.0, 0.0, 0.0, 0.0, 0.0, 1.0]
    assert accepted(feedback).dtype == torch.float64  # that of the rewards
    assert AcceptAbove(0.25).trained(feedback).tolist() == [True, True, False, True]
    assert AcceptAbove(1.0).trained(feedback).tolist() == [False] * 4
    assert algorithm("raft_pp").trained(feedback).tolist() == [True, False, False, True]
    assert algorithm("grpo").trained(feedback).tolist() == [True, True, False, True]


def test_the_best_of_each_group_are_accepted_and_of_equal_ones_the_first():
    rewards, layout = d([0.1, 0.7, 0.7, NAN, NAN, NAN, -3.0, -2.0, -5.0]), Layout.from_lengths([1] * 9, 3)
    one = AcceptBest().trained(Feedback(layout, rewards))
    assert one.tolist() == [False, True, False, False, False, False, False, True, False]
    two = AcceptBest(2).trained(Feedback(layout, rewards))
    assert two.tolist() == [False, True, True, False, False, False, True, True, False]
    assert best_of_group(d([]), torch.tensor([], dtype=torch.int64), 1).tolist() == []
    assert best_of_group(d([NAN, -np.inf, np.inf]), torch.tensor([0, 0, 1]), 1).tolist() == [False, True, True]
    assert best_of_group(torch.ones(1000), torch.arange(1000) % 2, 3).nonzero().flatten().tolist() == list(range(6))
    assert AcceptBest(2)(Feedback(layout, rewards)).tolist() == two.double().tolist()


@given(
    st.lists(st.tuples(st.integers(0, 3), st.one_of(st.integers(-2, 2), st.just(NAN))), max_size=12), st.integers(1, 3)
)
def test_the_best_are_those_of_a_plain_loop(items, count):
    group, rewards = [g for g, _ in items], [float(r) for _, r in items]
    expected = [False] * len(items)
    for one in set(group):
        members = [i for i, g in enumerate(group) if g == one and not np.isnan(rewards[i])]
        for i in sorted(members, key=lambda i: (-rewards[i], i))[:count]:
            expected[i] = True
    assert best_of_group(d(rewards), torch.tensor(group, dtype=torch.int64), count).tolist() == expected


@pytest.mark.parametrize("name", ["raft_pp", "reinforce_rej"])
def test_a_clipped_ratio_ends_the_gradient_and_another_is_its_reward(name):
    chosen, layout = algorithm(name), Layout.from_lengths([2, 1])
    old, moved = d([-1.0, -2.0, -0.5]), d([0.0, 0.3, 0.1]).requires_grad_()
    advantages = chosen.advantage(Feedback(layout, d([1.0, 0.75])))
    loss = chosen.loss(old + moved, chosen.prepare(layout, advantages, old_logprobs=old), chosen.initial_state())
    loss.value.backward()
    third = 1.0 if name == "raft_pp" else 0.75  # accepted is 1, the policy gradient's weight is the reward
    assert moved.grad is not None
    assert moved.grad.tolist() == pytest.approx([-1 / 3, 0.0, -third * np.exp(0.1) / 3], abs=1e-12)
    assert loss.value.item() == pytest.approx(-(1.0 + 1.2 + third * np.exp(0.1)) / 3, abs=1e-12)


def test_a_first_update_of_accepted_answers_has_the_gradient_of_sft_on_them():
    chosen, layout = algorithm("raft_pp"), Layout.from_lengths([2, 3, 1])
    feedback = Feedback(layout, d([1.0, 0.0, 1.0]))
    kept, tokens = layout.select(torch.nonzero(chosen.trained(feedback)).flatten())
    logprobs = d([-1.0, -2.0, -0.1, -0.2, -0.3, -0.5]).requires_grad_()
    signals = chosen.prepare(kept, chosen.advantage(feedback)[tokens], old_logprobs=logprobs.detach()[tokens])
    chosen.loss(logprobs[tokens], signals, chosen.initial_state()).value.backward()
    assert logprobs.grad is not None
    assert logprobs.grad.tolist() == pytest.approx([-1 / 3, -1 / 3, 0.0, 0.0, 0.0, -1 / 3])


def test_reinforce_rej_keeps_mixed_groups_and_raft_pp_is_found_by_its_papers_name():
    assert [type(one).__name__ for one in algorithm("reinforce_rej").filters] == ["MixedOutcomes"]
    assert algorithm("RAFT++") == algorithm("raft_pp")
    assert algorithm("raft_pp", advantage={"accept_best": 2}).advantage == AcceptBest(2)


def test_what_is_refused_and_what_wraps_it():
    steps = Feedback(Layout.from_lengths([2]), d([1.0]), step_rewards=d([0.5]), step_tokens=torch.tensor([0]))
    with pytest.raises(ValueError, match="rejection sampling compares outcome rewards"):
        AcceptAbove()(steps)
    with pytest.raises(InputError, match="above must be finite"):
        algorithm("raft_pp", advantage={"accept_above": float("inf")})
    with pytest.raises(InputError, match="count is at least 1, not 0"):
        algorithm("raft_pp", advantage={"accept_best": 0})
    feedback = Feedback(Layout.from_lengths([1, 1]), d([1.0, 0.0]))
    assert Whitened(AcceptAbove()).trained(feedback).tolist() == [True, False]
