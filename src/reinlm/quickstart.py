"""`reinlm quickstart`: a tiny model from scratch, SFT on flawed demonstrations, then RL against a verifier.

The task is addition in fixed width (see `reinlm.data.arithmetic`). The demonstrators forget most of their carries; SFT
imitates that too; RL corrects it, with rewards of 1 for right answers and 0 for others. Evaluation uses held-out problems.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from reinlm.api import evaluate, rl, sft
from reinlm.data.arithmetic import ALPHABET, demonstrations, problems
from reinlm.program import command_line
from reinlm.runs import RunFolder

TRAIN_PROBLEMS = 6000
HELD_OUT = 600
VALIDATION = 200
FORGET_RATE = 0.52
"""Probability of forgetting a carry: 44 % of the demonstrations are right, and most carries are wrong."""

SFT_SETTINGS: Mapping[str, Any] = {
    "optimizer": {"learning_rate": 4e-3, "warmup_steps": 20, "schedule": "cosine", "weight_decay": 0.01},
    "training": {"steps": 700, "batch_size": 64},
    "run": {"save_every": 200},
}
RL_SETTINGS: Mapping[str, Any] = {
    "algorithm": "grpo",
    "reward": "exact_match",
    "rollout": {"group_size": 8, "batch_size": 512, "max_new_tokens": 6, "max_running": 512},
    "optimizer": {"learning_rate": 1e-3, "warmup_steps": 3},
    "training": {"steps": 60},
}


def run_quickstart(
    output: str | Path, *, seed: int = 0, overwrite: bool = False, quiet: bool = False, control: bool = False
) -> dict[str, Any]:
    """Run both stages in `output` and return what `summary.json` holds.

    `control` trains against shuffled rewards instead: answers are rewarded for another problem's sum, so that no
    accuracy can be gained.

    Raises InputError where `output` exists, without `overwrite`.
    """
    # A second thread gains little on a model this small, and where another program wants its core, each of the thousands
    # of short operations waits for it: a busy machine was forty times slower with two threads than with one.
    with _one_thread():
        return _run(Path(output), seed, overwrite, quiet, control)


@contextmanager
def _one_thread() -> Iterator[None]:
    import torch

    before = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(before)


def _run(output: Path, seed: int, overwrite: bool, quiet: bool, control: bool) -> dict[str, Any]:
    config = {"seed": seed, "control": control}
    command = command_line("quickstart", "--seed", str(seed))
    with RunFolder.create(output, kind="quickstart", config=config, command=command, overwrite=overwrite) as folder:
        files = _write_data(folder.path, seed, control)
        model = _write_model(folder.path / "model", seed)
        show = _Show(quiet)
        show.plan(folder.path)
        tuned = sft(
            str(model),
            str(files["demonstrations"]),
            output=folder.path / "sft",
            quiet=quiet,
            seed=seed,
            reward="exact_match",
            evaluation={**_evaluation(files["validation"]), "every": 100},
            **SFT_SETTINGS,
        )
        checkpoint = folder.path / "sft" / "checkpoints" / "last"
        before = _score(checkpoint, files["test"], seed)
        show.stage("after SFT", before)
        improved = rl(
            str(checkpoint),
            str(files["train"]),
            output=folder.path / "rl",
            quiet=quiet,
            seed=seed,
            evaluation={**_evaluation(files["validation"]), "every": 10},
            **RL_SETTINGS,
        )
        after = _score(folder.path / "rl" / "checkpoints" / "last", files["test"], seed)
        show.stage("after RL", after)
        seconds = tuned.summary["train_seconds"] + improved.summary["train_seconds"]
        summary = {
            "kind": "quickstart",
            "seed": seed,
            "held_out_problems": HELD_OUT,
            "accuracy_before": before["sampled"]["accuracy"],
            "accuracy_after": after["sampled"]["accuracy"],
            "accuracy_before_interval": [before["sampled"]["accuracy_low"], before["sampled"]["accuracy_high"]],
            "accuracy_after_interval": [after["sampled"]["accuracy_low"], after["sampled"]["accuracy_high"]],
            "greedy_before": before["greedy"]["accuracy"],
            "greedy_after": after["greedy"]["accuracy"],
            "train_seconds": seconds,
            "sft_seconds": tuned.summary["train_seconds"],
            "rl_seconds": improved.summary["train_seconds"],
            "samples_per_second": improved.summary["samples_per_second"],
        }
        folder.write_summary(summary)
        folder.write_samples(before=before["samples"], after=after["samples"])
        report = _report(folder.path)
        show.result(summary, before["samples"], after["samples"], report)
    return summary


def _write_data(folder: Path, seed: int, control: bool) -> dict[str, Path]:
    """Problems as JSONL: demonstrations and training problems are the same; validation and test share none with them."""
    test = problems(HELD_OUT, seed=seed)
    validation = problems(VALIDATION, seed=seed + 1, exclude=test)
    train = problems(TRAIN_PROBLEMS, seed=seed + 2, exclude=[*test, *validation])
    rows = [problem.row() for problem in train]
    if control:
        rows = [{**row, "answer": other["answer"]} for row, other in zip(rows, [*rows[1:], rows[0]], strict=True)]
    sets: dict[str, Sequence[Mapping[str, str]]] = {
        "demonstrations": demonstrations(train, FORGET_RATE, seed),
        "train": rows,
        "validation": [problem.row() for problem in validation],
        "test": [problem.row() for problem in test],
    }
    (folder / "data").mkdir(exist_ok=True)
    for name, items in sets.items():
        lines = "".join(json.dumps(item) + "\n" for item in items)
        (folder / "data" / f"{name}.jsonl").write_text(lines, encoding="utf-8")
    return {name: folder / "data" / f"{name}.jsonl" for name in sets}


def _write_model(folder: Path, seed: int) -> Path:
    """A Qwen3-shaped model of 0.3 M parameters whose tokens are the task's characters."""
    from reinlm.models import character_tokenizer, load_policy, save_policy, tiny_model

    tokenizer = character_tokenizer(ALPHABET)
    model = tiny_model(
        "qwen3",
        vocab_size=len(tokenizer),
        hidden_size=128,
        layers=2,
        heads=4,
        intermediate_size=256,
        context=32,
        init_std=0.08,
        rope_theta=100.0,  # the default's slow rotations cannot tell neighbours apart in 14 tokens
        seed=seed,
    )
    save_policy(load_policy((model, tokenizer)), folder)
    return folder


def _evaluation(file: Path) -> dict[str, Any]:
    return {"data": {"validation": str(file)}, "max_new_tokens": 6}


def _score(model: Path, data: Path, seed: int) -> dict[str, Any]:
    """Held-out accuracy by sampling at temperature 1 and greedily, and some of the sampled answers."""
    from reinlm.training.evaluation import sample_rows

    def run(temperature: float) -> Any:
        settings = {"temperature": temperature, "max_new_tokens": 6}
        return evaluate(str(model), str(data), reward="exact_match", seed=seed, evaluation=settings, quiet=True)

    sampled, greedy = run(1.0), run(0.0)
    return {"sampled": sampled.metrics, "greedy": greedy.metrics, "samples": sample_rows(sampled)}


def _report(folder: Path) -> Path:
    from reinlm.insight.report import write_report

    return write_report(folder, stages=["sft", "rl"])


class _Show:
    """What the terminal says between the progress bars."""

    def __init__(self, quiet: bool) -> None:
        from rich.console import Console

        self.console = Console(quiet=quiet, highlight=False)

    def plan(self, folder: Path) -> None:
        self.console.print(
            "[bold]reinlm quickstart[/bold]: a 0.3 M-parameter model learns to add, from scratch, on this machine"
        )
        self.console.print(
            f"  SFT imitates {TRAIN_PROBLEMS} demonstrations that forget {FORGET_RATE:.0%} of their carries; "
            f"RL is told only right or wrong; {HELD_OUT} other problems judge both\n"
        )

    def stage(self, title: str, found: Mapping[str, Any]) -> None:
        sampled, greedy = found["sampled"], found["greedy"]
        low, high = sampled["accuracy_low"], sampled["accuracy_high"]
        self.console.print(
            f"  {title}: [bold]{sampled['accuracy']:.1%}[/bold] right by sampling ({low:.1%} to {high:.1%}), "
            f"{greedy['accuracy']:.1%} greedily\n"
        )

    def result(
        self,
        summary: Mapping[str, Any],
        before: Sequence[Mapping[str, Any]],
        after: Sequence[Mapping[str, Any]],
        report: Path,
    ) -> None:
        from rich.table import Table

        table = Table("held-out problems", "after SFT", "after RL", title="before and after")
        table.add_row(
            "right by sampling", f"{summary['accuracy_before']:.1%}", f"[bold]{summary['accuracy_after']:.1%}[/bold]"
        )
        table.add_row("right greedily", f"{summary['greedy_before']:.1%}", f"{summary['greedy_after']:.1%}")
        table.add_row("training time", f"{summary['sft_seconds']:.0f} s", f"{summary['rl_seconds']:.0f} s")
        self.console.print(table)
        samples = Table(
            "problem (digits reversed)", "right", "after SFT", "after RL", title="three answers, changed ones first"
        )
        pairs = sorted(zip(before, after, strict=True), key=lambda pair: pair[0]["correct"] == pair[1]["correct"])
        for old, new in pairs[:3]:
            samples.add_row(str(old["prompt"]), str(old["answer"]), _marked(old), _marked(new))
        self.console.print(samples)
        folder = report.parent
        improved = folder / "rl" / "checkpoints" / "last"
        self.console.print(f"report   {report}", soft_wrap=True)
        self.console.print(f"model    {improved}", soft_wrap=True)
        self.console.print("\nnext", style="bold")
        for line in next_commands(folder):
            self.console.print(f"  {line}", soft_wrap=True, markup=False)


def next_commands(folder: Path) -> list[str]:
    """Commands that go on from a finished quickstart, as they can be typed in the working directory."""
    tuned, improved = (folder / stage / "checkpoints" / "last" for stage in ("sft", "rl"))
    held_out = ("--eval-data", folder / "data" / "validation.jsonl")
    dapo = ("--reward", "exact_match", "--algorithm", "dapo", "--steps", "20")
    settings = ("rollout.max_new_tokens=6", "optimizer.learning_rate=7e-4")
    return [
        command_line("generate", "--model", improved, "--prompt", "321+654=", "--temperature", "0"),
        command_line("rl", "--model", tuned, "--data", folder / "data" / "train.jsonl", *held_out, *dapo, *settings),
    ]


def _marked(row: Mapping[str, Any]) -> str:
    style = "green" if row["correct"] else "red"
    return f"[{style}]{row['completion']}[/{style}]"
