"""Write the numbers of every run of `same_recipes` to `recorded/`, or to another folder for a comparison.

    python tests/same_numbers/record.py [--output FOLDER] [--threads N] [NAME …]

Record anew only where numbers are meant to change, and say in the commit which and why.
"""

from __future__ import annotations

import argparse
import json
import tempfile
import time
from pathlib import Path

import torch
from safetensors.torch import save_file
from same_recipes import RECIPES, RECORDED, metrics, weights


def record(name: str, output: Path) -> None:
    """One run: `NAME.json`, a line for each step, and `NAME.safetensors`, the final weights in float32."""
    with tempfile.TemporaryDirectory() as folder:
        result = RECIPES[name](Path(folder) / name)
        lines = ",\n".join(json.dumps(row, allow_nan=False) for row in metrics(result))
        (output / f"{name}.json").write_text(f"[\n{lines}\n]\n", encoding="utf-8")
        kept = {key: value.float().contiguous() for key, value in weights(result).items()}
        save_file(kept, output / f"{name}.safetensors")


def main() -> None:
    parser = argparse.ArgumentParser(description="Record the numbers of short runs.")
    parser.add_argument("names", nargs="*", metavar="NAME", help=f"runs, by default all: {', '.join(RECIPES)}")
    parser.add_argument("--output", type=Path, default=RECORDED, help="folder (default: recorded/ beside this file)")
    parser.add_argument("--threads", type=int, default=1, help="torch's threads (default: 1)")
    given = parser.parse_args()
    if unknown := [name for name in given.names if name not in RECIPES]:
        parser.error(f"no such run: {unknown[0]}")
    torch.set_num_threads(given.threads)
    given.output.mkdir(parents=True, exist_ok=True)
    for name in given.names or RECIPES:
        started = time.perf_counter()
        record(name, given.output)
        print(f"{name}: {time.perf_counter() - started:.1f} s")


if __name__ == "__main__":
    main()
