"""`reinlm dpo` with a reward: which pairs become of sampled answers, what a step learns from them, and what is refused."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import reinlm
from reinlm.algorithms import PREFERENCES, preference_algorithm
from reinlm.errors import InputError
from reinlm.records import RewardEvent, Rollout, RolloutGroup, ScoredGroup, Segment, Task
from reinlm.runs import read_metrics, without_clocks
from reinlm.runs.schema import read_groups
from reinlm.training.sampled_pairs import PairRule, paired_batch
from tiny_runs import ROWS, graded, local, log_softmax, saved, tiny, weights

SETTINGS: dict[str, Any] = {
    "rollout": {"group_size": 4, "batch_size": 32, "max_new_tokens": 4},
    "training": {"steps": 3},
    "optimizer": {"learning_rate": 1e-2},
    "run": {"save_every": 0, "rollouts_every": 1, "trackers": []},
    "seed": 3,
    "quiet": True,
}


def trainer(folder: Path, model: Any = None, data: Any = ROWS, reward: Any = graded, **changes: Any) -> Any:
    merged = {**SETTINGS, **{k: {**SETTINGS.get(k, {}), **v} if isinstance(v, dict) else v for k, v in changes.items()}}
    if reward is not None:
        merged["reward"] = local(reward)
    return reinlm.DPOTrainer(tiny() if model is None else model, data, output=folder, **merged)


def steps(folder: Path, count: int = 3, **changes: Any) -> list[dict[str, float]]:
    with trainer(folder, **changes) as made:
        return [without_clocks(made.step()) for _ in range(count)]


# ------------------------------------------------------------------------------------------------ pairs


@pytest.mark.parametrize(
    ("rule", "rewards", "pairs"),
    [
        (PairRule(), [0.5, 1.0, 0.0], [(1, 2)]),
        (PairRule(), [1.0, 0.0, 1.0, 0.0], [(0, 1)]),
        (PairRule(), [1.0, 1.0, 1.0], []),
        (PairRule(), [1.0, None, 0.0], [(0, 2)]),
        (PairRule(), [1.0, None], []),
        (PairRule(), [0.1 + 0.2, 0.3], []),
        (PairRule(), [float("inf"), 1.0], []),
        (PairRule(min_margin=0.5), [1.0, 0.5], [(0, 1)]),
        (PairRule(min_margin=0.5), [1.0, 0.6], []),
        (PairRule("all"), [0.5, 1.0, 0.0, 0.5], [(0, 2), (1, 0), (1, 2), (1, 3), (3, 2)]),
        (PairRule("all", min_margin=0.75), [0.5, 1.0, 0.0, 0.5], [(1, 2)]),
    ],
)
def test_the_higher_reward_is_chosen(rule: PairRule, rewards: list[Any], pairs: list[tuple[int, int]]) -> None:
    assert rule.pairs(rewards) == pairs


def group_of(
    name: str, rewards: list[float | None], lengths: list[int], truncated: tuple[int, ...] = ()
) -> ScoredGroup:
    """Answers whose tokens are their number, after one token of a prompt."""
    task = Task(name, "1")
    rollouts = []
    for number, length in enumerate(lengths):
        segment = Segment(np.array([9] + [number] * length, np.int32), np.array([-1] + [0] * length, np.int16))
        cut = number in truncated
        rollouts.append(
            Rollout(task, (segment,), "", terminated=not cut, truncated=cut, reason="length" if cut else "stop")
        )
    events = tuple(() if reward is None else (RewardEvent("r", reward),) for reward in rewards)
    return ScoredGroup(RolloutGroup(task, tuple(rollouts)), events)


def test_a_batch_holds_the_answers_in_pairs_with_the_difference_of_their_rewards() -> None:
    groups = [group_of("a", [0.5, 3.0, 1.0], [2, 1, 1]), group_of("b", [2.0, None, 1.5], [1, 1, 3])]
    batch, items = paired_batch(groups, PairRule())
    assert batch.token_ids.tolist() == [9, 0, 0, 9, 1, 9, 0, 9, 2, 2, 2]
    assert batch.layout.group_of_episode.tolist() == [0, 0, 1, 1]
    assert batch.temperature is None
    assert items.second is not None
    assert items.margin is not None
    assert (items.first.tolist(), items.second.tolist()) == ([1, 2], [0, 3])
    assert (items.weight.tolist(), items.margin.tolist()) == ([0.5, 0.5], [2.5, 0.5])
    _, every = paired_batch(groups, PairRule("all"))
    assert every.second is not None
    assert [*zip(every.first.tolist(), every.second.tolist(), strict=True)] == [(1, 0), (1, 2), (2, 0), (3, 4)]
    assert every.weight.tolist() == pytest.approx([1 / 6] * 3 + [1 / 2])


def test_an_answer_without_an_end_is_penalised_before_pairs_are_made() -> None:
    group = group_of("a", [1.0, 0.5, 0.75], [1, 1, 1], truncated=(0,))
    assert PairRule()(group) == [(0, 1)]
    assert PairRule(missing_end_penalty=1.0).rewards(group) == [0.0, 0.5, 0.75]
    assert PairRule(missing_end_penalty=1.0)(group) == [(2, 0)]


def test_answers_without_a_token_and_in_several_contexts() -> None:
    assert PairRule().rewards(group_of("a", [1.0, 0.0], [0, 1])) == [None, 0.0]
    group = group_of("a", [1.0, 0.0], [1, 1])
    first, second = group.group.rollouts
    twice = Rollout(first.task, first.segments * 2, first.completion, terminated=True, truncated=False, reason="stop")
    broken = ScoredGroup(RolloutGroup(group.group.task, (twice, second)), group.events)
    with pytest.raises(InputError, match="a: an answer stands in 2 contexts"):
        paired_batch([broken], PairRule())


# ------------------------------------------------------------------------------------------------ runs


@pytest.mark.parametrize("algorithm", ["dpo", "ipo"])
def test_a_step_is_the_loss_of_the_sampled_pairs(algorithm: str, tmp_path: Path) -> None:
    """Worked out from the rollout log with a reference of other weights, at temperature 1 whatever was sampled at."""
    other = saved(tmp_path / "other", seed=1)
    (row,) = steps(tmp_path / "run", 1, algorithm=algorithm, reference=other, rollout={"temperature": 0.7})
    groups, _ = read_groups(tmp_path / "run" / "rollouts" / "step_1.jsonl")
    assert [len(group.group.rollouts) for group in groups] == [4] * 8
    models = tiny(0)[0], tiny(1)[0]
    h, margins, sides = [], [], {"chosen": 0.0, "rejected": 0.0}
    for group in groups:
        rewards = [graded([str(rollout.completion)])[0] for rollout in group.group.rollouts]
        assert list(group.returns) == pytest.approx(rewards)
        best, worst = int(np.argmax(rewards)), int(np.argmin(rewards))
        assert rewards[best] > rewards[worst]
        margins.append(rewards[best] - rewards[worst])
        ratios = []
        for side, place in (("chosen", best), ("rejected", worst)):
            (segment,) = group.group.rollouts[place].segments
            ids = segment.token_ids.tolist()
            places = np.flatnonzero(segment.turns >= 0)
            policy, reference = (
                float(sum(log_softmax(model, ids)[place - 1, ids[place]] for place in places)) for model in models
            )
            sides[side] += policy / 8
            ratios.append(policy - reference)
        h.append(ratios[0] - ratios[1])
    expected = np.log1p(np.exp(-0.1 * np.array(h))) if algorithm == "dpo" else None
    if expected is not None:
        assert row["loss"] == pytest.approx(expected.mean(), rel=1e-6)
    assert row["logprobs/chosen"] == pytest.approx(sides["chosen"], rel=1e-6)
    assert row["logprobs/rejected"] == pytest.approx(sides["rejected"], rel=1e-6)
    assert (row["pairs"], row["groups/dropped"]) == (8.0, 0.0)
    assert row["pairs/reward_margin"] == pytest.approx(np.mean(margins))


@pytest.mark.parametrize("name", sorted(name for name in PREFERENCES if preference_algorithm(name).takes == "pairs"))
def test_every_loss_of_pairs_learns_from_sampled_ones(name: str, tmp_path: Path) -> None:
    (row,) = steps(tmp_path / "run", 1, algorithm=name, rollout={"batch_size": 16})
    assert np.isfinite(row["loss"])
    assert row["grad_norm"] > 0


def large(completions: list[str], **_: Any) -> list[float]:
    """The share of digits above 4."""
    return [sum(c in "56789" for c in text) / 4 for text in completions]


def test_the_reward_of_a_rule_rises(tmp_path: Path) -> None:
    rows = steps(tmp_path / "run", 20, reward=large, training={"steps": 20})
    first, last = (np.mean([row["reward"] for row in part]) for part in (rows[:3], rows[-3:]))
    assert last > first + 0.25


def test_prompts_whose_answers_tie_are_left_out_and_counted(tmp_path: Path) -> None:
    def by_prompt(completions: list[str], prompts: list[str], **_: Any) -> list[float]:
        return [float(text == completions[0]) if prompts[0][0] in "13" else 1.0 for text in completions]

    with trainer(tmp_path / "run", reward=by_prompt, rollout={"batch_size": 64}) as made:
        row = made.step()
    assert row["pairs"] + row["groups/dropped"] == 16
    assert 8 <= row["groups/dropped"] < 16


def test_a_run_ends_where_every_answer_ties_and_makes_no_update(tmp_path: Path) -> None:
    before = tiny()
    kept = weights(before[0])
    with trainer(
        tmp_path / "run", before, reward=lambda completions, **_: [1.0] * len(completions), training={"steps": 9}
    ) as made:
        result = made.train()
    assert result.summary["stopped"] == "the answers to 16 prompts in a row all tie: there is no pair to learn from"
    assert [row["groups/dropped"] for row in read_metrics(tmp_path / "run" / "metrics.jsonl") if "reward" in row] == [
        8,
        8,
    ]
    assert all(torch.equal(value, kept[name]) for name, value in weights(made.policy.model).items())


def test_many_prompts_are_learned_from_in_several_updates(tmp_path: Path) -> None:
    """Iterative DPO: one batch of 16 prompts, an update on each 4 of them, the last one with the rate's end."""
    with trainer(tmp_path / "run", rollout={"batch_size": 64}, training={"steps": 1, "batch_size": 4}) as made:
        assert made.run.updates == 4
        made.step()
        assert made.run.version == 4


def test_weights_do_not_depend_on_micro_batches(tmp_path: Path) -> None:
    rows = [
        steps(tmp_path / name, 2, pairs={"choose": "all"}, training=changes)
        for name, changes in (("one", {}), ("other", {"micro_batch_tokens": 24}))
    ]
    for one, other in zip(*rows, strict=True):
        assert one == pytest.approx(other, rel=1e-6, abs=1e-9)


def test_the_reference_stays_as_it_was(tmp_path: Path) -> None:
    with trainer(tmp_path / "run") as made:
        before = weights(made.run.updater.reference.weights)
        for _ in range(3):
            made.step()
        after = weights(made.run.updater.reference.weights)
        assert all(torch.equal(value, after[name]) for name, value in before.items())
        assert any(not torch.equal(value, before[name]) for name, value in weights(made.policy.model).items())


def test_a_margin_weight_reads_the_difference_of_rewards(tmp_path: Path) -> None:
    """At the first step h = 0, so that the loss is the mean of -log σ(-w · margin)."""
    (row,) = steps(tmp_path / "run", 1, algorithm={"base": "dpo", "margin_weight": 2.0})
    groups, _ = read_groups(tmp_path / "run" / "rollouts" / "step_1.jsonl")
    rewards = [[graded([str(rollout.completion)])[0] for rollout in group.group.rollouts] for group in groups]
    margins = np.array([max(one) - min(one) for one in rewards])
    assert row["loss"] == pytest.approx(np.log1p(np.exp(2.0 * margins)).mean())


def test_evaluation_samples_and_scores_answers(tmp_path: Path) -> None:
    with trainer(tmp_path / "run", eval_data=ROWS[:4], evaluation={"samples": 3}) as made:
        found = made.evaluate()
    assert 0 < found["eval/eval/reward"] < 1
    assert "eval/eval/pass@2" in found


# ------------------------------------------------------------------------------------------------ going on

SCRIPT = """
import sys, time
sys.path.insert(0, {tests!r})
import reinlm
from test_training_online_dpo import SETTINGS, ROWS, local, graded
settings = {{**SETTINGS, **{changes!r}}}
with reinlm.DPOTrainer({model!r}, ROWS, output={folder!r}, reward=local(graded), **settings) as made:
    while not made.over:
        made.step()
        print(made.loop.done, flush=True)
        if made.loop.done == 3:
            time.sleep(600)
"""


@pytest.mark.parametrize(
    "changes",
    [
        {},
        {"algorithm": "ipo", "training": {"steps": 5, "reference_refresh": {"every": 2, "mix": 0.5}}},
        {"rollout": {"group_size": 4, "batch_size": 32, "max_new_tokens": 4, "async_level": 1}},
    ],
    ids=["dpo", "refreshed", "async"],
)
def test_a_run_that_is_killed_and_goes_on_ends_bit_for_bit_as_one_that_is_not(
    changes: dict[str, Any], tmp_path: Path
) -> None:
    """Killed by SIGKILL within a process of its own after step 3, with its newest checkpoint at step 2."""
    model = saved(tmp_path / "model")
    settings = {"training": {"steps": 5}, "run": {**SETTINGS["run"], "save_every": 2}, **changes}
    with trainer(tmp_path / "whole", model, **settings) as whole:
        whole.train()
    script = SCRIPT.format(
        tests=str(Path(__file__).parent), changes=settings, model=model, folder=str(tmp_path / "parts")
    )
    paths = os.pathsep.join([str(Path(__file__).parents[1]), *sys.path])
    process = subprocess.Popen(
        [sys.executable, "-c", script], stdout=subprocess.PIPE, text=True, env={**os.environ, "PYTHONPATH": paths}
    )
    assert process.stdout is not None
    while process.stdout.readline().strip() != "3":
        assert process.poll() is None
        time.sleep(0.01)
    process.send_signal(signal.SIGKILL)
    process.wait()
    process.stdout.close()
    with trainer(tmp_path / "parts", model, resume=True, **settings) as again:
        again.train()
    one, other = (weights(made.policy.model) for made in (whole, again))
    assert all(torch.equal(value, other[key]) for key, value in one.items())
    logs = [read_metrics(tmp_path / part / "metrics.jsonl") for part in ("whole", "parts")]
    rows = [[without_clocks(row) for row in log] for log in logs]
    assert rows[0] == rows[1]
    texts = [(tmp_path / part / "rollouts" / "step_5.jsonl").read_text() for part in ("whole", "parts")]
    assert texts[0] == texts[1]


# ------------------------------------------------------------------------------------------------ what is refused


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"algorithm": "kto"}, "algorithm kto learns from labelled answers, and sampled answers become pairs"),
        ({"algorithm": "online_dpo"}, "algorithm 'online_dpo' is no loss"),
        ({"algorithm": "grpo"}, "learns from rewards, not from judged answers"),
        ({"max_tokens": 9}, "max_tokens has no effect with a reward"),
        ({"training": {"reference_cache": "x"}}, "training.reference_cache has no effect with a reward"),
        ({"data": {"path": ROWS, "min_margin": 0.5}}, "data.min_margin has no effect with a reward"),
        ({"data": {"path": ROWS, "on_long_prompt": "cut"}}, "data.on_long_prompt has no effect with a reward"),
        ({"rollout": {"temperature": 0}}, "rollout.temperature 0 gives 4 equal answers to a prompt"),
        ({"rollout": {"group_size": 1}}, "rollout.group_size"),
        ({"rollout": {"batch_size": 128}}, "a batch of 32 groups needs as many prompts, and the data hold 16"),
        (
            {"reward": None},
            "has no column 'chosen' (columns: answer, prompt), and nothing judges answers to its prompts",
        ),
    ],
)
def test_what_does_not_belong_together_is_refused(changes: Any, message: str, tmp_path: Path) -> None:
    changes = {**({"rollout": {}} if changes.get("reward", ...) is ... else {}), **changes}
    data = changes.pop("data", ROWS)
    if "reward" in changes:
        changes["rollout"] = {"group_size": 2, "batch_size": 64, "max_new_tokens": 256}
        changes["run"] = {"rollouts_every": 10}
    with pytest.raises(InputError) as caught:
        trainer(tmp_path / "run", data=data, **changes)
    assert message in str(caught.value)
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"rollout": {"group_size": 4}}, "rollout.group_size has no effect without a reward"),
        ({"pairs": {"choose": "all"}}, "pairs.choose has no effect without a reward"),
        ({"evaluation": {"samples": 4}, "eval_data": [{}]}, "evaluation.samples has no effect without a reward"),
    ],
)
def test_settings_of_sampling_are_refused_where_nothing_is_sampled(changes: Any, message: str, tmp_path: Path) -> None:
    rows = [{"prompt": "1=", "chosen": "2", "rejected": "3"}]
    changes = {**changes, **({"eval_data": rows} if "eval_data" in changes else {})}
    with pytest.raises(InputError) as caught:
        reinlm.DPOTrainer(tiny(), rows, output=tmp_path / "run", quiet=True, **changes)
    assert message in caught.value.message


def test_a_run_says_what_it_samples(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with trainer(tmp_path / "run", quiet=False) as made:
        made.step()
    said = capsys.readouterr().err
    assert "each step samples 4 answers to 8 of 16 prompts, and makes 1 update of their pairs" in said
    saved_config = (tmp_path / "run" / "config.yaml").read_text()
    assert "choose: best_worst" in saved_config
    assert json.loads((tmp_path / "run" / "run.json").read_text())["kind"] == "dpo"


FAILING = """
class Failing:
    def reset(self, task):
        self.wrong = task.id == "data[0]"
        return None

    def step(self, action):
        if self.wrong:
            raise ValueError("no such room")
        return None, 1.0 * len(action.text), True, False, {}
"""


def test_a_failure_of_the_environment_is_said(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "failing.py").write_text(FAILING)
    with trainer(
        tmp_path / "run",
        reward=None,
        environment=f"{tmp_path / 'failing.py'}:Failing",
        rollout={"on_environment_error": "skip", "batch_size": 64},
        quiet=False,
    ) as made:
        made.step()
    said = capsys.readouterr().err
    assert "note: step 1: 4 episodes ended by an error, the first: " in said and "no such room" in said
