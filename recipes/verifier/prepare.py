"""Solutions that language models wrote, each marked right or wrong, become pairs and labels, split by problem.

    python recipes/verifier/prepare.py --solutions gsm8k_model_solutions.jsonl

The file is the one of openai/grade-school-math: a row for each problem with its `question`, and for each model a column
{"solution": …, "is_correct": true}. Every right solution of a problem makes a pair with every wrong one (`pairs.jsonl`), and
every solution a row with its label (`labels.jsonl`). All rows of a problem are on one side: `held_out_pairs.jsonl` and
`held_out_labels.jsonl` are of problems that training never shows. `sizes` says which model
solved it and which did not ("175b over 6b"), `model` whose solution it is.
"""

from __future__ import annotations

import argparse
import json
import random
import sys
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

HELD_OUT = 0.3
"""The share of the problems that is held out."""


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--solutions", type=Path, required=True, help="gsm8k_model_solutions.jsonl")
    parser.add_argument("--output", type=Path, default=Path("runs/verifier"))
    parser.add_argument("--seed", type=int, default=0, help="of the split")
    arguments = parser.parse_args()
    try:
        prepare(arguments.solutions, arguments.output, arguments.seed)
    except (OSError, ValueError) as error:
        sys.exit(f"error: {error}")


def prepare(solutions: Path, output: Path, seed: int = 0) -> None:
    """Write the four files into `output`.

    Raises OSError for a file that cannot be read or written, and ValueError for rows of another form, naming the line.
    """
    problems = [
        read_problem(line, f"{solutions}:{number}")
        for number, line in enumerate(solutions.read_text(encoding="utf-8").splitlines(), start=1)
        if line.strip()
    ]
    random.Random(seed).shuffle(problems)
    cut = round(len(problems) * HELD_OUT)
    output.mkdir(parents=True, exist_ok=True)
    for prefix, part in (("held_out_", problems[:cut]), ("", problems[cut:])):
        for name, rows_of in (("pairs", pairs), ("labels", labels)):
            _write(output / f"{prefix}{name}.jsonl", [row for problem in part for row in rows_of(problem)])


def read_problem(line: str, where: str) -> dict[str, Any]:
    """The question of a row, and by model the solution with whether it is right; a solution that is repeated stands once."""
    try:
        row = json.loads(line)
        question = row["question"]
        found = {name: column for name, column in row.items() if isinstance(column, Mapping)}
        solutions = {name: (column["solution"].strip(), column["is_correct"]) for name, column in found.items()}
    except (ValueError, LookupError, TypeError, AttributeError):
        solutions = {}
    if not solutions or not all(isinstance(right, bool) for _, right in solutions.values()):
        raise ValueError(
            f"{where}: no row of 'question' and models' columns of 'solution' and 'is_correct' (true or false)"
        )
    first = {text: name for name, (text, _) in reversed(solutions.items())}
    return {"question": question, "solutions": {name: solutions[name] for name in solutions if name in first.values()}}


def pairs(problem: Mapping[str, Any]) -> Iterator[dict[str, Any]]:
    """Every right solution over every wrong one."""
    solutions = problem["solutions"].items()
    for better, (chosen, right) in solutions:
        for worse, (rejected, also_right) in solutions:
            if right and not also_right:
                sizes = f"{better.split('_')[0]} over {worse.split('_')[0]}"
                yield {"prompt": problem["question"], "chosen": chosen, "rejected": rejected, "sizes": sizes}


def labels(problem: Mapping[str, Any]) -> Iterator[dict[str, Any]]:
    """Every solution with whether it is right."""
    for model, (solution, right) in problem["solutions"].items():
        yield {"prompt": problem["question"], "completion": solution, "label": right, "model": model}


def _write(path: Path, rows: Sequence[Mapping[str, Any]]) -> None:
    path.write_text("".join(json.dumps(row, ensure_ascii=False) + "\n" for row in rows), encoding="utf-8")


if __name__ == "__main__":
    main()
