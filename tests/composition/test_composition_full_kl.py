"""The full KL in reward and loss: exact gradients by enumeration, what each algorithm asks for, and what it warns of."""

from __future__ import annotations

import itertools
from typing import Any

import pytest
import torch

from reinlm.algorithms import AlgorithmState, algorithm
from reinlm.errors import InputError
from reinlm.objectives import GAE, KL, Feedback, Layout, LeaveOneOut, full_divergence

BETA = 0.1
PAIR = [
    {"estimator": "full", "coefficient": BETA, "placement": "token_reward"},
    {"estimator": "full", "coefficient": BETA, "placement": "loss"},
]
ALONE = {**PAIR[0], "allow_reward_alone": True}


def d(values):
    return torch.tensor(values, dtype=torch.float64)


class World:
    """Answers of two tokens from {0, 1}: the second one's distribution depends on the first."""

    REF = (d([0.5, 0.5]).log(), d([[0.9, 0.1], [0.2, 0.8]]).log())

    def __init__(self):
        self.logits = d([0.3, -0.2, 0.5, 0.1, -0.4, 0.7]).requires_grad_()

    def policy(self):
        return self.logits[:2].log_softmax(0), self.logits[2:].view(2, 2).log_softmax(-1)

    def exact(self, direction="reverse"):
        """∇ E Σ_t KL(state_t), by its definition."""
        first, second = self.policy()
        later = full_divergence(second, self.REF[1], direction)
        whole = full_divergence(first, self.REF[0], direction) + (first.exp() * later).sum()
        return torch.autograd.grad(whole, self.logits)[0]

    def followed(self, chosen):
        """What an algorithm follows where every answer earns 0: Σ over answers of π(answer), held, times its loss."""
        total = d(0.0)
        state, layout = chosen.initial_state(), Layout.from_lengths([2])
        direction = chosen.full_directions.get("reference", "reverse")
        for a, b in itertools.product(range(2), repeat=2):
            first, second = self.policy()
            logprobs = torch.stack([first[a], second[a, b]])
            ref = torch.stack([self.REF[0][a], self.REF[1][a, b]])
            full = torch.stack(
                [
                    full_divergence(first, self.REF[0], direction),
                    full_divergence(second[a], self.REF[1][a], direction),
                ]
            )
            charged = chosen.adjust_rewards(Feedback(layout, d([0.0])), state, logprobs.detach(), ref, full.detach())
            signals = chosen.prepare(layout, chosen.advantage(charged), ref_logprobs=ref)
            loss = chosen.loss(logprobs, signals, state, full_kl=full)
            total = total + logprobs.detach().sum().exp() * loss.value
        return torch.autograd.grad(total, self.logits)[0]


def near(found, expected):
    return torch.allclose(found, expected, atol=1e-12, rtol=0)


def test_k1_in_the_reward_and_the_full_pair_follow_the_divergence_of_whole_answers():
    exact = BETA * World().exact()
    k1 = algorithm("reinforce", kl={"estimator": "k1", "coefficient": BETA, "placement": "token_reward"})
    assert near(World().followed(k1), exact)
    assert near(World().followed(algorithm("reinforce", kl=PAIR)), exact)
    by_answer = [{**PAIR[0], "placement": "sequence_reward"}, PAIR[1]]
    assert near(World().followed(algorithm("reinforce", kl=by_answer)), exact)


def test_the_forward_pair_follows_the_forward_divergence():
    pair = algorithm("reinforce", kl=[{**tie, "direction": "forward"} for tie in PAIR])
    assert pair.full_directions == {"reference": "forward"}
    assert near(World().followed(pair), BETA * World().exact("forward"))
    assert not near(World().followed(pair), BETA * World().exact())


def test_a_full_kl_in_the_reward_alone_or_in_the_loss_alone_does_not():
    exact = BETA * World().exact()
    alone = World().followed(algorithm("reinforce", kl=ALONE))
    assert float((alone - exact).abs().max()) > 0.001
    assert alone[2:].abs().max() < 1e-15  # at its own state it is a baseline; only what a token leads to is left
    assert float(alone[:2].abs().max()) > 0.001
    in_loss = World().followed(algorithm("reinforce", kl=PAIR[1]))
    assert near(alone + in_loss, exact)
    assert float((in_loss - exact)[:2].abs().max()) > 0.001


@pytest.mark.parametrize("estimator", ["k2", "k3"])
def test_k2_and_k3_in_the_reward_do_not_follow_the_divergence_and_a_warning_says_so(estimator):
    chosen = algorithm("reinforce", kl={"estimator": estimator, "coefficient": BETA, "placement": "token_reward"})
    found, exact = World().followed(chosen), BETA * World().exact()
    assert float((found - exact).abs().max()) > 0.01
    (warning,) = chosen.warnings
    assert warning.startswith(f"{estimator} as a constant in the reward does not follow the divergence")


def test_vector_16_4_one_token_answers():
    """The reward is a constant, its policy gradient 0; the pair has the gradient of the loss alone."""
    ref = d([0.4, 0.4, 0.2]).log()
    layout = Layout.from_lengths([1])

    def followed(chosen):
        logits = d([0.5, 0.3, 0.2]).log().requires_grad_()
        policy, total = logits.log_softmax(0), d(0.0)
        full = full_divergence(policy, ref, "reverse")[None]
        for token in range(3):
            charged = chosen.adjust_rewards(
                Feedback(layout, d([0.0])), chosen.initial_state(), None, None, full.detach()
            )
            assert charged.token_rewards.tolist() == pytest.approx([-0.0025267154], abs=1e-9)
            signals = chosen.prepare(layout, chosen.advantage(charged))
            loss = chosen.loss(policy[token : token + 1], signals, chosen.initial_state(), full_kl=full)
            total = total + policy[token].detach().exp() * loss.value
        return torch.autograd.grad(total, logits)[0].tolist()

    assert followed(algorithm("reinforce", kl=ALONE)) == pytest.approx([0.0, 0.0, 0.0], abs=1e-15)
    pair = [BETA * x for x in (0.0989381987, -0.0938847679, -0.0050534308)]
    assert followed(algorithm("reinforce", kl=PAIR)) == pytest.approx(pair, abs=1e-9)


# ------------------------------------------------------------------------------------------------ what is accepted


def test_the_reward_alone_needs_its_flag_and_carries_a_warning():
    with pytest.raises(InputError, match=r"a full KL in the reward alone does not depend on the token") as error:
        algorithm("reinforce", kl=PAIR[0])
    assert "allow_reward_alone: true" in error.value.message
    (warning,) = algorithm("reinforce", kl=ALONE).warnings
    assert warning.startswith("a full KL in the reward alone lacks the pull at each token's own state")


@pytest.mark.parametrize(
    "ties",
    [
        [PAIR[0], {**PAIR[1], "coefficient": 0.2}],
        [PAIR[0], {**PAIR[1], "direction": "reverse"}],
        [PAIR[0], {**PAIR[1], "estimator": "k2"}],
        [PAIR[0], PAIR[0]],
        [PAIR[1], PAIR[1]],
        [{**PAIR[0], "estimator": "k1"}, {**PAIR[1], "estimator": "k2"}],
        [*PAIR, PAIR[1]],
    ],
)
def test_two_ties_that_are_no_pair_count_twice(ties):
    with pytest.raises(InputError, match="two KL terms tie the policy to the same reference policy"):
        algorithm("reinforce", kl=ties)


def test_the_flag_has_no_effect_on_a_pair():
    with pytest.raises(InputError, match="allow_reward_alone has no effect, because the KL stands in the loss too"):
        algorithm("reinforce", kl=[ALONE, PAIR[1]])


def test_a_pair_whose_advantages_are_divided_or_discounted_is_warned_of():
    assert algorithm("reinforce", kl=PAIR).warnings == ()
    assert algorithm("rloo", kl=[{**PAIR[0], "placement": "sequence_reward"}, PAIR[1]]).warnings == ()
    assert algorithm("ppo", advantage=GAE(1.0, 1.0), kl=PAIR).warnings == ()
    for changes in ({"advantage": {"returns": 0.9}}, {"advantage": {"whitened": "returns"}}):
        (warning,) = algorithm("reinforce", kl=PAIR, **changes).warnings
        assert warning.startswith("a full KL in reward and loss is the exact gradient where γ = λ = 1")
    assert len(algorithm("ppo", advantage=GAE(1.0, 0.95), kl=PAIR).warnings) == 1
    assert len(algorithm("ppo", advantage={"n_step": 2}, kl=PAIR).warnings) == 1


def test_no_named_algorithm_has_a_warning():
    from reinlm.algorithms import ALGORITHMS

    assert {name: algorithm(name).warnings for name in ALGORITHMS} == dict.fromkeys(ALGORITHMS, ())


# ------------------------------------------------------------------------------------------------ what is asked for


def asked(chosen):
    names = (
        "needs_reference",
        "needs_ref_logprobs",
        "needs_full_kl",
        "needs_full_kl_in_reward",
        "needs_full_old_kl",
        "needs_teacher",
        "needs_teacher_logprobs",
        "needs_teacher_full_kl",
        "needs_old_logprobs",
    )
    return {name.removeprefix("needs_") for name in names if getattr(chosen, name)}


@pytest.mark.parametrize(
    ("base", "changes", "expected"),
    [
        ("reinforce", {"kl": PAIR}, {"reference", "full_kl", "full_kl_in_reward"}),
        ("reinforce", {"kl": ALONE}, {"reference", "full_kl_in_reward"}),
        ("reinforce", {"kl": PAIR[1]}, {"reference", "full_kl"}),
        ("grpo", {"kl": {"anchor": "old", "estimator": "full"}}, {"full_old_kl"}),
        ("grpo", {"kl": {"anchor": "teacher", "estimator": "full"}}, {"teacher", "teacher_full_kl"}),
        ("distill", {}, {"teacher", "teacher_logprobs", "old_logprobs"}),
        ("ppo", {}, {"reference", "ref_logprobs", "old_logprobs"}),
    ],
    ids=lambda value: " ".join(sorted(value)) if isinstance(value, set) else str(value),
)
def test_what_each_asks_to_be_measured(base, changes, expected):
    assert asked(algorithm(base, **changes)) == expected


def test_the_exact_penalty_of_ppo_takes_the_divergence_from_the_old_policy():
    reward = {"estimator": "k1", "coefficient": 0.05, "placement": "token_reward"}
    old = {"estimator": "full", "coefficient": 2.0, "anchor": "old", "controller": {"schulman": 0.01}}
    chosen = algorithm("ppo_penalty", kl=[reward, old])
    assert chosen.full_directions == {"old": "forward"}
    layout, logprobs = Layout.from_lengths([2]), d([-1.0, -2.0]).requires_grad_()
    full = d([0.25, 0.75]).requires_grad_()
    signals = chosen.prepare(layout, d([0.0, 0.0]), old_logprobs=d([-1.0, -2.0]))
    loss = chosen.loss(logprobs, signals, chosen.initial_state(), full_old_kl=full)
    loss.value.backward()
    assert loss.value.item() == pytest.approx(1.0)
    assert full.grad.tolist() == [1.0, 1.0]
    with pytest.raises(ValueError, match=r"full_old_kl is missing$"):
        chosen.loss(logprobs, signals, chosen.initial_state(), full_kl=full)
    moved = chosen.advance(chosen.initial_state(), kl=[(0.0, 0.0), (0.1, 1.0)])
    assert moved.kl_coefficients == (0.05, 4.0)


def test_a_full_kl_in_the_reward_that_was_not_measured_is_asked_for_and_carries_no_gradient():
    chosen = algorithm("reinforce", kl=ALONE)
    feedback = Feedback(Layout.from_lengths([1]), d([0.0]))
    with pytest.raises(ValueError, match=r"^reinforce has a full KL in its reward: full_kl is needed$"):
        chosen.adjust_rewards(feedback, chosen.initial_state(), d([-1.0]), d([-1.0]))
    charged = chosen.adjust_rewards(feedback, chosen.initial_state(), None, None, d([0.5]).requires_grad_())
    assert charged.token_rewards is not None
    assert not charged.token_rewards.requires_grad
    by_answer = algorithm("rloo", kl={**ALONE, "placement": "sequence_reward"})
    both = Feedback(Layout.from_lengths([2, 1]), d([1.0, 1.0]))
    charged = by_answer.adjust_rewards(both, by_answer.initial_state(), None, None, d([0.5, 0.25, 1.0]))
    assert charged.effective_rewards.tolist() == pytest.approx([0.925, 0.9])
    assert isinstance(by_answer.advantage, LeaveOneOut)
    assert by_answer.kl == KL("full", BETA, placement="sequence_reward", allow_reward_alone=True)


def test_a_state_of_an_earlier_checkpoint_still_loads():
    earlier: dict[str, Any] = {
        "updates": 3,
        "batches": 2,
        "kl_coefficients": (0.04,),
        "entropy_coefficient": 0.0,
        "entropy_counts": True,
    }
    state = AlgorithmState(**earlier)
    assert algorithm("grpo").advance(state).batches == 3
