"""A teacher's judgement of the student's tokens: its value, and what its policy gradient follows."""

from __future__ import annotations

import math

import pytest
import torch

from reinlm.objectives import Feedback, Layout, NoAdvantage, TeacherLogRatio, Whitened, full_kl


def d(values):
    return torch.tensor(values, dtype=torch.float64)


def judged(teacher, old, rewards=(0.0,)):
    layout = Layout.from_lengths([len(old)] + [0] * (len(rewards) - 1))
    return Feedback(layout, d(list(rewards)), teacher_logprobs=d(teacher), old_logprobs=d(old))


def test_vector_16_6_the_teachers_log_ratio():
    assert TeacherLogRatio()(judged([-0.7], [-1.2])).tolist() == pytest.approx([0.5])


def test_a_token_that_the_teacher_rules_out_is_no_infinity_and_one_of_an_unscored_answer_counts_nothing():
    assert TeacherLogRatio()(judged([-math.inf, -0.5], [-1.0, -1e9])).tolist() == [-20.0, 20.0]
    assert TeacherLogRatio()(judged([-0.7], [-1.2], [math.nan])).tolist() == [0.0]


def test_in_expectation_it_follows_the_reverse_kl_to_the_teacher_at_each_state():
    logits = d([0.3, -0.2, 0.8]).requires_grad_()
    teacher = d([0.6, 0.3, 0.1]).log()
    policy = logits.log_softmax(0)
    (exact,) = torch.autograd.grad(full_kl(policy, teacher), logits, retain_graph=True)
    advantages = TeacherLogRatio()(judged(teacher.tolist(), policy.tolist()))
    (found,) = torch.autograd.grad(-(policy.detach().exp() * advantages * policy).sum(), logits)
    assert found.tolist() == pytest.approx(exact.tolist(), abs=1e-12)


@pytest.mark.parametrize("missing", ["teacher_logprobs", "old_logprobs"])
def test_what_is_missing_is_named(missing):
    given = {"teacher_logprobs": d([-1.0]), "old_logprobs": d([-1.0])} | {missing: None}
    with pytest.raises(ValueError, match=r"needs Feedback\.teacher_logprobs and Feedback\.old_logprobs$"):
        TeacherLogRatio()(Feedback(Layout.from_lengths([1]), d([0.0]), **given))


def test_no_advantage_is_zero_at_every_token():
    assert NoAdvantage()(Feedback(Layout.from_lengths([2, 1]), d([1.0, math.nan]))).tolist() == [0.0, 0.0, 0.0]
    assert [Whitened(x).reads_rewards for x in (NoAdvantage(), TeacherLogRatio())] == [False, False]
