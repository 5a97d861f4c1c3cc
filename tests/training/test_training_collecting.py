"""Batches that are sampled one step ahead: from which weights, corrected how, and beside what."""

from __future__ import annotations

import contextlib
import copy
import threading
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import reinlm
from reinlm.config import build
from reinlm.data import DataConfig, RowOrder, build_renderer, load_tasks
from reinlm.environments import Action, StepResult
from reinlm.errors import InputError
from reinlm.rewards import build_rewards
from reinlm.rollouts import Episodes, HFEngine, Sampling, Source
from reinlm.runs.schema import read_groups
from reinlm.training.collecting import computing_beside, half_the_threads
from reinlm.training.config import RLConfig
from reinlm.training.off_policy import run_algorithm
from tiny_runs import ROWS, change, graded, metrics, run_rl, saved, tiny, trainer, weights

AHEAD: dict[str, Any] = {"async_level": 1}
GRPO: dict[str, Any] = {"base": "grpo", "kl": None}
LOGGED: dict[str, Any] = {"rollouts_every": 1}
CAP = 2.0
SHORT_TURNS: dict[str, Any] = {"stop_strings": list("0123456789+=")}
"""A turn is a character."""


# ------------------------------------------------------------------------------------------------ which weights


def sampled_by(model: Any, tokenizer: Any, order: RowOrder, step: int, version: int) -> Any:
    """The batch of a step as a plain loop samples it, from a copy of a model."""
    tasks = load_tasks(DataConfig(path=ROWS), tokenizer, max_prompt_tokens=None).items
    engine = HFEngine(copy.deepcopy(model), tokenizer, pad_id=tokenizer.pad_token_id)
    engine.update(None, version)
    stops = (tokenizer.eos_token_id,)
    sampling = Sampling(max_new_tokens=4, stop_token_ids=stops)
    episodes = Episodes(engine, build_renderer(DataConfig(path=ROWS), tokenizer), sampling, seed=3)
    with build_rewards(graded, time_limit=None) as rewards:
        return Source(episodes, tasks, order, rewards, groups=2, group_size=4).collect(step).kept


def logprobs(model: Any, rollout: Any) -> torch.Tensor:
    (segment,) = rollout.segments
    ids = torch.tensor(segment.token_ids[None].astype(np.int64))
    table = torch.log_softmax(model(ids).logits[0, :-1], dim=-1)
    return table[segment.positions - 1].gather(1, ids[0, segment.positions, None])[:, 0]


def plain_update(model: Any, groups: Any, rate: float) -> torch.Tensor:
    """GRPO with truncated importance sampling of single tokens, and one step of gradient descent; the weights of tokens."""
    losses, weighed = [], []
    for group in groups:
        rewards = np.array(group.returns)
        advantages = (rewards - rewards.mean()) / (rewards.std() + 1e-6)
        for rollout, advantage in zip(group.group.rollouts, advantages, strict=True):
            mine = logprobs(model, rollout)
            drawn = torch.tensor(rollout.segments[0].columns["rollout_logprobs"]).double()
            weight = (mine.detach() - drawn).exp().clamp(max=CAP)
            losses.append((weight * (mine - mine.detach()).exp() * -advantage).mean())
            weighed.append(weight)
    torch.stack(losses).mean().backward()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter -= rate * parameter.grad
            parameter.grad = None
    return torch.cat(weighed)


def test_a_run_is_that_of_a_plain_loop_that_samples_from_weights_one_update_old(tmp_path: Path) -> None:
    (model, tokenizer), rate = tiny(), 0.9
    held, logged = [copy.deepcopy(model)], []  # the weights after 0, 1, … updates
    with trainer(
        tmp_path / "run",
        (model, tokenizer),
        algorithm=GRPO,
        rollout=AHEAD,
        training={"steps": 4, "micro_batch_tokens": 24},
        optimizer={"learning_rate": rate},
        run=LOGGED,
    ) as run:
        for _ in range(4):
            logged.append(run.step())
            held.append(copy.deepcopy(model))
    order = RowOrder(len(ROWS), seed=3)
    for step in range(1, 5):
        version = max(step - 2, 0)
        expected = sampled_by(held[version], tokenizer, order, step, version)
        found, _ = read_groups(tmp_path / f"run/rollouts/step_{step}.jsonl")
        for mine, theirs in zip(found, expected, strict=True):
            assert [one.segments for one in mine.group.rollouts] == [one.segments for one in theirs.group.rollouts]
            assert {one.versions for one in mine.group.rollouts} == {(version, version)}
        again = copy.deepcopy(held[step - 1])
        weighed = plain_update(again, expected, rate)
        effective = float(weighed.sum() ** 2 / weighed.square().sum() / len(weighed))
        assert logged[step - 1]["correction/mean"] == pytest.approx(float(weighed.mean()), abs=1e-6)
        assert logged[step - 1]["correction/effective_samples"] == pytest.approx(effective, abs=1e-6)
        assert logged[step - 1]["staleness/max"] == (0.0 if step == 1 else 1.0)
        assert change(weights(again), weights(held[step])).abs().max() < 1e-6
        assert change(weights(held[step - 1]), weights(held[step])).abs().max() > 1e-3


class Meeting(reinlm.Callback):
    """Each update waits until the next batch is in the middle of its episodes, and these wait until the update is made."""

    def __init__(self, steps: int, episodes: int) -> None:
        self.steps, self.episodes = steps, episodes
        self.begun = [threading.Event() for _ in range(steps + 1)]
        self.updated = [threading.Event() for _ in range(steps + 1)]
        self.made = 0
        self.lock = threading.Lock()
        self.late: list[str] = []

    def on_batch_prepared(self, event: Any, control: Any) -> None:
        if event.step < self.steps and not self.begun[event.step].wait(60):
            self.late.append(f"nothing was sampled beside step {event.step}")

    def on_updated(self, event: Any, control: Any) -> None:
        self.updated[event.step].set()

    def beside(self) -> int:
        """Of the next episode: the step beside which its batch is sampled."""
        with self.lock:
            self.made += 1
            return (self.made - 1) // self.episodes

    def wait(self, step: int) -> None:
        """In an episode whose batch is sampled beside the step."""
        if step:
            self.begun[step].set()
            if not self.updated[step].wait(60):
                self.late.append(f"step {step} was not trained while it was sampled beside")


def test_an_update_in_the_middle_of_sampling_changes_nothing_of_it(tmp_path: Path) -> None:
    meeting = Meeting(steps=3, episodes=8)

    class TwoTurns:
        def __init__(self) -> None:
            self.turn, self.beside = 0, meeting.beside()

        def reset(self, task: Any) -> None: ...

        def step(self, action: Action) -> StepResult:
            self.turn += 1
            if self.turn == 1:
                meeting.wait(self.beside)
                return StepResult("+1=")
            return StepResult(reward={"digits": sum(c.isdigit() for c in action.text)}, terminated=True)

    model = tiny()
    held = [copy.deepcopy(model[0])]
    with trainer(
        tmp_path / "run",
        model,
        reward=None,
        environment=TwoTurns,
        algorithm=GRPO,
        rollout={**AHEAD, **SHORT_TURNS, "environment_time_limit": 90.0},
        training={"steps": 3},
        optimizer={"learning_rate": 0.9},
        run=LOGGED,
        callbacks=[meeting],
    ) as run:
        for _ in range(3):
            run.step()
            held.append(copy.deepcopy(model[0]))
    assert meeting.late == []
    assert change(weights(held[1]), weights(held[2])).abs().max() > 1e-3
    for step in range(1, 4):
        groups, _ = read_groups(tmp_path / f"run/rollouts/step_{step}.jsonl")
        for rollout in (rollout for group in groups for rollout in group.group.rollouts):
            sampler = held[max(step - 2, 0)]
            drawn = torch.cat([torch.tensor(part.columns["rollout_logprobs"]) for part in rollout.segments])
            table = torch.cat([logprobs(sampler, replace(rollout, segments=(part,))) for part in rollout.segments])
            assert float((table.detach() - drawn).abs().max()) < 1e-5
            assert rollout.turns == 2


def test_evaluation_samples_from_the_weights_as_they_are(tmp_path: Path) -> None:
    evaluation = {"data": ROWS[:4], "every": 1, "max_new_tokens": 4, "samples": 4}
    model = tiny()
    options: dict[str, Any] = {"algorithm": GRPO, "optimizer": {"learning_rate": 0.9}, "evaluation": evaluation}
    held = [copy.deepcopy(model)]
    with trainer(tmp_path / "ahead", model, rollout=AHEAD, training={"steps": 3}, **options) as run:
        found = []
        for _ in range(3):
            found.append(run.step()["eval/eval/reward"])
            held.append(copy.deepcopy(model))
    for step, reward in enumerate(found, start=1):
        with trainer(tmp_path / f"{step}", held[step], **options) as plain:
            assert plain.evaluate()["eval/eval/reward"] == reward
    assert len(set(found)) == 3


def test_the_adapter_of_a_policy_is_sampled_from_as_it_was(tmp_path: Path) -> None:
    model = {"path": saved(tmp_path / "model"), "lora": {"rank": 2}}
    options: dict[str, Any] = {"algorithm": GRPO, "training": {"steps": 3}, "optimizer": {"learning_rate": 0.9}}
    with trainer(tmp_path / "run", model, rollout=AHEAD, run=LOGGED, **options) as run:
        rows = [run.step() for _ in range(3)]
    assert [row["staleness/max"] for row in rows] == [0.0, 1.0, 1.0]
    assert rows[0]["sampling/logprob_difference/max"] < 1e-4 < rows[2]["sampling/logprob_difference/max"]


# ------------------------------------------------------------------------------------------------ corrections


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        ("grpo", ["Truncated"]),
        ("dapo", ["Truncated"]),
        ({"base": "grpo", "corrections": ["masked"]}, ["Masked"]),
        ({"base": "grpo", "kl": None, "ratio": {"token": {"against": "rollout"}}}, []),
        ({"base": "ppo", "advantage": "vtrace"}, []),
    ],
)
def test_older_weights_are_corrected_for_as_asked_or_by_truncated_ratios(given: Any, expected: list[str]) -> None:
    data = {"model": {"path": "m"}, "data": {"path": "d"}, "reward": "math", "algorithm": given}
    on = build(RLConfig, {**data, "rollout": AHEAD})
    assert [type(one).__name__ for one in run_algorithm(on).corrections] == expected
    off = build(RLConfig, data)
    assert run_algorithm(off) == reinlm.algorithms.resolve(given)


@pytest.mark.parametrize(
    ("corrections", "minibatches", "apart"),
    [(["truncated"], 1, False), (["truncated", "self_normalized"], 1, True), (["truncated"], 2, True)],
)
def test_old_log_probabilities_take_a_pass_only_where_the_update_does_not_give_them(
    corrections: list[str], minibatches: int, apart: bool, tmp_path: Path
) -> None:
    algorithm = {**GRPO, "corrections": corrections}
    training = {"steps": 2, "minibatches": minibatches, "micro_batch_tokens": 24}
    run_rl(tmp_path / "run", algorithm=algorithm, rollout=AHEAD, training=training, run=LOGGED)
    _, columns = read_groups(tmp_path / "run/rollouts/step_2.jsonl")
    assert ("update/old_logprobs" in columns) == apart
    row = metrics(tmp_path / "run")[-1]
    assert row["sampling/logprob_difference/mean"] > 1e-3
    if "self_normalized" in corrections:
        assert row["correction/mean"] == pytest.approx(1.0)


@pytest.mark.parametrize(
    ("algorithm", "said"),
    [
        ({"base": "grpo", "corrections": []}, "algorithm.corrections is empty"),
        (
            {"base": "distill", "advantage": "none", "kl": {"anchor": "teacher", "estimator": "full"}},
            "no correction weighs what distill learns from",
        ),
    ],
)
def test_samples_that_are_not_corrected_for_are_refused(algorithm: Any, said: str, tmp_path: Path) -> None:
    with pytest.raises(InputError, match=said) as caught:
        trainer(tmp_path / "run", algorithm=algorithm, rollout=AHEAD)
    assert "rollout.async_level" in str(caught.value)
    assert not (tmp_path / "run").exists()


def test_a_model_that_cannot_be_copied_is_refused_before_the_run_has_a_folder(tmp_path: Path) -> None:
    model, tokenizer = tiny()
    model.model.layers[0].register_forward_hook(lambda _module, _inputs, output: output + 1.0)
    with pytest.raises(
        InputError, match=r"rollout\.async_level 1 samples from a copy of the weights, and Qwen3"
    ) as caught:
        trainer(tmp_path / "run", (model, tokenizer), rollout=AHEAD)
    assert caught.value.hint == "set rollout.async_level=0"
    assert not (tmp_path / "run").exists()


def test_the_run_says_what_the_copy_takes_and_what_corrects(tmp_path: Path, capsys: Any) -> None:
    run_rl(tmp_path / "run", algorithm=GRPO, rollout=AHEAD, training={"steps": 1}, quiet=False)
    said = " ".join(capsys.readouterr().err.split())
    size = sum(weight.nbytes for weight in tiny()[0].parameters()) / 2**20
    assert f"that takes {size:.1f} MiB; corrections for older weights: truncated" in said
    text = (tmp_path / "run/config.yaml").read_text()
    assert "corrections:  # in force: for rollout.async_level 1" in text


# ------------------------------------------------------------------------------------------------ side by side


def test_casts_that_autocast_keeps_for_the_update_outlive_those_of_the_sampler() -> None:
    """The casts of a weight are one node of the graph as long as they are kept; a gradient adds up otherwise with two."""
    weight, x = torch.randn(4, 4, requires_grad=True), torch.randn(2, 4)

    def node() -> Any:
        product: Any = torch.mm(x, weight)
        return [part for part, _ in product.grad_fn.next_functions if part is not None]

    def sample(context: Any) -> None:
        def work() -> None:
            with context, torch.autocast("cpu", torch.bfloat16):
                torch.mm(x, weight.detach())

        thread = threading.Thread(target=work)
        thread.start()
        thread.join()

    with torch.autocast("cpu", torch.bfloat16):
        first = node()
        sample(computing_beside(torch.device("cpu")))
        assert node() == first
        sample(contextlib.nullcontext())
        assert node() != first


def test_two_threads_that_compute_share_the_cores() -> None:
    before = torch.get_num_threads()
    seen: list[int] = []
    try:
        torch.set_num_threads(5)
        with half_the_threads(torch.device("cpu")):
            thread = threading.Thread(target=lambda: seen.append(torch.get_num_threads()))
            thread.start()
            thread.join()
            seen.append(torch.get_num_threads())
        seen.append(torch.get_num_threads())
        torch.set_num_threads(1)
        with half_the_threads(torch.device("cpu")):
            seen.append(torch.get_num_threads())
    finally:
        torch.set_num_threads(before)
    assert seen == [2, 2, 5, 1]
