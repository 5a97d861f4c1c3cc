"""Rejection sampling: what is kept and why, what is learned from it, and runs that go on between sampling and learning."""

from __future__ import annotations

import json
import math
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import reinlm
from reinlm.config import build
from reinlm.data import Examples
from reinlm.errors import InputError
from reinlm.loop.run import ALONE
from reinlm.models import load_policy
from reinlm.records import RewardEvent, Rollout, RolloutGroup, ScoredGroup, Segment, Task
from reinlm.runs.schema import read_groups
from reinlm.training.config import SFTConfig
from reinlm.training.rejection.config import RFTConfig
from reinlm.training.rejection.selection import KeepRule, same_answer_key, select, selection_metrics
from reinlm.training.sft import SFTRun
from tiny_runs import ROWS, local, metrics, saved, tiny, weights

# ------------------------------------------------------------------------------------------------ selection


def group(
    *answers: tuple[str, float | None], truncated: tuple[int, ...] = (), failed: tuple[int, ...] = ()
) -> ScoredGroup:
    task = Task("data[0]", "1+1=")
    segment = Segment(np.array([1, 2], np.int32), np.array([-1, 0], np.int16))
    rollouts = [
        Rollout(task, (segment,), text, i not in (*truncated, *failed), i in truncated, "stop")
        for i, (text, _) in enumerate(answers)
    ]
    events = tuple(() if reward is None else (RewardEvent("r", reward),) for _, reward in answers)
    return ScoredGroup(RolloutGroup(task, tuple(rollouts)), events)


def whys(found: ScoredGroup, rule: KeepRule) -> list[str]:
    return [verdict.why for verdict in select(found, rule)]


RIGHT = group(("2", 1.0), ("3", 0.0), (" 2 ", 1.0), ("two", 1.0), ("it is 2", 0.75), ("", 1.0), ("4", None))


@pytest.mark.parametrize(
    ("rule", "expected"),
    [
        (KeepRule(), ["kept", "reward", "duplicate", "kept", "kept", "empty", "no reward"]),
        (KeepRule(distinct="off"), ["kept", "reward", "kept", "kept", "kept", "empty", "no reward"]),
        (KeepRule(per_prompt=2), ["kept", "reward", "duplicate", "kept", "per_prompt", "empty", "no reward"]),
        (KeepRule(above=0.9), ["kept", "reward", "duplicate", "kept", "reward", "empty", "no reward"]),
        (KeepRule(above=1.0), ["reward"] * 5 + ["empty", "no reward"]),  # more than the bound, not as much
        (KeepRule("best", None), ["kept", "not best", "duplicate", "not best", "not best", "empty", "no reward"]),
        (KeepRule("best", None, 2, "off"), ["kept", "not best", "kept", "not best", "not best", "empty", "no reward"]),
        (KeepRule("best", 1.5), ["reward"] * 5 + ["empty", "no reward"]),
    ],
)
def test_every_answer_has_a_verdict(rule: KeepRule, expected: list[str]) -> None:
    assert whys(RIGHT, rule) == expected


def test_equal_rewards_keep_the_first_and_duplicates_name_the_one_in_their_place() -> None:
    flat = group(("5", 2.0), ("6", 2.0), ("7", 2.0))
    assert whys(flat, KeepRule("best", None)) == ["kept", "not best", "not best"]
    assert select(RIGHT, KeepRule())[2].of == 0


def test_cut_off_and_failed_answers_are_not_kept() -> None:
    found = group(("2", 1.0), ("3", 1.0), ("4", 1.0), truncated=(0,), failed=(1,))
    assert whys(found, KeepRule()) == ["truncated", "error", "kept"]
    assert whys(found, KeepRule(truncated=True)) == ["kept", "error", "kept"]


@pytest.mark.parametrize(
    ("one", "other", "same"),
    [
        ("So 3 * 4 = 12, and 12+1=13.", "First 3*4=12; then 12 + 1 = 13", True),
        ("3*4=12", "4*3=12", False),
        ("3*4=12", "3*4=12 and 12+1=13", False),
        ("$5.50 * 2 = $11.00 in all", "5.50*2=11.00", True),
        ("no equation", "No  equation", True),
        ("no equation", "another text", False),
    ],
)
def test_solutions_are_compared_by_their_equations(one: str, other: str, same: bool) -> None:
    assert (same_answer_key(one, "equations") == same_answer_key(other, "equations")) is same


def test_messages_are_compared_by_what_the_assistant_wrote() -> None:
    chat = (
        {"role": "assistant", "content": "A b"},
        {"role": "tool", "content": "x"},
        {"role": "assistant", "content": "c"},
    )
    assert same_answer_key(chat, "text") == "a b c"


def test_counts_of_a_selection() -> None:
    groups = [RIGHT, group(("1", 0.0))]
    found = selection_metrics(groups, [select(one, KeepRule()) for one in groups])
    assert found == {
        "rft/kept": 3.0,
        "rft/kept_ratio": 3 / 8,
        "rft/prompts_with_kept": 0.5,
        "rft/kept_reward": pytest.approx(2.75 / 3),
        "rft/rejected/reward": 2.0,
        "rft/rejected/duplicate": 1.0,
        "rft/rejected/empty": 1.0,
        "rft/rejected/no_reward": 1.0,
    }


# ------------------------------------------------------------------------------------------------ runs

CALLS: list[int] = []


def even(completions: list[str], **_: Any) -> list[float]:
    """1 for an answer that ends in an even digit."""
    CALLS.append(len(completions))
    return [float(text[-1:] in ("0", "2", "4", "6", "8")) for text in completions]


SETTINGS: dict[str, Any] = {
    "rollout": {"group_size": 4, "batch_size": 16, "max_new_tokens": 4, "stop_strings": ["2", "4", "8"]},
    "training": {"batch_size": 4},
    "optimizer": {"learning_rate": 0.02},
    "run": {"save_every": 0, "trackers": []},
    "seed": 3,
    "quiet": True,
}


def rft(folder: Path, model: Any = None, data: Any = ROWS, reward: Any = even, **changes: Any) -> Any:
    merged = {**SETTINGS, **{k: {**SETTINGS.get(k, {}), **v} if isinstance(v, dict) else v for k, v in changes.items()}}
    if reward is not None:
        merged["reward"] = local(reward)
    return reinlm.RFTTrainer(model or tiny(), data, output=folder, **merged)


def sft(examples: Examples, model: Any = None, seed: int = 3) -> Any:
    """The policy that SFT makes of these examples."""
    sections = {name: SETTINGS[name] for name in ("training", "optimizer")}
    config = build(SFTConfig, {"model": "tiny", "data": "none", "seed": seed, **sections})
    run = SFTRun(config, load_policy(model or tiny()), examples, None, {})
    for step in range(run.total_steps):
        run.step(step + 1, ALONE)
    return run.policy


def examples_of(pairs: list[tuple[list[int], list[int]]]) -> Examples:
    """Of (tokens of the prompt, tokens of the answer)."""
    flags = [[False] * len(prompt) + [True] * len(answer) for prompt, answer in pairs]
    offsets = np.cumsum([0, *map(len, flags)])
    ids = [token for prompt, answer in pairs for token in (*prompt, *answer)]
    return Examples(
        [str(n) for n in range(len(pairs))], np.array(ids), np.array([flag for row in flags for flag in row]), offsets
    )


def kept_samples(folder: Path, iteration: int = 1, part: str = "part") -> Examples:
    """The sampled tokens of the kept answers, after the tokens of their prompt as the data have it."""
    home = folder / f"samples/iteration_{iteration}"
    files = sorted(home.glob(f"{part}_?.jsonl"))
    rollouts = [rollout for file in files for one in read_groups(file)[0] for rollout in one.group.rollouts]
    selection = [
        row for row in rows_of(folder, f"iteration_{iteration}/selection_1") if row["hinted"] == (part != "part")
    ]
    _, tokenizer = tiny()
    return examples_of(
        [
            (tokenizer(row["prompt"])["input_ids"], rollout.segments[0].chosen_ids.tolist())
            for rollout, row in zip(rollouts, selection, strict=True)
            if row["kept"]
        ]
    )


def rows_of(folder: Path, name: str) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (folder / f"samples/{name}.jsonl").read_text().splitlines()]


def kept_rows(folder: Path, iteration: int = 1, passed: int = 1) -> list[dict[str, Any]]:
    rows = rows_of(folder, f"iteration_{iteration}/kept_{passed}")
    return [{"prompt": row["prompt"], "completion": row["completion"]} for row in rows]


def same_weights(one: Any, other: Any) -> bool:
    ours, theirs = weights(one.model), weights(other.model)
    return all(torch.allclose(ours[name], theirs[name], rtol=1e-12, atol=1e-12) for name in theirs)


def test_one_iteration_is_sft_on_what_it_kept(tmp_path: Path) -> None:
    policy = rft(tmp_path / "rft").train().policy
    kept = kept_rows(tmp_path / "rft")
    selection = rows_of(tmp_path / "rft", "iteration_1/selection_1")
    assert len(selection) == 4 * len(ROWS)
    assert [row["completion"] for row in selection if row["kept"]] == [row["completion"] for row in kept]
    assert all(row["reward"] == 1.0 and row["completion"][-1] in "02468" for row in selection if row["kept"])
    assert len({(row["prompt"], row["completion"]) for row in kept}) == len(kept)
    reasons = {row["why"].split(" of")[0] for row in selection}
    assert {"kept", "reward", "duplicate", "truncated"} <= reasons
    assert not same_weights(policy, load_policy(tiny()))
    first = metrics(tmp_path / "rft")[0]
    assert first["rft/kept"] == len(kept)
    assert first["samples"] == len(selection)


def test_what_is_learned_are_the_sampled_tokens_of_kept_answers(tmp_path: Path) -> None:
    policy = rft(tmp_path / "rft").train().policy
    assert same_weights(policy, sft(kept_samples(tmp_path / "rft")))


def test_each_iteration_of_rest_em_learns_from_the_base_model(tmp_path: Path) -> None:
    run = rft(tmp_path / "rft", method="rest_em").train()
    assert kept_rows(tmp_path / "rft", 1) != kept_rows(tmp_path / "rft", 2)
    assert same_weights(run.policy, sft(kept_samples(tmp_path / "rft", 2), seed=4))
    logged = [row["rft/iteration"] for row in metrics(tmp_path / "rft") if "rft/iteration" in row]
    assert sorted(set(logged)) == [1.0, 2.0]


def test_raft_goes_on_from_the_weights_and_keeps_the_best_of_each_prompt(tmp_path: Path) -> None:
    run = rft(tmp_path / "rft", method="raft", iterations=2).train()
    first = kept_rows(tmp_path / "rft", 1)
    assert len({row["prompt"] for row in first}) == len(first) > 8
    middle = sft(kept_samples(tmp_path / "rft", 1))
    assert same_weights(run.policy, sft(kept_samples(tmp_path / "rft", 2), (middle.model, middle.tokenizer), seed=4))
    bound = metrics(tmp_path / "rft")[0]["rft/kl_bound"]
    assert bound == pytest.approx(math.log(4) - 3 / 4)


def graded(completions: list[str], **_: Any) -> list[float]:
    return [sum(int(c) for c in text if c.isdigit()) / (9.0 * max(len(text), 1)) for text in completions]


def test_rising_bounds_learn_again_from_fewer_of_the_same_answers(tmp_path: Path) -> None:
    CALLS.clear()
    trainer = rft(tmp_path / "rft", reward=graded, keep={"above": [0.2, 0.5], "truncated": True}, training={"steps": 2})
    trainer.train()
    one, two = (rows_of(tmp_path / "rft", f"iteration_1/kept_{number}") for number in (1, 2))
    assert len(one) > len(two) > 0
    assert all(row in one for row in two)
    assert min(row["reward"] for row in two) > 0.5 >= min(row["reward"] for row in one) > 0.2
    assert trainer.run.total_steps == 4
    logged = metrics(tmp_path / "rft")
    assert [("samples" in row, "rft/kept" in row) for row in logged] == [
        *[(True, True), (False, False), (False, True), (False, False)]
    ]


def knows(completions: list[str], prompts: list[str], **_: Any) -> list[float]:
    """Right where the prompt holds a hint."""
    return [float(prompt.startswith("9")) for prompt in prompts]


def test_a_hint_helps_to_answer_and_is_not_learned(tmp_path: Path) -> None:
    run = rft(tmp_path / "rft", reward=knows, method="star", iterations=1, hint="9{prompt}").train()
    rows = rows_of(tmp_path / "rft", "iteration_1/selection_1")
    kept = kept_rows(tmp_path / "rft")
    assert {row["hinted"] for row in rows if row["kept"]} == {True}
    assert {row["prompt"] for row in kept} <= {row["prompt"] for row in ROWS}  # without the hint
    assert same_weights(run.policy, sft(kept_samples(tmp_path / "rft", part="hinted")))
    found = metrics(tmp_path / "rft")[0]
    assert (found["rft/kept"], found["rft/hinted"], found["rft/hinted_kept"]) == (0.0, 64.0, len(kept))


STORED = [
    {"prompt": row["prompt"], "completion": text, "reward": float(len(text))}
    for row in ROWS[:6]
    for text in ("2", "34", "567", "34")
]


def test_settings_of_sampling_are_refused_where_nothing_is_sampled(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"rollout\.group_size has no effect with answers data"):
        rft(tmp_path / "refused", data=STORED, reward=None, answers="data")


OPTIONS = {name: SETTINGS[name] for name in ("training", "optimizer", "run", "seed", "quiet")}


def stored(folder: Path, **changes: Any) -> Any:
    return reinlm.rft(tiny(), STORED, output=folder, answers="data", **{**OPTIONS, **changes})


def test_stored_answers_with_rewards_of_their_own(tmp_path: Path) -> None:
    run = stored(tmp_path / "rft", keep={"above": 1.5})
    kept = kept_rows(tmp_path / "rft")
    assert [row["completion"] for row in kept[:2]] == ["34", "567"]
    assert len(kept) == 12
    assert same_weights(run.policy, reinlm.sft(tiny(), kept, output=tmp_path / "sft", **OPTIONS).policy)
    best = stored(tmp_path / "best", keep={"rule": "best"}, reward=local(even))
    assert {row["completion"] for row in kept_rows(tmp_path / "best")} == {"2"}
    assert best.summary["steps"] == 2
    with pytest.raises(InputError, match=r"data\[1\]: column 'reward' holds None"):
        reinlm.rft(
            tiny(),
            [STORED[0], {"prompt": "1+1=", "completion": "2"}],
            output=tmp_path / "no",
            answers="data",
            quiet=True,
        )
    with pytest.raises(InputError, match="answers=data needs rows with prompt and completion"):
        reinlm.rft(tiny(), [{"text": "1+1=2"}], output=tmp_path / "text", answers="data", quiet=True)


# ------------------------------------------------------------------------------------------------ going on


class Killed(BaseException):
    """No error that a run takes for one of a callback."""


class Dies(reinlm.Callback):
    """Raises between sampling and learning, `after` so many batches."""

    def __init__(self, after: int) -> None:
        self.left = after

    def on_batch_prepared(self, event: Any, control: Any) -> None:
        self.left -= 1
        if self.left < 0:
            raise Killed


@pytest.mark.parametrize("after", [0, 5])
def test_a_run_that_ended_between_sampling_and_learning_does_not_sample_again(after: int, tmp_path: Path) -> None:
    settings: dict[str, Any] = {"iterations": 2, "start": "base", "training": {"steps": 5, "batch_size": 4}}
    settings |= {"run": {"save_every": 3, "trackers": []}, "hint": "1+{prompt}"}
    model = saved(tmp_path / "model")
    whole = rft(tmp_path / "whole", model, **settings).train()
    with pytest.raises(Killed):
        rft(tmp_path / "killed", model, callbacks=[Dies(after)], **settings).train()
    CALLS.clear()
    again = rft(tmp_path / "killed", model, resume=True, **settings)
    seen = len(CALLS)
    result = again.train()
    assert metrics(tmp_path / "killed") == metrics(tmp_path / "whole")
    ours, theirs = weights(result.policy.model), weights(whole.policy.model)
    assert all(torch.equal(ours[name], theirs[name]) for name in theirs)
    others = 0 if after else 1  # iterations that are sampled after the kill
    assert (len(CALLS) - seen > 0) is bool(others)
    for file in (tmp_path / "whole/samples").rglob("*.jsonl"):
        assert (tmp_path / "killed" / file.relative_to(tmp_path / "whole")).read_text() == file.read_text()


def test_samples_of_other_weights_are_sampled_again(tmp_path: Path) -> None:
    settings: dict[str, Any] = {"training": {"steps": 2}}
    with pytest.raises(Killed):
        rft(tmp_path / "run", saved(tmp_path / "model"), callbacks=[Dies(0)], **settings).train()
    before = rows_of(tmp_path / "run", "iteration_1/selection_1")
    saved(tmp_path / "model", seed=1)
    rft(tmp_path / "run", str(tmp_path / "model"), resume=True, **settings).train()
    assert rows_of(tmp_path / "run", "iteration_1/selection_1") != before


# ------------------------------------------------------------------------------------------------ refused, or nothing left


def test_a_run_ends_where_nothing_is_kept(tmp_path: Path) -> None:
    run = rft(tmp_path / "run", keep={"above": 2.0}).train()
    assert run.summary["stopped"] == "iteration 1 kept no answer with a reward above 2: nothing to learn from"
    assert len(rows_of(tmp_path / "run", "iteration_1/selection_1")) == 64


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"keep": {"count": 2}}, 'keep.count 2 has no effect with keep.rule "above"'),
        ({"keep": {"rule": "best", "per_prompt": 2}}, 'keep.per_prompt 2 has no effect with keep.rule "best"'),
        ({"keep": {"rule": "best", "count": 4}}, "keep.count 4 keeps every one of rollout.group_size 4 answers"),
        ({"keep": {"above": [0.5, 0.5]}}, "must rise"),
        ({"keep": {"above": []}}, "needs finite numbers"),
        ({"start": "base"}, "start base has no effect: one iteration begins from the model as it is"),
        ({"method": "star"}, "method star tries again with a hint: set hint"),
        ({"hint": "{answer}"}, "must hold the prompt"),
        ({"hint": "{prompt"}, "hint: cannot read"),
        ({"hint": "{prompt}{nothing}"}, "hint: data\\[0\\]: .*nothing"),
        ({"rollout": {"temperature": 0.0}}, "rollout.temperature 0 gives 4 equal answers"),
        ({"rollout": {"batch_size": 2}}, "rollout.batch_size 2 holds no group of 4 answers"),
        ({"run": {"rollouts_every": 5}}, "run.rollouts_every has no effect: rft writes every answer to samples/"),
        ({"iterations": 2, "answers": "data"}, "answers data are there once, and 2 iterations sample anew"),
        ({"method": "best"}, "method"),
        ({"reward": None}, "'reward' is required"),
    ],
)
def test_what_is_refused(changes: dict[str, Any], message: str, tmp_path: Path) -> None:
    with pytest.raises(InputError, match=message):
        rft(tmp_path / "run", **changes)
    assert not (tmp_path / "run").exists()


def test_a_hint_is_for_one_question(tmp_path: Path) -> None:
    from reinlm.environments import Question

    class Twice(Question):
        """Another environment."""

    with pytest.raises(InputError, match="hint has no place in an environment of several turns"):
        rft(tmp_path / "run", hint="1{prompt}", environment=Twice)


def test_explain_says_what_the_method_sets() -> None:
    text = reinlm.explain("rft", "MODEL", "rows.jsonl", reward="math", method="rest_em")
    assert "per_prompt: null" in text
    assert "in force: 10" in text
    assert "in force: base" in text
    assert replace(KeepRule(), per_prompt=10) == reinlm_rule("rest_em")


def reinlm_rule(method: str) -> KeepRule:
    return build(RFTConfig, {"model": "m", "data": "d", "reward": "math", "method": method}).rule
