"""Further loss terms, columns, constraints and teachers, through `Algorithm`."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import partial

import jaxtyping
import pytest
import torch
import yaml

from reinlm.algorithms import algorithm, algorithm_spec, resolve
from reinlm.errors import InputError
from reinlm.objectives import (
    KL,
    EntropyTerm,
    Feedback,
    GroupCenter,
    KLTerm,
    Lagrange,
    Layout,
    NegativeLogLikelihood,
    Signals,
    TeacherLogRatio,
    k3,
)


def d(values):
    return torch.tensor(values, dtype=torch.float64)


@dataclass(frozen=True)
class Towards:
    """A user's own term: half the squared distance of log π from another model's."""

    needs = frozenset({"teacher_logprobs", "entropy", "loss_weight"})

    def __call__(self, logprobs, signals, outputs):
        distance = (logprobs - signals.teacher_logprobs).square() / 2
        return signals.columns["loss_weight"] * distance - outputs.entropy


class WordNeeds:
    """A term that forgets the braces of a set."""

    needs = "entropy"

    def __call__(self, logprobs, signals, outputs):
        return logprobs


def plain_term(logprobs, signals, outputs):
    return 2.0 * logprobs


# ------------------------------------------------------------------------------------------------ terms


def test_a_term_is_weighed_as_the_gate_is_and_follows_its_column():
    """Two answers of 2 and 1 tokens under a sequence mean: weights 1/4, 1/4, 1/2."""
    chosen = algorithm("dr_grpo", aggregation="sequence_mean", terms={"nll": [0.5, "loss_weight"]})
    assert chosen.terms == (NegativeLogLikelihood(0.5, "loss_weight"),)
    layout, logprobs = Layout.from_lengths([2, 1]), d([-1.0, -2.0, -4.0]).requires_grad_()
    signals = chosen.prepare(layout, d([0.0] * 3), columns={"loss_weight": d([1.0, 0.0, 2.0])})
    loss = chosen.loss(logprobs, signals, chosen.initial_state())
    loss.value.backward()
    assert loss.value.item() == pytest.approx(0.5 * (1.0 / 4 + 2 * 4.0 / 2))
    assert logprobs.grad.tolist() == pytest.approx([-0.125, 0.0, -0.5])
    every = algorithm("dr_grpo", aggregation="sequence_mean", terms="nll")
    assert every.needs_columns == frozenset()
    found = every.loss(logprobs, every.prepare(layout, d([0.0] * 3)), every.initial_state())
    assert found.value.item() == pytest.approx(0.1 * (1 / 4 + 2 / 4 + 4 / 2))


def test_slices_of_a_step_with_a_term_add_up():
    chosen = algorithm("dapo", terms=[{"nll": {"column": "c"}}])
    layout, logprobs = Layout.from_lengths([2, 3]), d([-1.0, -2.0, -3.0, -0.5, -0.25])
    signals = chosen.prepare(layout, d([1.0, 1.0, -1.0, -1.0, -1.0]), columns={"c": d([1.0, 2.0, 3.0, 4.0, 5.0])})
    whole = chosen.loss(logprobs, signals, chosen.initial_state()).value
    parts = [torch.tensor([1]), torch.tensor([0])]
    tokens = [torch.tensor([2, 3, 4]), torch.tensor([0, 1])]
    sliced = [
        chosen.loss(logprobs[t], signals.select(part), chosen.initial_state()).value
        for part, t in zip(parts, tokens, strict=True)
    ]
    assert float(sum(sliced)) == pytest.approx(float(whole), abs=1e-12)
    assert signals.select(parts[0]).columns["c"].tolist() == [3.0, 4.0, 5.0]
    assert signals.to("cpu", torch.float32).columns["c"].dtype == torch.float32


def test_a_users_term_reads_what_it_names_through_the_padded_adapter():
    chosen = algorithm("dr_grpo", aggregation="token_mean", terms=[Towards(), plain_term])
    assert (chosen.needs_teacher_logprobs, chosen.needs_entropy) == (True, True)
    assert chosen.needs_columns == {"loss_weight"}
    mask = torch.tensor([[True, True, False]])
    zero, logprobs = d([[0.0, 0.0, 0.0]]), d([[-1.0, -2.0, torch.nan]])
    given = {
        "teacher_logprobs": d([[-2.0, -2.5, torch.nan]]),
        "columns": {"loss_weight": d([[1.0, 2.0, torch.nan]])},
        "entropy": d([[0.5, 0.25, torch.nan]]),
    }
    found = chosen.objective(logprobs, logprobs, zero, mask, **given)
    assert found.loss.item() == pytest.approx(((0.5 - 0.5) + (0.25 - 0.25) + 2 * -3.0) / 2)
    for name, told in {
        "teacher_logprobs": "has a loss term that reads teacher_logprobs: missing",
        "columns": "has a loss term that reads loss_weight: missing",
        "entropy": "has a loss term that reads entropy: the entropy of each token is missing",
    }.items():
        with pytest.raises(ValueError, match=told):
            chosen.objective(logprobs, logprobs, zero, mask, **(given | {name: None}))
    with pytest.raises(ValueError, match=r"^loss_weight has shape \(1, 2\), the mask \(1, 3\)"):
        chosen.objective(logprobs, logprobs, zero, mask, **(given | {"columns": {"loss_weight": d([[1.0, 2.0]])}}))


def test_kl_and_entropy_are_terms_as_any_other_and_their_coefficients_those_of_the_state():
    chosen = algorithm("grpo", entropy=0.5, terms="nll")
    state = replace(chosen.initial_state(), kl_coefficients=(2.0,), entropy_coefficient=0.25)
    kl, bonus, nll = chosen.terms_in_force(state)
    (tie,) = chosen.active_kl
    assert (kl, bonus, nll) == (KLTerm(tie, 2.0), EntropyTerm(0.25), NegativeLogLikelihood())
    assert (set(kl.needs), set(bonus.needs)) == ({"ref_logprobs"}, {"entropy"})
    assert KLTerm(KL("full"), 1.0).needs == frozenset()
    assert chosen.terms_in_force(replace(state, entropy_counts=False)) == (kl, nll)
    assert algorithm("rloo").terms_in_force(algorithm("rloo").initial_state()) == ()
    layout, logprobs, ref = Layout.from_lengths([2]), d([-1.0, -2.0]), d([-1.5, -1.0])
    signals = chosen.prepare(layout, d([0.0, 0.0]), ref_logprobs=ref)
    entropy = d([0.5, 0.75])
    found = chosen.loss(logprobs, signals, state, entropy=entropy).value.item()
    by_hand = 2.0 * k3(logprobs, ref) - 0.25 * entropy - 0.1 * logprobs
    assert found == pytest.approx(float(by_hand.mean()), abs=1e-12)


@pytest.mark.parametrize(
    ("term", "told"),
    [
        (lambda logprobs, signals, distribution: logprobs.sum(), r"of shape \(\) for 2 tokens"),
        (lambda logprobs, signals, distribution: logprobs[:1], r"of shape \(1,\) for 2 tokens"),
        (lambda logprobs, signals, distribution: logprobs > 0, r"returned torch.bool of shape \(2,\) for 2 tokens"),
        (lambda logprobs, signals, distribution: 0.5, "returned float, not a tensor"),
        (lambda logprobs, signals, distribution: dict[str, float]()["x"], "failed: KeyError: 'x'"),
    ],
)
def test_a_term_without_a_loss_for_each_token_is_refused_by_name(term, told):
    term.__name__ = "mine"
    chosen = algorithm("dr_grpo", terms=[term])
    logprobs = d([-1.0, -2.0])
    with pytest.raises(InputError, match=f"^loss term mine .*{told}"):
        chosen.loss(logprobs, chosen.prepare(Layout.from_lengths([2]), logprobs), chosen.initial_state())


def test_a_term_that_fails_is_told_with_its_line_where_it_has_one():
    def scaled(logprobs, signals, distribution, scale=1.0):
        raise RuntimeError("boom")

    layout, zero = Layout.from_lengths([1]), d([0.0])
    for term, told in (
        (scaled, rf"term scaled failed: RuntimeError: boom \({__file__}:\d+\)"),
        (partial(scaled, scale=2.0), "boom"),
    ):
        chosen = algorithm("dr_grpo", terms=[term])
        with pytest.raises(InputError, match=told):
            chosen.loss(zero, chosen.prepare(layout, zero), chosen.initial_state())


def test_what_a_term_refuses_itself_is_told_as_it_is():
    def picky(logprobs, signals, distribution):
        raise InputError("no such column")

    chosen = algorithm("dr_grpo", terms=[picky])
    with pytest.raises(InputError, match=r"^no such column$"):
        chosen.loss(d([-1.0]), chosen.prepare(Layout.from_lengths([1]), d([0.0])), chosen.initial_state())


@pytest.mark.parametrize(
    ("terms", "told"),
    [
        ((Towards,), "terms: Towards is no loss term; give an object that is called with"),
        ((Lagrange("cost", 1.0),), "terms: Lagrange is no loss term"),
        ((lambda logprobs: logprobs,), "loss term <lambda> cannot be called with .*: too many positional arguments"),
        ((WordNeeds(),), "loss term WordNeeds: needs is a set of names, not 'entropy'"),
    ],
)
def test_what_cannot_be_a_term_is_refused_before_anything_runs(terms, told):
    with pytest.raises(ValueError, match=told):
        replace(algorithm("dr_grpo"), terms=terms)


@pytest.mark.parametrize("name", ["ref_logprobs", "old_logprobs", "rollout_logprobs"])
def test_signals_that_a_term_names_are_asked_for(name):
    @dataclass(frozen=True)
    class Reads:
        needs = frozenset({name})

        def __call__(self, logprobs, signals, outputs):
            return logprobs - getattr(signals, name)

    chosen = algorithm("dr_grpo", terms=[Reads()])
    layout = Layout.from_lengths([1])
    with pytest.raises(ValueError, match=f"has a loss term that reads {name}: missing"):
        chosen.prepare(layout, d([0.0]))
    assert getattr(chosen.prepare(layout, d([0.0]), **{name: d([-1.0])}), name).tolist() == [-1.0]
    assert (chosen.needs_reference, chosen.needs_ref_logprobs) == ((name == "ref_logprobs"),) * 2
    assert chosen.needs_old_logprobs is (name == "old_logprobs")


def test_columns_are_constants_of_every_token(monkeypatch):
    """By Signals itself, which users have; the annotations check in tests alone."""
    monkeypatch.setattr(jaxtyping.config, "jaxtyping_disable", True)
    layout, one = Layout.from_lengths([1]), d([1.0])
    with pytest.raises(ValueError, match=r"^mine has shape \(2,\) for 1 tokens$"):
        Signals(layout, one, one, columns={"mine": d([1.0, 2.0])})
    with pytest.raises(ValueError, match=r"^mine carries a gradient"):
        Signals(layout, one, one, columns={"mine": d([1.0]).requires_grad_()})
    with pytest.raises(ValueError, match=r"^nll: the coefficient must be more than 0 and finite, not 0$"):
        NegativeLogLikelihood(0)
    with pytest.raises(ValueError, match=r"^nll: the coefficient must be more than 0 and finite, not inf$"):
        NegativeLogLikelihood(float("inf"))


@pytest.mark.parametrize(
    "changes",
    [
        {"terms": ["nll", {"nll": [0.5, "loss_weight"]}]},
        {"constraints": {"lagrange": {"reward": "cost", "limit": 0.25}}},
        {"constraints": [{"lagrange": ["cost", 0.25, 0.5, 0.2]}]},
        {"advantage": "group_rank"},
        {"advantage": {"gdpo": {"bessel": True}}},
        {"advantage": "none", "kl": {"anchor": "teacher", "estimator": "full", "coefficient": 1.0}},
        {"kl": {"direction": "forward", "estimator": "f3_unbiased"}},
        {"ratio": "sequence_product"},
    ],
    ids=str,
)
def test_the_further_choices_can_be_said_in_a_recipe_and_come_back(changes):
    mine = algorithm("grpo", **changes)
    assert mine != algorithm("grpo")
    assert resolve(yaml.safe_load(yaml.safe_dump(algorithm_spec(mine)))) == mine


# ------------------------------------------------------------------------------------------------ constraints


BOUND = Lagrange("cost", limit=0.25, multiplier=0.5, rate=0.1)


def costly(rewards, costs, **more):
    return Feedback(
        Layout.from_lengths([1] * len(rewards)),
        d(rewards),
        named_rewards={"cost": d(costs)},
        reward_weights={"cost": 0.0},
        **more,
    )


def test_a_constraint_charges_by_its_state_and_moves_it():
    chosen = algorithm("dr_grpo", constraints=[BOUND])
    assert chosen.needs_named_rewards
    state = chosen.initial_state()
    assert state.multipliers == (0.5,)
    assert chosen.state_metrics(state) == {"constraint/cost/multiplier": 0.5}
    moved = chosen.advance(state, costs={"cost": 0.4})
    assert moved.multipliers == pytest.approx((0.515,))
    charged = chosen.adjust_rewards(costly([1.0], [0.4]), moved, None, None)
    assert charged.adjusted_rewards is not None
    assert charged.named_rewards is not None
    assert charged.adjusted_rewards.tolist() == pytest.approx([0.5240924092], abs=1e-9)
    assert (charged.rewards.tolist(), charged.named_rewards["cost"].tolist()) == ([1.0], [0.4])
    steps = costly([1.0], [0.4], step_rewards=d([3.0]), step_tokens=torch.tensor([0]))
    charged = chosen.adjust_rewards(steps, state, None, None)
    assert charged.adjusted_step_rewards is not None
    assert charged.adjusted_step_tokens is not None
    assert charged.adjusted_step_rewards.tolist() == pytest.approx([2.0])
    assert charged.adjusted_step_tokens.tolist() == [0]
    assert charged.step_rewards is steps.step_rewards


def test_a_batch_without_the_cost_leaves_the_multiplier_and_one_that_was_not_measured_is_refused():
    chosen = algorithm("dr_grpo", constraints=[BOUND])
    state = chosen.initial_state()
    assert chosen.advance(state, costs={"other": 1.0}).multipliers == (0.5,)
    assert chosen.advance(state, costs={}).multipliers == (0.5,)
    with pytest.raises(ValueError, match=r"^dr_grpo has a constraint: the mean costs of the batch are missing$"):
        chosen.advance(state)
    with pytest.raises(InputError, match=r"^dr_grpo: a constraint reads the reward 'cost'; there are none by name$"):
        chosen.adjust_rewards(Feedback(Layout.from_lengths([1]), d([1.0])), state, None, None)


# ------------------------------------------------------------------------------------------------ teachers


def test_distillation_moves_each_token_by_the_teachers_log_ratio():
    chosen = algorithm("distill")
    assert isinstance(chosen.advantage, TeacherLogRatio)
    layout, old = Layout.from_lengths([2]), d([-1.2, -1.0])
    feedback = Feedback(layout, d([0.0]), teacher_logprobs=d([-0.7, -3.0]))
    charged = chosen.adjust_rewards(feedback, chosen.initial_state(), old, None)
    advantages = chosen.advantage(charged)
    assert advantages.tolist() == pytest.approx([0.5, -2.0])
    logprobs = old.clone().requires_grad_()
    chosen.loss(logprobs, chosen.prepare(layout, advantages, old_logprobs=old), chosen.initial_state()).value.backward()
    assert logprobs.grad.tolist() == pytest.approx([-0.25, 1.0])


def test_the_full_form_follows_the_divergence_from_the_teacher():
    chosen = algorithm("distill", advantage="none", kl={"anchor": "teacher", "estimator": "full", "coefficient": 1.0})
    layout, full = Layout.from_lengths([2]), d([0.5, 1.5]).requires_grad_()
    signals = chosen.prepare(layout, chosen.advantage(Feedback(layout, d([0.0]))))
    found = chosen.loss(d([-1.0, -2.0]), signals, chosen.initial_state(), full_teacher_kl=full)
    found.value.backward()
    assert (found.value.item(), full.grad.tolist()) == (1.0, [0.5, 0.5])
    assert chosen.full_directions == {"teacher": "reverse"}
    forward = {"anchor": "teacher", "estimator": "full", "direction": "forward"}
    assert algorithm("grpo", kl=forward).full_directions == {"teacher": "forward"}


# ------------------------------------------------------------------------------------------------ refusals


@pytest.mark.parametrize(
    ("base", "changes", "told"),
    [
        (
            "distill",
            {"kl": {"anchor": "teacher", "estimator": "full"}},
            "the advantage follows the KL to the teacher by",
        ),
        ("distill", {"advantage": "none"}, "there is nothing to learn: no advantage, no KL in the loss"),
        (
            "distill",
            {"constraints": [BOUND]},
            "a constraint changes the sum of rewards, which advantage TeacherLogRatio",
        ),
        (
            "distill",
            {"shapers": "soft_overlong"},
            "a shaper changes the sum of rewards, which advantage TeacherLogRatio",
        ),
        ("rloo", {"advantage": "gdpo"}, "a KL in the sequence_reward changes the sum of rewards, which advantage GDPO"),
        (
            "grpo",
            {"advantage": "greedy_baseline", "constraints": [BOUND]},
            "a constraint changes the rewards of samples",
        ),
        ("grpo", {"constraints": [BOUND, BOUND]}, "two constraints bound the same reward: cost, cost"),
        (
            "grpo",
            {"kl": [{"anchor": "teacher", "estimator": "full"}] * 2},
            "two KL terms tie the policy to the same teacher",
        ),
    ],
)
def test_choices_without_an_effect_are_refused(base, changes, told):
    with pytest.raises(InputError) as error:
        algorithm(base, **changes)
    assert error.value.message.startswith(f"algorithm {base}: {told}")


def test_what_only_looks_like_a_contradiction_is_accepted():
    assert algorithm("grpo", advantage="gdpo", shapers="soft_overlong", kl=None).needs_named_rewards
    assert algorithm("distill", advantage="none", entropy=0.01).entropy is not None
    assert algorithm("distill", advantage="none", terms="nll").terms
    assert algorithm("grpo", advantage=GroupCenter(), constraints=[BOUND]).constraints == (BOUND,)
