"""What an algorithm needs, what it refuses, what it charges, and how its state moves."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
import yaml

from reinlm.algorithms import (
    ALGORITHMS,
    CARDS,
    AlgorithmState,
    MixedOutcomes,
    SoftOverlong,
    Updates,
    algorithm,
    algorithm_spec,
    ladder,
)
from reinlm.algorithms import resolve as rebuild
from reinlm.composition.algorithm import Algorithm
from reinlm.errors import InputError
from reinlm.objectives import (
    CHOICES,
    GAE,
    KL,
    AcceptAbove,
    Clip,
    ConstantBudget,
    Critic,
    Feedback,
    GeometricMean,
    GroupCenter,
    GroupStandardize,
    Layout,
    LeaveOneOut,
    Linear,
    NoGate,
    NStep,
    OffPolicyMask,
    Returns,
    SchulmanRule,
    SequenceRatio,
    SequenceTokenRatio,
    Soft,
    TeacherLogRatio,
    TokenRatio,
    Truncated,
    TruncatedWeight,
    TurnRatio,
    Whitened,
    ZieglerRule,
    choice,
    sequence_mean,
    sequence_sum,
    token_mean,
)


def d(values):
    return torch.tensor(values, dtype=torch.float64)


TOKEN = TokenRatio()
IN_REWARD = KL("k1", 0.05, placement="token_reward")
SPELLED = {
    "reinforce": Algorithm("reinforce", Returns(1.0), TOKEN, NoGate(), sequence_sum),
    "rloo": Algorithm(
        "rloo", LeaveOneOut(), TOKEN, NoGate(), sequence_sum, kl=KL("k1", 0.03, placement="sequence_reward")
    ),
    "ppo": Algorithm(
        "ppo",
        Whitened(GAE(1.0, 0.95, bootstrap_truncated=False), by="token", bessel=False),
        TOKEN,
        Clip(0.2, 0.2),
        token_mean,
        kl=IN_REWARD,
        critic=Critic(0.2, 0.5),
    ),
    "ppo_penalty": Algorithm(
        "ppo_penalty",
        Whitened(GAE(1.0, 0.95, bootstrap_truncated=False)),
        TOKEN,
        NoGate(),
        token_mean,
        kl=(IN_REWARD, KL("k3", 1.0, "old", "loss", SchulmanRule(0.01, per="token"))),
        critic=Critic(0.2, 0.5),
    ),
    "reinforce_pp": Algorithm(
        "reinforce_pp",
        Whitened(Returns(1.0)),
        TOKEN,
        Clip(0.2, 0.2),
        token_mean,
        kl=KL("k1", 0.001, placement="token_reward"),
    ),
    "grpo": Algorithm("grpo", GroupStandardize(), TOKEN, Clip(0.2, 0.2), sequence_mean, kl=KL("k3", 0.04)),
    "dr_grpo": Algorithm("dr_grpo", GroupCenter(), TOKEN, Clip(0.2, 0.2), ConstantBudget(3000)),
    "dapo": Algorithm(
        "dapo",
        GroupStandardize(),
        TOKEN,
        Clip(0.2, 0.28),
        token_mean,
        filters=(MixedOutcomes(),),
        shapers=(SoftOverlong(),),
    ),
    "distill": Algorithm("distill", TeacherLogRatio(), TOKEN, NoGate(), token_mean),
    "gmpo": Algorithm("gmpo", GroupStandardize(), TOKEN, GeometricMean(0.4), sequence_mean),
    "gspo": Algorithm("gspo", GroupStandardize(), SequenceRatio(), Clip(3e-4, 4e-4), sequence_mean),
    "gspo_token": Algorithm("gspo_token", GroupStandardize(), SequenceTokenRatio(), Clip(3e-4, 4e-4), sequence_mean),
    "sapo": Algorithm("sapo", GroupStandardize(), TOKEN, Soft(1.0, 1.05), sequence_mean),
    "cispo": Algorithm(
        "cispo",
        GroupStandardize(),
        TOKEN,
        TruncatedWeight(5.0, None, False),
        token_mean,
        filters=(MixedOutcomes(),),
        shapers=(SoftOverlong(),),
    ),
    "raft_pp": Algorithm("raft_pp", AcceptAbove(0.5), TOKEN, Clip(0.2, 0.2), token_mean),
    "reinforce_rej": Algorithm(
        "reinforce_rej", Returns(1.0), TOKEN, Clip(0.2, 0.2), token_mean, filters=(MixedOutcomes(),)
    ),
    "scaling_grpo": Algorithm(
        "scaling_grpo",
        GroupCenter(),
        TOKEN,
        Clip(0.2, 0.2),
        sequence_mean,
        kl=KL("k3_unbiased", 0.001),
        sequence_mask=OffPolicyMask(0.1),
    ),
}


@pytest.mark.parametrize("name", SPELLED)
def test_every_rung_is_what_its_paper_says(name):
    from dataclasses import replace

    assert replace(algorithm(name), source="", updates=Updates()) == SPELLED[name]


def test_every_rung_makes_the_updates_that_its_paper_makes():
    made = {
        name: (chosen.updates.passes, chosen.updates.minibatches) for name in ALGORITHMS if (chosen := algorithm(name))
    }
    several = {"ppo": (4, 1), "ppo_penalty": (4, 1), "reinforce_pp": (4, 1), "dr_grpo": (1, 8), "gmpo": (1, 8)}
    several |= {"dapo": (1, 16), "cispo": (1, 16), "gspo": (1, 4), "gspo_token": (1, 4), "sapo": (1, 4)}
    several |= {"raft_pp": (1, 4), "reinforce_rej": (1, 4), "scaling_grpo": (1, 4)}  # its paper says several
    assert {name: each for name, each in made.items() if each != (1, 1)} == several
    assert algorithm("dapo", gate="clip").updates == Updates(1, 16)
    for wrong in ({"passes": 0}, {"minibatches": 0}):
        with pytest.raises(ValueError, match=r"^updates: passes and minibatches are at least 1, not"):
            Updates(**wrong)


def test_every_rung_has_a_card_and_stands_on_another():
    assert set(SPELLED) <= set(ALGORITHMS) == set(CARDS)
    for card in CARDS.values():
        assert card.parent is None or card.parent in CARDS
        assert all(len(text) > 20 for text in (card.formula, card.summary, card.use, card.fails))
        assert algorithm(card.name).source == card.source
        assert card.summary[-1] in ".:"
    assert [card.name for card in CARDS.values() if card.parent is None] == ["reinforce"]
    dates = [card.published for card in ladder()]
    assert dates == sorted(dates)
    for card in CARDS.values():
        if card.parent is not None:
            assert CARDS[card.parent].published <= card.published


# ------------------------------------------------------------------------------------------------ recipes


@pytest.mark.parametrize(
    "changes",
    [
        {"advantage": {"whitened": {"gae": {"gae_lambda": 0.9}}}, "critic": "critic"},
        {"advantage": {"whitened": {"advantage": "group_center", "by": "episode"}}},
        {"advantage": {"whitened": ["returns", "episode", True]}},
        {"advantage": {"n_step": 3}, "critic": {"clip": None}},
        {"advantage": {"vtrace": {"trace_cap": 0.5}}, "critic": {"critic": [0.1, 1.0]}},
        {"advantage": "greedy_baseline"},
        {"advantage": "length_weighted"},
        {"kl": {"controller": {"schulman": 0.01}}},
        {"kl": {"controller": "ziegler"}},
        {"kl": {"controller": {"linear": [0.0, 100]}, "coefficient": 0.2}},
        {"kl": {"controller": {"band": [0.01, 0.05]}}},
        {"kl": [{"coefficient": 0.1}, {"anchor": "old", "estimator": "k2"}]},
        {"kl": {"estimator": "full"}},
        {"corrections": ["truncated", {"geometric": [0.99, 1.01]}, "self_normalized"]},
        {"corrections": {"k3_filter": 0.1}},
        {"sequence_mask": {"threshold": 0.2}},
        {"sequence_mask": "off_policy"},
        {"sequence_mask": {"off_policy": 0.3}},
        {"selection": "clip_cov"},
        {"selection": {"kl_cov": {"fraction": 0.1}}},
        {"entropy": {"coefficient": 0.01, "target": 0.5}},
        {"entropy": "entropy"},
        {"entropy": 0.02},
        {"sequence_mask": 0.2},
        {"advantage": {"whitened": "group_center"}},
        {"advantage": {"whitened": {"group_center": {}}}},
        {"advantage": "gae", "critic": [None, 0.1]},
        {"kl": []},
        {"overlong": "filter_before_baseline"},
        {"ratio": {"turn": {"against": "rollout"}}},
        {"ratio": {"sequence": {"allow_token_mean": True}}, "aggregation": "token_mean"},
        {"gate": {"soft": [1.0, 2.0]}},
        {"gate": {"truncated_weight": {"cap": 3.0}}},
        {"gate": {"clip": {"dual": 3.0}}},
        {"shapers": ["soft_overlong", {"missing_end": 0.5}]},
    ],
    ids=str,
)
def test_every_choice_can_be_said_in_a_recipe_and_comes_back_from_its_description(changes):
    mine = algorithm("grpo", **changes)
    assert mine != algorithm("grpo")
    assert rebuild(yaml.safe_load(yaml.safe_dump(algorithm_spec(mine)))) == mine
    assert rebuild({"base": "grpo", **changes}) == mine


def test_choices_are_instances_too():
    mine = algorithm("grpo", corrections=[Truncated(3.0)], kl=(KL(),), advantage=Whitened(GroupCenter()), critic=None)
    assert (mine.corrections, mine.kl, mine.active_kl) == ((Truncated(3.0),), (KL(),), (KL(),))
    assert algorithm("grpo", entropy=None, selection=None, sequence_mask=None) == algorithm("grpo")
    mixed = algorithm("grpo", kl=[KL("k2", 0.1), {"anchor": "old"}])
    assert mixed.active_kl == (KL("k2", 0.1), KL("k3", 0.04, "old"))


def test_a_name_is_taken_once():
    with pytest.raises(ValueError, match=r"^gate 'clip' is registered twice$"):
        choice("gate", "clip")(NoGate)
    assert CHOICES["gate"]["clip"] is Clip


# ------------------------------------------------------------------------------------------------ refusals


@pytest.mark.parametrize(
    ("base", "changes", "told"),
    [
        ("grpo", {"kl": {"estimator": "k1"}}, "k1 as a loss has no gradient in expectation"),
        ("grpo", {"kl": [{}, {"placement": "sequence_reward"}]}, "two KL terms tie the policy to the same reference"),
        ("grpo", {"kl": [{"anchor": "old"}, {"anchor": "old"}]}, "two KL terms tie the policy to the same old"),
        ("grpo", {"gate": {"soft": [0.0, 1.0]}}, "soft gate: the temperature positive must be more than 0, not 0.0"),
        ("grpo", {"gate": {"soft": [1.0, -1.0]}}, "soft gate: the temperature negative must be more than 0, not -1.0"),
        ("grpo", {"gate": {"clip": [1.5, 0.2]}}, "clip: low must be in (0, 1]"),
        ("grpo", {"gate": {"clip": [0.2, 0.2, 1.2]}}, "clip: dual must be more than 1 + high = 1.2; given 1.2"),
        ("grpo", {"gate": {"truncated_weight": 0.0}}, "truncated weight: cap must be more than 0 and finite"),
        ("grpo", {"gate": {"truncated_weight": [1.0, 1.0]}}, "truncated weight: floor must be in [0, cap = 1.0)"),
        ("grpo", {"advantage": "gae"}, "advantage GAE needs the values of a critic, and there is none"),
        ("grpo", {"critic": "critic"}, "a critic has no effect: advantage GroupStandardize does not use its values"),
        ("ppo", {"critic": None}, "advantage Whitened needs the values of a critic"),
        ("dapo", {"ratio": "sequence"}, "one ratio a sequence under a token mean"),
        ("dapo", {"ratio": "turn"}, "one ratio a sequence under a token mean"),
        ("gspo", {"ratio": {"sequence": {"allow_token_mean": True}}}, "allow_token_mean has no effect"),
        (
            "grpo",
            {"ratio": {"token": "rollout"}, "corrections": "truncated"},
            "a ratio against the sampler already holds the correction",
        ),
        (
            "ppo",
            {"advantage": "vtrace", "corrections": "truncated"},
            "VTrace already weighs by the ratio of policy and sampler",
        ),
        ("ppo", {"advantage": "vtrace", "ratio": {"token": "rollout"}}, "VTrace already weighs by the ratio"),
        ("grpo", {"kl": {"estimator": "k1", "placement": "token_reward"}}, "a KL in the reward of every token needs"),
        ("grpo", {"ratio": {"token": "sampler"}}, "ratio: against is old or rollout, not 'sampler'"),
        ("grpo", {"kl": {"anchor": "base"}}, "KL: the anchor is one of reference, old, teacher, not 'base'"),
        ("grpo", {"kl": {"placement": "reward"}}, "KL: the placement is one of loss, token_reward, sequence_reward"),
        ("grpo", {"kl": {"anchor": "old", "placement": "sequence_reward"}}, "the old policy drew the samples"),
        (
            "grpo",
            {"kl": {"anchor": "old", "estimator": "k3_unbiased"}},
            "KL estimator 'k3_unbiased' to the old policy in the loss, forward: allowed are k2, k3, full",
        ),
        (
            "rloo",
            {"kl": {"estimator": "full"}},
            "a full KL in the reward alone does not depend on the token that was chosen",
        ),
        ("grpo", {"advantage": {"whitened": ["group_center", "batch"]}}, "whitened: by is token or episode"),
    ],
)
def test_contradictions_are_refused_with_their_reason(base, changes, told):
    with pytest.raises(InputError) as error:
        algorithm(base, **changes)
    assert error.value.message.startswith(f"algorithm {base}: {told}")
    assert isinstance(error.value, ValueError)


def test_an_unknown_treatment_of_overlong_answers_is_told_what_there_is():
    with pytest.raises(InputError, match=r"unknown choice for overlong 'drop'"):
        algorithm("grpo", overlong="drop")
    with pytest.raises(ValueError, match=r"^overlong is one of keep, filter_before_baseline, filter_after_baseline"):
        Algorithm("x", GroupCenter(), TOKEN, Clip(), token_mean, overlong="drop")


@pytest.mark.parametrize(
    ("changes", "told"),
    [
        ({"selection": 3}, "selection: cannot read 3"),
        ({"selection": Clip()}, "selection: cannot read Clip(low=0.2, high=0.2, dual=None)"),
        ({"kl": {"controller": "schulman"}}, "schulman needs a value for 'target'"),
        ({"kl": {"controller": {"schulmann": 0.1}}}, "unknown controller 'schulmann'"),
        ({"entropy": "bonus"}, "unknown entropy 'bonus'"),
        ({"entropy": [0.1, "high"]}, "entropy.target: input should be a valid number"),
        ({"advantage": {"whitened": {"gaee": 1}}}, "unknown advantage 'gaee'"),
        ({"advantage": {"n_step": {"n": 1.5}}}, "n_step.n: input should be a valid integer"),
    ],
)
def test_what_cannot_be_read_is_named(changes, told):
    with pytest.raises(InputError) as error:
        algorithm("grpo", **changes)
    assert told in error.value.message


def test_one_mapping_cannot_change_two_ties():
    with pytest.raises(InputError, match=r"kl: there are 2 KL terms") as error:
        algorithm("ppo_penalty", kl={"coefficient": 0.1})
    assert error.value.hint == "give the whole list"


# ------------------------------------------------------------------------------------------------ what it needs


def needs(chosen):
    return (
        chosen.needs_reference,
        chosen.needs_ref_logprobs,
        chosen.needs_full_kl,
        chosen.needs_old_logprobs,
        chosen.needs_final_logprobs,
    )


def test_what_each_needs_before_its_update():
    assert needs(algorithm("dapo")) == (False, False, False, False, False)
    assert needs(algorithm("grpo")) == (True, True, False, False, False)
    assert needs(algorithm("grpo", kl={"coefficient": 0.0})) == (False, False, False, False, False)
    gradual = {"coefficient": 0.0, "controller": {"linear": [0.1, 9]}}
    assert needs(algorithm("grpo", kl=gradual)) == (True, True, False, True, False)
    assert needs(algorithm("grpo", kl={"estimator": "full"})) == (True, False, True, False, False)
    assert needs(algorithm("rloo")) == (True, True, False, True, False)
    assert needs(algorithm("ppo_penalty")) == (True, True, False, True, True)
    assert needs(algorithm("dapo", kl=[{"anchor": "old"}])) == (False, False, False, False, False)
    for change in ({"corrections": "truncated"}, {"selection": "kl_cov"}):
        assert needs(algorithm("dapo", **change)) == (False, False, False, True, False)
    assert algorithm("ppo", advantage="vtrace", kl=None).needs_old_logprobs


def test_what_is_missing_is_named():
    one, layout = torch.ones(1), Layout.from_lengths([1])
    with pytest.raises(ValueError, match=r"^mine corrects for the sampler: rollout_logprobs is missing$"):
        algorithm("dapo", corrections="truncated", name="mine").prepare(layout, one, old_logprobs=one)
    with pytest.raises(ValueError, match=r"^dapo corrects for the sampler: rollout_logprobs is missing$"):
        algorithm("dapo", ratio={"token": "rollout"}).prepare(layout, one, old_logprobs=one)
    with pytest.raises(ValueError, match=r"^dapo weighs or selects tokens by old_logprobs, which are missing$"):
        algorithm("dapo", selection="clip_cov").prepare(layout, one)
    with pytest.raises(ValueError, match=r"^dapo weighs or selects tokens by old_logprobs, which are missing$"):
        algorithm("dapo", corrections="truncated").prepare(layout, one, rollout_logprobs=one)
    chosen = algorithm("dapo", entropy="entropy")
    with pytest.raises(ValueError, match=r"^dapo has an entropy bonus: the entropy of each token is missing$"):
        chosen.loss(one, chosen.prepare(layout, one), chosen.initial_state())
    full = algorithm("grpo", kl={"estimator": "full"})
    with pytest.raises(ValueError, match=r"full_kl is missing$"):
        full.loss(one, full.prepare(layout, one), full.initial_state())
    ppo = algorithm("ppo")
    with pytest.raises(ValueError, match=r"^ppo has no critic, or no returns for it to learn$"):
        ppo.critic_loss(one, ppo.prepare(layout, one))
    with pytest.raises(ValueError, match=r"^dapo has no critic, or no returns for it to learn$"):
        algorithm("dapo").critic_loss(one, algorithm("dapo").prepare(layout, one, returns=one))
    rloo, one_reward = algorithm("rloo"), Feedback(layout, d([1.0]))
    with pytest.raises(ValueError, match=r"^rloo has a KL in its reward: old_logprobs and ref_logprobs are needed$"):
        rloo.adjust_rewards(one_reward, rloo.initial_state(), one, None)
    grpo = algorithm("grpo")
    tied = algorithm("dapo").prepare(layout, one)
    with pytest.raises(ValueError, match=r"a KL to the reference needs ref_logprobs, and there are none"):
        grpo.loss(one, tied, grpo.initial_state())
    with pytest.raises(ValueError, match=r"^a ratio against the sampler needs rollout_logprobs, and there are none$"):
        algorithm("dapo", ratio={"token": "rollout"}).loss(one, tied, AlgorithmState())


# ------------------------------------------------------------------------------------------------ charge and trained


def feedback(**given):
    return Feedback(Layout.from_lengths([2, 1], 2), d([1.0, 0.0]), **given)


def test_a_kl_of_the_sequence_is_taken_off_before_the_baseline():
    chosen = algorithm("rloo", kl={"coefficient": 0.5})
    old, ref = d([-1.0, -2.0, -3.0]), d([-1.5, -2.5, -2.0])
    charged = chosen.adjust_rewards(feedback(), chosen.initial_state(), old, ref)
    assert charged.effective_rewards.tolist() == [1.0 - 0.5 * 1.0, 0.0 + 0.5 * 1.0]
    assert charged.rewards.tolist() == [1.0, 0.0]
    assert charged.token_rewards is None
    assert chosen.advantage(charged).tolist() == [0.0, 0.0, 0.0]


def test_a_kl_of_each_token_joins_the_token_rewards_that_there_are():
    chosen = algorithm("reinforce_pp", kl={"coefficient": 0.5})
    given = feedback(token_rewards=d([1.0, 1.0, 1.0]))
    charged = chosen.adjust_rewards(given, chosen.initial_state(), d([-1.0, -2.0, -3.0]), d([-1.5, -2.0, -2.0]))
    assert charged.token_rewards is not None
    assert charged.token_rewards.tolist() == [0.75, 1.0, 1.5]


def test_a_kl_in_the_loss_charges_nothing():
    given = feedback()
    assert algorithm("grpo").adjust_rewards(given, algorithm("grpo").initial_state(), None, None) is given


def test_the_states_coefficient_charges():
    chosen = algorithm("rloo")
    charged = chosen.adjust_rewards(
        feedback(), AlgorithmState(kl_coefficients=(2.0,)), d([0.0] * 3), d([-1.0, 0.0, 0.0])
    )
    assert charged.effective_rewards.tolist() == [-1.0, 0.0]
    assert charged.rewards.tolist() == [1.0, 0.0]


def test_overlong_answers_are_kept_or_filtered_before_or_after_the_baseline():
    layout = Layout.from_lengths([1, 1, 1], 3)
    given = Feedback(layout, d([1.0, 0.0, 0.0]), truncated=torch.tensor([False, False, True]))
    found: dict[str, Any] = {}
    for overlong in ("keep", "filter_before_baseline", "filter_after_baseline"):
        chosen = algorithm("dr_grpo", overlong=overlong)
        charged = chosen.adjust_rewards(given, chosen.initial_state(), None, None)
        assert charged.rewards.tolist() == [1.0, 0.0, 0.0]
        found[overlong] = (chosen.advantage(charged).tolist(), chosen.trained(charged).tolist())
    third = 1 / 3
    assert found["keep"] == (pytest.approx([2 * third, -third, -third]), [True, True, True])
    assert found["filter_before_baseline"] == ([0.5, -0.5, 0.0], [True, True, False])
    assert found["filter_after_baseline"] == (pytest.approx([2 * third, -third, -third]), [True, True, False])
    nothing_cut = Feedback(layout, d([1.0, math.nan, 0.0]))
    for overlong in ("keep", "filter_before_baseline", "filter_after_baseline"):
        chosen = algorithm("dr_grpo", overlong=overlong)
        charged = chosen.adjust_rewards(nothing_cut, chosen.initial_state(), None, None)
        assert chosen.trained(charged).tolist() == [True, False, True]


def test_a_batch_whose_answers_were_all_cut_off_teaches_nothing():
    given = Feedback(Layout.from_lengths([1, 2], 2), d([1.0, 0.0]), truncated=torch.tensor([True, True]))
    chosen = algorithm("grpo", overlong="filter_before_baseline")
    charged = chosen.adjust_rewards(given, chosen.initial_state(), None, None)
    assert chosen.advantage(charged).tolist() == [0.0] * 3
    assert chosen.trained(charged).tolist() == [False, False]


# ------------------------------------------------------------------------------------------------ the state


def test_a_controller_moves_its_own_coefficient_by_its_own_divergence():
    chosen = algorithm(
        "grpo", kl=[{"coefficient": 0.2, "controller": "ziegler"}, {"anchor": "old", "coefficient": 3.0}]
    )
    state = chosen.advance(chosen.initial_state(), updates=4, episodes=256, kl=[(0.0, 9.0), (5.0, 50.0)])
    assert list(state.kl_coefficients) == [pytest.approx(0.201024), 3.0]
    assert (state.updates, state.batches) == (4, 1)
    penalty = algorithm("ppo_penalty")
    doubled = penalty.advance(penalty.initial_state(), kl=[(9.0, 9.0), (0.02, 0.2)])
    assert doubled.kl_coefficients == (0.05, 2.0)


def test_a_gradual_coefficient_needs_no_divergence_and_stays_at_its_end():
    chosen = algorithm("grpo", kl={"coefficient": 0.1, "controller": {"linear": [0.5, 4]}})
    state, seen = chosen.initial_state(), []
    for _ in range(6):
        state = chosen.advance(state)
        seen.append(state.kl_coefficients[0])
    assert seen == pytest.approx([0.2, 0.3, 0.4, 0.5, 0.5, 0.5])
    assert Linear(0.5, 4).needs_kl is False


def test_a_controller_without_its_divergence_is_an_error():
    chosen = algorithm("grpo", kl={"controller": {"schulman": 0.01}})
    with pytest.raises(ValueError, match=r"^grpo adapts its KL coefficient: the measured divergence is missing$"):
        chosen.advance(chosen.initial_state())


def test_the_units_of_controllers_differ_by_the_length():
    from reinlm.objectives import Measured, TargetBand

    measured = Measured(kl_per_token=0.02, kl_per_sequence=0.3, episodes=100, batches=1)
    assert SchulmanRule(0.2, per="sequence")(0.0, 1.0, measured) == 1.0
    assert SchulmanRule(0.2, per="token")(0.0, 1.0, measured) == 0.5
    assert ZieglerRule(0.3, per="sequence")(0.0, 1.0, measured) == 1.0
    assert ZieglerRule(0.3, per="token")(0.0, 1.0, measured) == pytest.approx(1 - 0.2 * 0.01)
    assert TargetBand(0.01, 0.03)(0.0, 1.0, measured) == 1.0
    assert TargetBand(0.01, 0.03, 2.0, per="sequence")(0.0, 1.0, measured) == 2.0
    assert TargetBand(0.05, 0.06, 2.0)(0.0, 1.0, measured) == 0.5
    assert TargetBand(0.02, 0.3)(0.0, 1.0, measured) == 1.0
    assert TargetBand(0.01, 0.02)(0.0, 1.0, measured) == 1.0


def test_the_entropy_bonus_counts_only_while_it_is_wanted():
    chosen = algorithm("dapo", entropy={"coefficient": 0.1, "target": 0.5, "step": 0.05})
    state = chosen.advance(chosen.initial_state(), entropy=0.4)
    assert state.entropy_coefficient == pytest.approx(0.15)
    assert state.entropy_counts is True
    off = chosen.advance(state, entropy=0.9)
    assert off.entropy_coefficient == pytest.approx(0.1)
    assert off.entropy_counts is False
    assert chosen.advance(off).entropy_counts is False
    layout, one = Layout.from_lengths([1]), d([1.0])
    signals = chosen.prepare(layout, 0 * one)
    losses = [chosen.loss(0 * one, signals, s, entropy=2 * one).value.item() for s in (state, off)]
    assert losses == pytest.approx([-0.3, 0.0])


def test_a_turn_ratio_is_the_mean_of_each_turn():
    layout = Layout(torch.tensor([0, 0, 1]), torch.tensor([0, 0]), torch.tensor([0]), torch.tensor([0]), 1)
    chosen = algorithm("gspo", ratio="turn")
    signals = chosen.prepare(layout, d([1.0] * 3), old_logprobs=d([0.0] * 3))
    assert chosen.ratio(d([0.1, 0.3, 0.5]), signals).tolist() == pytest.approx([0.2, 0.2, 0.5])
    assert TurnRatio() == chosen.ratio


def test_value_losses_are_weighed_and_added():
    chosen = algorithm("ppo", critic={"clip": 0.2, "coefficient": 0.5})
    layout = Layout.from_lengths([2])
    signals = chosen.prepare(layout, d([0.0, 0.0]), returns=d([2.0, 0.0]), old_values=d([1.0, 0.0]))
    loss = chosen.critic_loss(d([1.5, 0.1]), signals)
    assert loss.value.item() == pytest.approx(0.5 * (0.32 + 0.005) / 2)
    assert loss.metrics.means() == pytest.approx({"value_loss": 0.1625, "values/mean": 0.8, "values/clip_ratio": 0.5})
    free = algorithm("ppo", critic={"clip": None})
    loss = free.critic_loss(d([1.5, 0.1]), signals)
    assert set(loss.metrics.means()) == {"value_loss", "values/mean"}
    mask = torch.ones(1, 2, dtype=torch.bool)
    zero = d([[0.0, 0.0]])
    both = chosen.objective(
        zero, zero, zero, mask, values=d([[1.5, 0.1]]), returns=d([[2.0, 0.0]]), old_values=d([[1.0, 0.0]])
    )
    assert both.loss.item() == pytest.approx(0.08125)
    assert both.metrics["value_loss"] == pytest.approx(0.1625)
    assert NStep(2).needs == {"critic"}


@pytest.mark.parametrize("missing", [math.nan, -math.inf, math.inf])
@pytest.mark.parametrize("gate", ["clip", "truncated_weight"])
def test_a_token_that_the_sampler_could_not_score_counts_nothing_against_it(gate, missing):
    chosen = algorithm(
        "dapo", ratio={"token": "rollout"}, gate=gate, kl={"estimator": "k3_unbiased", "coefficient": 0.1}
    )
    layout, old = Layout.from_lengths([3]), d([-1.0, -2.0, -3.0])
    found = []
    for rollout in (d([-1.1, missing, -2.9]), d([-1.1, -2.1, -2.9])):
        logprobs = old.clone().requires_grad_()
        signals = chosen.prepare(
            layout, d([1.0, 1.0, -1.0]), old_logprobs=old, rollout_logprobs=rollout, ref_logprobs=old
        )
        loss = chosen.loss(logprobs, signals, chosen.initial_state())
        loss.value.backward()
        assert all(math.isfinite(value) for value in loss.metrics.means().values())
        found.append(logprobs.grad.tolist())
    assert found[0][1] == pytest.approx(0.0, abs=1e-15)
    assert found[0][0::2] == pytest.approx(found[1][0::2], abs=1e-12)
    assert abs(found[1][1]) > 0.1
