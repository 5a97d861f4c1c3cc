"""A result on a real language: the recipes in `recipes/couplets` and `recipes/calculator`, from a text to tables and a figure.

    python benchmarks/real_language.py couplets --text tinyshakespeare.txt --seeds 0 1 2
    python benchmarks/real_language.py calculator --train gsm8k_train.jsonl --test gsm8k_test.jsonl --seeds 0 1 2

Makes the SFT model once (seed 0), trains it by RL with each seed, and judges all on held-out prompts by sampling. Prints a
table and writes `result.json`, `result.md`, `samples.md` and `curves.svg` into `runs/couplets` or `runs/calculator`. A stage
that is there is not made again. Run it from the repository's root.
"""

from __future__ import annotations

import argparse
import json
import math
import statistics
import sys
import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from types import ModuleType
from typing import Any

RECIPES = Path(__file__).parents[1] / "recipes"
Answers = Sequence[tuple[str, Sequence[str]]]
"""Prompts with the answers to each."""


@dataclass(frozen=True)
class Experiment:
    """What is trained where, and how it is judged."""

    name: str
    held_out: Mapping[str, Any]
    """`DataConfig` of the prompts."""
    rewards: tuple[str, ...]
    """The recipe's rewards, the verdict first, then further ones."""
    samples: int
    """Answers to each prompt."""
    max_new_tokens: int
    also: Callable[[Answers, ModuleType], dict[str, float]]
    """Further figures of the answers."""
    imitation: tuple[str, ...] = ("sft",)
    """The recipes of `reinlm sft`, in their order."""
    changes: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    """Sections that replace those of the recipes, by stage: where the user's files are."""

    @property
    def folder(self) -> Path:
        """Where the runs are."""
        return Path("runs") / self.name


def main() -> None:
    import torch

    torch.set_num_threads(1)
    arguments = _arguments()
    experiment = _couplets(arguments) if arguments.name == "couplets" else _calculator(arguments)
    _train_sft(experiment)
    before = _judge(experiment, experiment.folder / "sft")
    after = []
    for seed in arguments.seeds:
        _train_rl(experiment, seed)
        after.append(_judge(experiment, experiment.folder / f"rl-{seed}"))
    curves = [_curves(experiment.folder / f"rl-{seed}", experiment.rewards) for seed in arguments.seeds]
    table = _table(before, after, arguments.seeds)
    print(table)
    result = {"before": before, "after": dict(zip(arguments.seeds, after, strict=True))}
    for name, text in {
        "result.json": json.dumps(result, indent=1),
        "result.md": table + "\n",
        "samples.md": _samples(before, after[0]),
        "curves.svg": _figure(curves, before),
    }.items():
        (experiment.folder / name).write_text(text, encoding="utf-8")


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("name", choices=["couplets", "calculator"])
    parser.add_argument("--text", type=Path, default=Path("tinyshakespeare.txt"), help="of couplets")
    parser.add_argument("--train", default="gsm8k_train.jsonl", help="of calculator")
    parser.add_argument("--test", default="gsm8k_test.jsonl", help="of calculator")
    parser.add_argument("--seeds", nargs="*", type=int, default=[0, 1, 2], help="of the RL runs")
    return parser.parse_args()


# ------------------------------------------------------------------------------------------------ the two experiments


def _couplets(arguments: argparse.Namespace) -> Experiment:
    if not Path("runs/couplets/held_out.jsonl").exists():
        sys.path.insert(0, str(RECIPES / "couplets"))
        _module("couplets", "prepare").prepare(arguments.text, Path("runs/couplets"))
    return Experiment(
        name="couplets",
        held_out={"path": "runs/couplets/held_out.jsonl"},
        rewards=("verse", "form", "metre", "real_words", "own_words", "repetition", "variety", "rhyme", "couplets"),
        samples=8,
        max_new_tokens=40,
        also=_rhyming_pairs,
        imitation=("language", "sft"),
    )


def _rhyming_pairs(answers: Answers, rules: ModuleType) -> dict[str, float]:
    """Rhymes counted whole, and how many of them are different: one pair again and again would be no skill."""
    texts = [text for _, group in answers for text in group]
    pairs = [tuple(sorted(pair)) for text in texts for pair in rules.pairs_of(text)[:1] if rules.rhymes(*pair)]
    return {
        "answers whose first two lines rhyme": len(pairs) / len(texts),
        "different pairs of rhyming words": float(len(set(pairs))),
        "share of the commonest pair": max(Counter(pairs).values(), default=0) / max(len(pairs), 1),
        "answers that another answer repeats": 1 - len(set(texts)) / len(texts),
    }


def _calculator(arguments: argparse.Namespace) -> Experiment:
    text = {"columns": {"text": "{question}\n{answer}"}, "on_long_prompt": "skip"}
    prompts = {"prompt_template": "{prompt}\n", "on_long_prompt": "skip"}
    held_out = {"path": arguments.test, **prompts, "limit": 400}
    return Experiment(
        name="calculator",
        held_out=held_out,
        rewards=("calculation", "marks", "arithmetic", "grounded", "written", "final", "math"),
        samples=2,
        max_new_tokens=96,
        also=_sums,
        changes={
            "create_model": {"data": {"path": arguments.train, "columns": text["columns"]}},
            "sft": {
                "data": {"path": arguments.train, **text},
                "evaluation": {"data": {"validation": {"path": arguments.test, **text, "limit": 200}}},
            },
            "rl": {
                "data": {"path": arguments.train, **prompts},
                "evaluation": {"data": {"held_out": {**held_out, "limit": 200}}},
            },
        },
    )


def _sums(answers: Answers, rules: ModuleType) -> dict[str, float]:
    """What the marked sums are like: easier ones would be a way to more reward without more skill."""
    sums = [(prompt, found) for prompt, group in answers for text in group for found in rules.sums_in(text)]
    texts = [text for _, group in answers for text in group]
    count = max(len(sums), 1)
    return {
        "marked sums an answer": len(sums) / len(texts),
        "marked sums that are right": sum(found.right for _, found in sums) / count,
        "easy ones (an operand is 0 or 1, or alone)": sum(found.easy for _, found in sums) / count,
        "median of the largest operand": float(
            statistics.median(max(found.operands, default=0.0) for _, found in sums) if sums else 0.0
        ),
        "different sums, of all": len({found.expression for _, found in sums}) / count,
    }


# ------------------------------------------------------------------------------------------------ stages


def _train_sft(experiment: Experiment) -> None:
    import reinlm

    recipes, folder = RECIPES / experiment.name, experiment.folder
    if not (folder / "model" / "config.json").exists():
        reinlm.create_model(recipe=recipes / "model.yaml", **experiment.changes.get("create_model", {}))
    for stage in experiment.imitation:
        if not (folder / stage / "summary.json").exists():
            with _Clock(folder / stage):
                reinlm.sft(recipe=recipes / f"{stage}.yaml", overwrite=True, **experiment.changes.get(stage, {}))


def _train_rl(experiment: Experiment, seed: int) -> None:
    import reinlm

    output = experiment.folder / f"rl-{seed}"
    if not (output / "summary.json").exists():
        recipe = RECIPES / experiment.name / "rl.yaml"
        with _Clock(output):
            reinlm.rl(recipe=recipe, output=output, seed=seed, overwrite=True, **experiment.changes.get("rl", {}))


class _Clock:
    """Writes the seconds of processor time that a block took, which other programs change less than the clock's."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def __enter__(self) -> None:
        self.start = time.process_time()

    def __exit__(self, *error: object) -> None:
        if error == (None, None, None):
            (self.folder / "processor_seconds").write_text(f"{time.process_time() - self.start:.0f}")


def _judge(experiment: Experiment, run: Path) -> dict[str, Any]:
    """Means over the prompts with 95 % intervals, of the checkpoint at the end of a run."""
    import reinlm

    found = run / "judged.json"
    if not found.exists():
        file = RECIPES / experiment.name / "rewards.py"
        functions = [name if name == "math" else f"{file}:{name}" for name in experiment.rewards]
        settings = {"samples": experiment.samples, "max_new_tokens": experiment.max_new_tokens}
        model, data = str(run / "checkpoints" / "last"), dict(experiment.held_out)
        result = reinlm.evaluate(model, data, reward=functions, evaluation=settings, seed=1)
        scores: dict[str, Any] = {}
        for name in experiment.rewards:
            means = [
                statistics.fmean(event.value for events in group.events for event in events if event.name == name)
                for group in result.groups
            ]
            half = 1.96 * statistics.stdev(means) / math.sqrt(len(means))
            scores[name] = [statistics.fmean(means), half]
        answers = [
            (str(group.group.task.content), [str(rollout.completion) for rollout in group.group.rollouts])
            for group in result.groups
        ]
        seconds = run / "processor_seconds"
        judged = {
            "scores": scores,
            "also": experiment.also(answers, _module(experiment.name, "rewards")),
            "answers": answers,
            "prompts": len(answers),
            "processor_seconds": float(seconds.read_text()) if seconds.exists() else None,
            "kl": next((row["kl"] for row in reversed(_metrics(run)) if "kl" in row), 0.0),
        }
        found.write_text(json.dumps(judged))
    judged_before: dict[str, Any] = json.loads(found.read_text())
    return judged_before


def _module(name: str, file: str) -> ModuleType:
    """A file of a recipe as a module."""
    import importlib.util

    full = f"{name}_{file}"
    spec = importlib.util.spec_from_file_location(full, RECIPES / name / f"{file}.py")
    assert spec is not None
    assert spec.loader is not None
    sys.modules[full] = module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def _metrics(run: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (run / "metrics.jsonl").read_text(encoding="utf-8").splitlines()]


# ------------------------------------------------------------------------------------------------ tables


def _table(before: Mapping[str, Any], after: Sequence[Mapping[str, Any]], seeds: Sequence[int]) -> str:
    names = " | ".join(f"after RL, seed {seed}" for seed in seeds)
    lines = [f"| {before['prompts']} held-out prompts | after SFT | {names} |", "|---|---|" + "---|" * len(seeds)]
    runs = [before, *after]
    for name in before["scores"]:
        cells = " | ".join("{:.3f} ± {:.3f}".format(*run["scores"][name]) for run in runs)
        lines.append(f"| `{name}` | {cells} |")
    for name in before["also"]:
        lines.append(f"| {name} | " + " | ".join(f"{run['also'][name]:.3g}" for run in runs) + " |")
    lines.append(
        "| KL from the SFT model, nats a token | 0 | " + " | ".join(f"{run['kl']:.2f}" for run in after) + " |"
    )
    seconds = [run["processor_seconds"] for run in runs]
    lines.append(
        "| processor seconds of training | " + " | ".join("" if s is None else f"{s:.0f}" for s in seconds) + " |"
    )
    return "\n".join(lines)


def _samples(before: Mapping[str, Any], after: Mapping[str, Any], count: int = 6) -> str:
    """The first answer to each of the first prompts, before and after: nothing is picked."""
    lines = []
    for (prompt, old), (_, new) in list(zip(before["answers"], after["answers"], strict=True))[:count]:
        lines += ["```", prompt.rstrip(), "", "[after SFT]", old[0], "", "[after RL]", new[0], "```", ""]
    return "\n".join(lines)


# ------------------------------------------------------------------------------------------------ the figure

WIDE, HIGH, COLUMNS = 230, 150, 4


def _curves(run: Path, names: Sequence[str]) -> dict[str, list[float]]:
    rows = _metrics(run)
    found = {name: [row[f"rewards/{name}/mean"] for row in rows if f"rewards/{name}/mean" in row] for name in names}
    return {name: values for name, values in found.items() if values}


def _figure(curves: Sequence[Mapping[str, Sequence[float]]], before: Mapping[str, Any]) -> str:
    """A panel for each reward: its mean over five steps against steps, a line a seed; dashed: held-out, after SFT."""
    names = list(curves[0])
    rows = math.ceil(len(names) / COLUMNS)
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{COLUMNS * WIDE}" height="{rows * HIGH}" '
        'font-family="sans-serif" font-size="11"><rect width="100%" height="100%" fill="white"/>'
    ]
    for index, name in enumerate(names):
        left, top = index % COLUMNS * WIDE + 34, index // COLUMNS * HIGH + 22
        parts += _panel(name, [curve[name] for curve in curves], before["scores"][name][0], left, top)
    return "\n".join([*parts, "</svg>", ""])


def _panel(name: str, curves: Sequence[Sequence[float]], start: float, left: float, top: float) -> list[str]:
    wide, high, steps = WIDE - 48, HIGH - 46, max(map(len, curves))

    def point(step: float, value: float) -> str:
        return f"{left + wide * step / steps:.1f},{top + high * (1 - value):.1f}"

    def line(points: Sequence[str], style: str) -> str:
        return f'<polyline points="{" ".join(points)}" fill="none" {style}/>'

    parts = [f'<text x="{left}" y="{top - 7}" font-weight="bold">{name}</text>']
    for value in (0.0, 0.5, 1.0):
        parts.append(line([point(0, value), point(steps, value)], 'stroke="#ddd"'))
        parts.append(
            f'<text x="{left - 5}" y="{top + high * (1 - value) + 4}" text-anchor="end" fill="#555">{value}</text>'
        )
    parts.append(line([point(0, start), point(steps, start)], 'stroke="#888" stroke-dasharray="4 3"'))
    for colour, curve in zip(("#1f77b4", "#ff7f0e", "#2ca02c", "#d62728", "#9467bd"), curves, strict=False):
        smooth = [statistics.fmean(curve[max(0, end - 4) : end + 1]) for end in range(len(curve))]
        parts.append(line([point(step + 1, value) for step, value in enumerate(smooth)], f'stroke="{colour}"'))
    for step in (0, steps):
        x = point(step, 0).split(",")[0]
        parts.append(f'<text x="{x}" y="{top + high + 14}" text-anchor="middle" fill="#555">{step}</text>')
    return parts


if __name__ == "__main__":
    main()
