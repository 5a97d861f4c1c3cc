"""How many updates a run makes of each batch, and what it says about them."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from safetensors.numpy import load_file

import reinlm
from reinlm.algorithms import ALGORITHMS, algorithm, algorithm_spec, merge_specs, resolve
from reinlm.composition.compatibility import idle_choices
from reinlm.config import apply_overrides, build
from reinlm.errors import InputError
from reinlm.objectives import Clip
from reinlm.sources import read_sources
from reinlm.training.config import RLConfig
from reinlm.training.in_force import settings_tree
from reinlm.training.rl_checks import check_settings, more_updates, slow_rate, updates_per_batch
from tiny_runs import ROWS, answers, distributions, metrics, run_rl, tiny, trainer

PAPERS = {
    "reinforce": (1, 1),
    "rloo": (1, 1),
    "reinforce_pp": (4, 1),  # not given: as PPO
    "ppo": (4, 1),
    "ppo_penalty": (4, 1),
    "grpo": (1, 1),
    "dr_grpo": (1, 8),
    "dapo": (1, 16),
    "cispo": (1, 16),
    "gspo": (1, 4),
    "gspo_token": (1, 4),
    "gmpo": (1, 8),
    "sapo": (1, 4),
    "raft_pp": (1, 4),
    "reinforce_rej": (1, 4),
    "scaling_grpo": (1, 4),  # several, without a number: as GSPO
}
"""Passes and minibatches, where a batch has groups enough."""


def test_the_papers_are_those_of_every_algorithm_that_learns_from_rewards() -> None:
    assert set(PAPERS) | {"distill"} == set(ALGORITHMS)


def counted(name: str, groups: int, **training: Any) -> tuple[int, int]:
    tree = {
        "model": "m",
        "data": "d",
        "reward": "math",
        "rollout": {"group_size": 2, "batch_size": 2 * groups},
        "training": training,
    }
    found = updates_per_batch(build(RLConfig, tree), resolve(name))
    return found.passes, found.minibatches


@pytest.mark.parametrize("algorithm", PAPERS)
def test_with_groups_enough_a_batch_makes_the_updates_of_the_paper(algorithm: str) -> None:
    assert counted(algorithm, 512) == PAPERS[algorithm]


@pytest.mark.parametrize(
    ("algorithm", "groups", "minibatches"),
    [
        ("dapo", 128, 16),  # eight groups in each
        ("dapo", 127, 1),  # a prime number of groups
        ("dapo", 120, 15),
        ("dapo", 64, 8),
        ("dapo", 17, 1),
        ("dapo", 16, 2),
        ("dapo", 15, 1),
        ("gspo", 30, 3),
        ("gspo", 22, 2),
        ("gspo", 2, 1),
        ("grpo", 512, 1),
    ],
)
def test_every_update_keeps_eight_whole_groups_and_no_group_is_left_over(
    algorithm: str, groups: int, minibatches: int
) -> None:
    assert counted(algorithm, groups) == (1, minibatches)


def test_what_the_recipe_says_counts(tmp_path: Path) -> None:
    assert counted("dapo", 16, minibatches=8) == (1, 8)
    assert counted("ppo", 16, passes=2) == (2, 1)
    result = run_rl(tmp_path / "run", training={"steps": 1, "passes": 3, "minibatches": 2})
    assert metrics(result.folder)[-1]["updates/made"] == 6
    with pytest.raises(InputError, match=r"training\.minibatches 3 does not divide the 2 groups"):
        trainer(tmp_path / "other", training={"minibatches": 3})


@pytest.mark.parametrize(
    ("spec", "made"),
    [
        ({"base": "grpo", "updates": {"minibatches": 4}}, (1, 4)),
        ({"base": "dapo", "updates": {"passes": 2, "minibatches": 8}}, (2, 8)),
        ({"base": "dapo", "updates": {"minibatches": 16}}, None),  # the paper's own number too, once it is given
        ({"base": "dapo", "updates": {"minibatches": 3}}, None),
        ({"base": "dapo", "updates": {"passes": 2}}, (2, 1)),
        (algorithm("grpo", updates={"minibatches": 8}), (1, 8)),
        (algorithm("dapo", updates={"passes": 3}), (3, 1)),
        (algorithm("dapo", name="mine", updates={"minibatches": 3}), None),
        (merge_specs({"base": "dapo", "updates": {"passes": 2}}, {"updates": {"passes": 3}}, "grpo"), (3, 1)),
        (merge_specs({"base": "dapo", "updates": {"passes": 2}}, {"updates": {"minibatches": 2}}, "grpo"), (2, 2)),
    ],
    ids=str,
)
def test_updates_that_are_given_are_made_exactly_or_refused(spec: Any, made: tuple[int, int] | None) -> None:
    """The rule of eight groups is for the numbers of the papers; config.yaml says the same again."""
    tree = {"model": "m", "data": "d", "reward": "math", "rollout": {"group_size": 2, "batch_size": 16}}
    chosen = resolve(spec)
    config = build(RLConfig, tree | {"algorithm": spec if isinstance(spec, dict) else algorithm_spec(spec)})
    if made is None:
        with pytest.raises(
            InputError, match=r"algorithm\.updates\.minibatches \d+ does not divide the 8 groups of a batch"
        ):
            check_settings(config, chosen)
        check_settings(build(RLConfig, {**config.model_dump(), "training": {"minibatches": 2}}), chosen)
        return
    check_settings(config, chosen)
    written = settings_tree(config)["algorithm"]
    for one in (config, build(RLConfig, tree | {"algorithm": written})):
        found = updates_per_batch(one, resolve(one.algorithm))
        assert (found.passes, found.minibatches) == made


def test_a_run_that_was_given_the_number_of_its_paper_goes_on(tmp_path: Path) -> None:
    chosen = {"base": "ppo_penalty", "updates": {"minibatches": 1}}
    run_rl(tmp_path / "run", algorithm=chosen, training={"steps": 1})
    assert "minibatches: 1  # Python" in (tmp_path / "run/config.yaml").read_text()
    assert (
        metrics(run_rl(tmp_path / "run", algorithm=chosen, training={"steps": 2}, resume=True).folder)[-1]["step"] == 2
    )


@pytest.mark.parametrize("name", ["target_kl", "kl_learning_rate"])
def test_limits_on_how_far_a_batch_goes_need_a_second_update(name: str, tmp_path: Path) -> None:
    with pytest.raises(InputError, match=rf"training\.{name} has no effect: a batch makes one update"):
        trainer(tmp_path / "run", training={name: 0.01})
    trainer(tmp_path / "run", training={name: 0.01, "passes": 2}).close()


def first_mixed(completions: list[str], answer: list[str], **_: Any) -> list[float]:
    """Right and wrong by turns for the prompt whose answer is 3, else all wrong."""
    return [float(answer[0] == "3" and number % 2) for number in range(len(completions))]


def test_the_learning_rate_follows_only_what_a_batch_can_show(tmp_path: Path) -> None:
    """One update, with nothing replayed before it, begins where the old policy is; its distance of 0 says nothing."""
    near = {"kl_learning_rate": 10.0, "steps": 3}
    replay = {**near, "minibatches": 1, "passes": 1, "replay": {"groups": 1, "age": 1}}
    rows = metrics(run_rl(tmp_path / "replay", algorithm="grpo", training=replay).folder)
    assert [row["groups/replayed"] for row in rows] == [0.0, 1.0, 1.0]
    assert [row["learning_rate"] for row in rows] == pytest.approx([0.1, 0.1, 0.15])
    assert (rows[0]["approx_kl"], rows[1]["approx_kl"] > 0) == (0.0, True)
    changes: dict[str, Any] = {
        "algorithm": {"base": "grpo", "filters": "mixed_outcomes"},
        "training": {**near, "minibatches": 2},
        "rollout": {"max_attempts": 1},
        "data": ROWS[:2],
    }
    rows = metrics(run_rl(tmp_path / "one_left", reward=first_mixed, **changes).folder)
    assert [row["updates/made"] for row in rows] == [1.0, 1.0, 1.0]
    assert [row["learning_rate"] for row in rows] == [0.1, 0.1, 0.1]


def test_an_update_that_was_not_made_because_it_began_too_far_lowers_the_learning_rate(tmp_path: Path) -> None:
    limits = {"minibatches": 2, "target_kl": 1e-9, "kl_learning_rate": 1e-9}
    rows = metrics(run_rl(tmp_path / "run", algorithm="grpo", training=limits).folder)
    assert [(row["updates/made"], row["updates/stopped"]) for row in rows] == [(1.0, 1.0)] * 2
    assert [row["learning_rate"] for row in rows] == pytest.approx([0.1, 0.1 / 1.5])


def test_what_the_rollout_log_says_of_a_token_is_of_its_last_update(tmp_path: Path) -> None:
    """The second of two passes: measured at the weights that the first update left."""
    once, after = {"steps": 1, "passes": 1}, tiny()
    run_rl(tmp_path / "once", after, algorithm="grpo", training=once)
    twice = {"algorithm": "grpo", "training": {**once, "passes": 2}, "run": {"rollouts_every": 1}}
    folder = run_rl(tmp_path / "twice", **twice).folder
    table, chosen = distributions(after[0], answers(folder))
    columns = load_file(folder / "rollouts/step_1.safetensors")
    logprobs, old, ratio = (columns[f"update/{name}"] for name in ("logprobs", "old_logprobs", "ratio"))
    assert np.allclose(logprobs, table.gather(1, chosen[:, None])[:, 0].detach(), atol=1e-5)
    assert np.allclose(ratio, np.exp(logprobs - old), atol=1e-5)
    assert np.abs(ratio - 1.0).max() > 0.01
    advantages = columns["update/advantages"]
    clipped = -np.minimum(ratio * advantages, ratio.clip(0.8, 1.2) * advantages)
    assert np.allclose(columns["update/gate"], clipped, atol=1e-5)
    assert np.abs(clipped + advantages).max() > 0.01


def said(capsys: Any) -> str:
    return " ".join(capsys.readouterr().err.split())


def test_the_number_of_updates_and_a_gate_that_cannot_act_are_announced_once_and_stand_in_the_report(
    tmp_path: Path, capsys: Any
) -> None:
    result = run_rl(tmp_path / "run", quiet=False, algorithm="grpo")
    text = said(capsys)
    assert text.count("grpo: 1 update of each batch (1 pass of 1 minibatch of 2 groups)") == 1
    note = "with one update a batch every ratio is 1, so that the gate Clip does nothing"
    assert text.count(note + "; training.minibatches=2 (or training.passes=2) makes more updates") == 1
    (kept,) = json.loads((result.folder / "run.json").read_text())["notes"]
    assert kept.startswith(note)
    assert (result.folder / "report.html").read_text().count(note) == 1


@pytest.mark.parametrize(
    ("groups", "advice"),
    [
        (16, "training.minibatches=4 (or training.passes=2)"),
        (2, "training.minibatches=2 (or training.passes=2)"),
        (3, "training.minibatches=3 (or training.passes=2)"),
        (11, "training.passes=2"),
    ],
)
def test_the_note_on_an_idle_gate_names_settings_that_make_more_updates(groups: int, advice: str) -> None:
    assert more_updates(groups) == advice
    for words in re.findall(r"training\S+=\d", advice):
        tree = {"rollout": {"group_size": 4, "batch_size": 4 * groups}, "model": "m", "data": "d", "reward": "math"}
        config = build(RLConfig, apply_overrides(tree, [words]))
        updates = updates_per_batch(config, resolve("grpo"))
        assert updates.passes * updates.minibatches > 1
        check_settings(config, resolve("grpo"))


@pytest.mark.parametrize(
    ("optimizer", "parameters", "noted"),
    [({}, 2_000_000, 1), ({}, 10_000_000, 0), ({"learning_rate": 1e-4}, 2_000_000, 0)],
)
def test_a_default_learning_rate_is_noted_for_a_small_model(
    optimizer: dict[str, Any], parameters: int, noted: int
) -> None:
    config = build(RLConfig, {"model": "m", "data": "d", "reward": "math", "optimizer": optimizer})
    notes = slow_rate(config, parameters)
    assert len(notes) == noted
    assert all("default, 1e-06, with which a model of 2,000,000 parameters" in note for note in notes)


def test_the_note_on_a_default_learning_rate_stands_at_the_start_of_a_run(tmp_path: Path, capsys: Any) -> None:
    with trainer(tmp_path / "run", quiet=False, optimizer={"learning_rate": 1e-6}) as made:
        assert any("try optimizer.learning_rate=1e-3" in note for note in made.notes)
    assert "try optimizer.learning_rate=1e-3" in said(capsys)


def test_a_gate_that_acts_is_not_noted(tmp_path: Path, capsys: Any) -> None:
    result = run_rl(tmp_path / "run", quiet=False, algorithm="grpo", training={"passes": 2})
    text = said(capsys)
    assert "grpo: 2 updates of each batch (2 passes of 1 minibatch of 2 groups)" in text
    written = (result.folder / "config.yaml").read_text()
    assert "\n  minibatches: null  # in force: 1\n  passes: 2  # Python\n" in written
    assert "\ncritic: null  # in force: none, as grpo trains none\n" in written
    assert ("training", "minibatches") not in read_sources(written)
    assert "note:" not in text
    assert json.loads((result.folder / "run.json").read_text())["notes"] == []
    assert max(row["ratio/moved"] for row in metrics(result.folder)) > 0


def test_explain_says_what_stands_for_updates_and_a_critic_that_are_null() -> None:
    rollout = {"group_size": 4, "batch_size": 64}
    text = reinlm.explain("rl", "m", "d", reward="math", algorithm="ppo", rollout=rollout, training={"minibatches": 2})
    assert "\n  minibatches: 2  # Python\n  passes: null  # default; in force: 4\n" in text
    assert "\ncritic: null  # default; in force: backbone own, the policy's optimizer without warm-up\n" in text
    sft = reinlm.explain("sft", "m", "d")
    assert "in force" not in sft


def test_of_a_gate_from_outside_the_library_nothing_is_said() -> None:
    class Mine(Clip):
        """May act where the ratio is 1."""

    assert len(idle_choices(algorithm("grpo"), 1)) == 1
    assert idle_choices(algorithm("grpo", gate=Mine(0.2, 0.2)), 1) == []


def test_a_divergence_from_the_old_policy_that_is_always_0_is_noted(tmp_path: Path) -> None:
    kl = {"estimator": "k3", "anchor": "old", "coefficient": 1.0}
    with trainer(tmp_path / "run", algorithm={"base": "grpo", "gate": "none", "kl": [kl]}) as made:
        assert made.notes == ["with one update a batch the KL to the old policy is 0 and has no gradient"]
