"""Teacher, reference and full divergences in tiny runs: weights move as plain autograd in float64 says."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.numpy import load_file
from transformers import AutoModelForCausalLM

from reinlm.errors import InputError
from tiny_runs import answers, change, descent, distributions, metrics, run_rl, saved, tiny, trainer, weights

pytestmark = pytest.mark.no_cover

RATE = 0.1
ONE = {"training": {"steps": 1}, "run": {"rollouts_every": 1}}


def loaded(path: str) -> Any:
    """A saved model as the library holds a frozen one, float32; summed up in float64."""
    return AutoModelForCausalLM.from_pretrained(path, dtype=torch.float32).double().eval()


def full(log_p: torch.Tensor, log_q: torch.Tensor) -> torch.Tensor:
    """KL(p ‖ q) at each state."""
    return (log_p.exp() * (log_p - log_q)).sum(-1)


def moved(folder: Path, **changes: Any) -> tuple[torch.Tensor, Any]:
    """What one update added to the weights of the tiny model."""
    model = tiny()
    before = weights(model[0])
    result = run_rl(folder, model, **{**ONE, **changes})
    return change(before, weights(model[0])), result


def logged_kls(folder: Path) -> dict[str, list[float]]:
    """The divergences of each token in the rollout log of the first step, by column."""
    columns = load_file(folder / "rollouts/step_1.safetensors")
    return {name.removeprefix("update/"): x.tolist() for name, x in columns.items() if name.startswith("update/kl")}


def close(found: torch.Tensor, expected: torch.Tensor, relative: float = 1e-6) -> bool:
    return float((found - expected).norm()) < relative * float(expected.norm())


# ---------------------------------------------------------------------------------------------------- the teacher


def test_distillation_needs_no_reward_function_and_follows_the_teachers_log_ratio(tmp_path: Path) -> None:
    """loss = -1/N Σ_t (log π_teacher - log π) log π_θ(y_t)."""
    path = saved(tmp_path / "teacher", seed=5)
    found, result = moved(tmp_path / "run", reward=None, algorithm="distill", teacher={"path": path})
    model = tiny()[0]
    told = answers(result.folder)
    table, tokens = distributions(model, told)
    logprobs = table.gather(1, tokens[:, None])[:, 0]
    judged = distributions(loaded(path), told)[0].gather(1, tokens[:, None])[:, 0].detach()
    loss = -((judged - logprobs.detach()) * logprobs).mean()
    assert close(found, descent(model, loss, RATE), 1e-5)
    columns = load_file(result.folder / "rollouts/step_1.safetensors")
    assert np.allclose(columns["update/teacher_logprobs"], judged, atol=1e-5)


@pytest.mark.parametrize("direction", ["reverse", "forward"])
def test_the_full_divergence_from_a_teacher_moves_the_weights_as_plain_autograd_does(
    direction: str, tmp_path: Path
) -> None:
    """loss = β/N Σ_t KL at each state, samples held fixed; β = 0.5."""
    path = saved(tmp_path / "teacher", seed=5)
    kl = {"anchor": "teacher", "estimator": "full", "coefficient": 0.5, "direction": direction}
    algorithm = {"base": "distill", "advantage": "none", "kl": kl}
    found, result = moved(
        tmp_path / "run", reward=None, algorithm=algorithm, teacher={"path": path}, rollout={"temperature": 1.3}
    )
    model = tiny()[0]
    told = answers(result.folder)
    mine, theirs = distributions(model, told)[0], distributions(loaded(path), told)[0].detach()
    kls = full(mine, theirs) if direction == "reverse" else full(theirs, mine)
    assert close(found, descent(model, 0.5 * kls.mean(), RATE), 1e-5)
    row = metrics(result.folder)[-1]
    assert row["kl/teacher"] == pytest.approx(float(kls.mean()), rel=1e-5)
    assert logged_kls(result.folder) == {"kl_teacher": pytest.approx(kls.tolist(), abs=1e-5)}
    assert row["loss"] == pytest.approx(0.5 * float(kls.mean()), rel=1e-5)


def test_a_teacher_that_is_missing_or_that_nothing_asks_for_is_refused(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"distill learns from a teacher, and none is given.*teacher\.path"):
        trainer(tmp_path / "run", reward=None, algorithm="distill")
    with pytest.raises(InputError, match=r"teacher has no effect: grpo asks for none"):
        trainer(tmp_path / "run", algorithm="grpo", teacher={"path": "somewhere"})
    other = saved(tmp_path / "other", alphabet="0123456789+=x")
    with pytest.raises(InputError, match=r"teacher\.path .*other reads other tokens than the policy"):
        trainer(tmp_path / "run", reward=None, algorithm="distill", teacher={"path": other})
    assert not (tmp_path / "run").exists()


def test_grpo_without_any_reward_is_refused_before_anything_is_loaded(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="'reward' is required"):
        trainer(tmp_path / "run", reward=None)


# ---------------------------------------------------------------------------------------------------- the reference


def test_the_kl_is_measured_from_the_model_that_reference_path_names(tmp_path: Path) -> None:
    """grpo's k3, sequence by sequence: 4 tokens each, so that token and sequence means agree."""
    path = saved(tmp_path / "sft", seed=5)
    result = run_rl(tmp_path / "run", algorithm="grpo", reference={"path": path}, **ONE)
    told = answers(result.folder)
    table, tokens = distributions(tiny()[0], told)
    ours = table.gather(1, tokens[:, None])[:, 0].detach()
    theirs = distributions(loaded(path), told)[0].gather(1, tokens[:, None])[:, 0].detach()
    d = theirs - ours
    row = metrics(result.folder)[-1]
    assert row["kl"] == pytest.approx(float((d.exp() - 1 - d).mean()), rel=1e-5)
    assert row["kl"] > 0.1
    own = run_rl(tmp_path / "own", algorithm="grpo", **ONE)
    assert metrics(own.folder)[-1]["kl"] == 0.0


def test_a_reference_without_a_kl_or_with_other_tokens_is_refused(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="reference has no effect: grpo keeps no reference"):
        trainer(tmp_path / "run", algorithm={"base": "grpo", "kl": None}, reference={"path": "x"})
    other = saved(tmp_path / "other", alphabet="0123456789+=x")
    with pytest.raises(InputError, match=r"reference\.path .*other reads other tokens than the policy"):
        trainer(tmp_path / "run", reference={"path": other})


def test_a_run_does_not_resume_with_another_reference(tmp_path: Path) -> None:
    path = saved(tmp_path / "sft", seed=5)
    options: dict[str, Any] = {"reference": {"path": path}, "training": {"steps": 2}}
    with trainer(tmp_path / "run", **options) as first:
        first.step()
        first.save()
    saved(tmp_path / "sft", seed=6)
    with (
        trainer(tmp_path / "run", resume=True, **options) as again,
        pytest.raises(InputError, match="the reference model is not the one that the run started from"),
    ):
        again.step()
    saved(tmp_path / "sft", seed=5)
    with trainer(tmp_path / "run", resume=True, **options) as again:
        again.step()
    assert [row["step"] for row in metrics(again.folder.path)] == [1, 2]


def test_a_run_from_another_model_does_not_resume_against_the_policys_own_start(tmp_path: Path) -> None:
    with trainer(tmp_path / "run") as first:
        first.step()
        first.save()
    with (
        trainer(tmp_path / "run", tiny(seed=4), resume=True) as again,
        pytest.raises(InputError, match="the reference"),
    ):
        again.step()


# ---------------------------------------------------------------------------------------------------- full divergences

PENALTY = {"estimator": "full", "anchor": "old", "coefficient": 0.7}


def test_the_full_divergence_from_the_old_policy_is_0_at_the_first_update_and_pulls_at_the_second(
    tmp_path: Path,
) -> None:
    """Two passes over one minibatch: the second update's gradient has 0.7/N Σ_t KL(π_old ‖ π_θ) at the first one's weights."""
    plain = {"base": "grpo", "gate": "none", "kl": None, "aggregation": "token_mean"}
    one, _ = moved(tmp_path / "one", algorithm=plain)
    one_tied, first = moved(tmp_path / "one_tied", algorithm={**plain, "kl": PENALTY})
    assert close(one, one_tied, 1e-12)
    assert metrics(first.folder)[-1]["kl/old_full"] == pytest.approx(0.0, abs=1e-12)
    twice = {"training": {"steps": 1, "passes": 2}}
    two, _ = moved(tmp_path / "two", algorithm=plain, **twice)
    two_tied, second = moved(tmp_path / "two_tied", algorithm={**plain, "kl": PENALTY}, **twice)

    model = tiny()[0]
    told = answers(first.folder)
    old = distributions(model, told)[0].detach()
    with torch.no_grad():
        places = one.split([weight.numel() for weight in model.parameters()])
        for weight, added in zip(model.parameters(), places, strict=True):
            weight += added.view_as(weight)
    kls = full(old, distributions(model, told)[0])
    assert close(two_tied - two, descent(model, 0.7 * kls.mean(), RATE), 1e-6)
    assert metrics(second.folder)[-1]["kl/old_full"] == pytest.approx(float(kls.mean()) / 2, rel=1e-6)  # of 0 and this
    assert logged_kls(second.folder) == {"kl_old_full": pytest.approx(kls.tolist(), rel=1e-5)}  # of the last update


def test_the_old_policy_is_taken_anew_for_every_batch(tmp_path: Path) -> None:
    """One update a batch: it begins where the old policy is, at every step, though the weights have moved."""
    algorithm = {"base": "grpo", "gate": "none", "kl": PENALTY}
    rows = metrics(run_rl(tmp_path / "run", algorithm=algorithm).folder)
    assert [row["updates/made"] for row in rows] == [1.0, 1.0]
    assert [row["kl/old_full"] for row in rows] == pytest.approx([0.0, 0.0], abs=1e-12)


def test_an_adapter_has_no_full_divergence_from_its_old_policy(tmp_path: Path) -> None:
    import peft

    model, tokenizer = tiny()
    adapted = peft.get_peft_model(model, peft.LoraConfig(r=2, target_modules=["q_proj"], task_type="CAUSAL_LM"))
    with pytest.raises(InputError, match=r"which an adapter does not have.*k3"):
        trainer(tmp_path / "run", (adapted, tokenizer), algorithm={"base": "grpo", "kl": PENALTY})


def test_the_forward_divergence_from_the_reference_in_the_loss_moves_the_weights_as_plain_autograd_does(
    tmp_path: Path,
) -> None:
    path = saved(tmp_path / "sft", seed=5)
    kl = {"estimator": "full", "coefficient": 0.3, "direction": "forward"}
    plain = {"base": "grpo", "kl": None, "aggregation": "token_mean"}
    free, _ = moved(tmp_path / "free", algorithm=plain)
    tied, result = moved(tmp_path / "tied", algorithm={**plain, "kl": kl}, reference={"path": path})
    model = tiny()[0]
    told = answers(result.folder)
    mine, theirs = distributions(model, told)[0], distributions(loaded(path), told)[0].detach()
    kls = full(theirs, mine)
    assert close(tied - free, descent(model, 0.3 * kls.mean(), RATE), 1e-5)
    assert metrics(result.folder)[-1]["kl/full"] == pytest.approx(float(kls.mean()), rel=1e-5)


REWARD_KL = {"estimator": "full", "coefficient": 0.3, "placement": "token_reward"}
RETURNS = {"base": "reinforce", "kl": None, "advantage": {"returns": {"gamma": 1.0}}, "aggregation": "token_mean"}


def sums_to_come(values: torch.Tensor, lengths: list[int]) -> torch.Tensor:
    """Σ of this and later entries within each answer."""
    return torch.cat([part.flip(0).cumsum(0).flip(0) for part in values.split(lengths)])


@pytest.mark.parametrize("pair", [False, True])
def test_the_full_divergence_in_the_reward_is_charged_to_every_token_before_it(
    pair: bool, tmp_path: Path, capsys: Any
) -> None:
    """Alone the weights follow -1/N Σ_t A_t log π with A_t less Σ_{s ≥ t} KL_s; its pair in the loss adds 0.3/N Σ_t KL_t."""
    path = saved(tmp_path / "sft", seed=5)
    alone = {**REWARD_KL, "allow_reward_alone": True}
    kl: Any = [REWARD_KL, {**REWARD_KL, "placement": "loss"}] if pair else [alone]
    free, _ = moved(tmp_path / "free", algorithm=RETURNS)
    tied, result = moved(tmp_path / "tied", algorithm={**RETURNS, "kl": kl}, reference={"path": path}, quiet=False)
    assert ("lacks the pull at each token's own state" in " ".join(capsys.readouterr().err.split())) is not pair
    model = tiny()[0]
    told = answers(result.folder)
    mine, tokens = distributions(model, told)
    kls = full(mine, distributions(loaded(path), told)[0].detach())
    charged = -0.3 * sums_to_come(kls.detach(), [len(places) for _, places, _ in told])
    loss = -(charged * mine.gather(1, tokens[:, None])[:, 0]).mean() + pair * 0.3 * kls.mean()
    assert close(tied - free, descent(model, loss, RATE), 1e-5)
    columns = load_file(result.folder / "rollouts/step_1.safetensors")
    assert np.allclose(columns["update/token_rewards"], -0.3 * kls.detach(), atol=1e-6)
    assert metrics(result.folder)[-1]["kl/full"] == pytest.approx(float(kls.mean()), rel=1e-5)
    expected = pytest.approx(kls.tolist(), abs=1e-5)
    assert logged_kls(result.folder) == {"kl_full_reward": expected} | ({"kl_full": expected} if pair else {})


@pytest.mark.parametrize(
    ("anchor", "placement", "target", "factor"),
    [
        ("reference", "loss", 0.01, 2.0),
        ("reference", "loss", 100.0, 0.5),
        ("reference", "token_reward", 0.01, 2.0),
        ("teacher", "loss", 0.01, 2.0),
    ],
)
def test_the_coefficient_of_a_full_divergence_follows_the_divergence_that_was_measured(
    anchor: str, placement: str, target: float, factor: float, tmp_path: Path
) -> None:
    """Schulman's rule doubles it above 1.5 times the target, and halves it below target/1.5."""
    path = saved(tmp_path / "other", seed=5)
    kl: dict[str, Any] = {
        "estimator": "full",
        "coefficient": 0.3,
        "anchor": anchor,
        "placement": placement,
        "controller": {"schulman": {"target": target, "per": "token"}},
    }
    base = RETURNS if placement == "token_reward" else {"base": "grpo"}
    if placement == "token_reward":
        kl["allow_reward_alone"] = True
    result = run_rl(tmp_path / "run", algorithm={**base, "kl": [kl]}, **{anchor: {"path": path}})
    rows = metrics(result.folder)
    name = {"reference": "kl/coefficient", "teacher": "kl/teacher_coefficient"}[anchor]
    assert [row[name] for row in rows] == pytest.approx([0.3, 0.3 * factor])
    full_name = {"reference": "kl/full", "teacher": "kl/teacher"}[anchor]
    assert rows[0][f"kl/{anchor}"] == pytest.approx(rows[0][full_name])
    assert rows[0][f"kl/{anchor}_per_sequence"] == pytest.approx(
        rows[0][full_name] * rows[0]["completions/mean_length"]
    )
    assert rows[0][full_name] > 0.02


@pytest.mark.parametrize(
    ("key", "given"),
    [
        ("reference.path", {"reference": {"path": "./none"}, "algorithm": {"base": "grpo", "kl": 0.1}}),
        ("critic.path", {"critic": {"path": "./none"}, "algorithm": "ppo"}),
        ("teacher.path", {"teacher": {"path": "./none"}, "algorithm": "distill", "reward": None}),
    ],
)
def test_a_further_model_that_is_not_there_is_named_by_its_key(tmp_path: Path, key: str, given: dict[str, Any]) -> None:
    with pytest.raises(InputError, match=rf"^{key}: no such model folder: \./none"):
        run_rl(tmp_path / "run", **given)
