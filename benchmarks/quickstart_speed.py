"""The quickstart's training beside that of an earlier commit, in one run that alternates between the two.

    python benchmarks/quickstart_speed.py --before ce35c2e      # the last commit before prefix sharing and the engine of slots

Each run is the whole quickstart in a process of its own, on one thread, with the code of its commit and the packages that are
installed. Its training is what `summary.json` says of it: `sft_seconds` and `rl_seconds` on the wall, without the evaluation at
the end; the processor's seconds are those of the whole process. The earlier commit is checked out into a temporary worktree.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import resource
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).parents[1]
PARTS = ("sft_seconds", "rl_seconds", "train_seconds", "processor_seconds")
PROGRAM = """
import sys
from pathlib import Path
import reinlm
from reinlm.quickstart import run_quickstart
if not Path(reinlm.__file__).is_relative_to(sys.argv[1]):
    sys.exit(f"{reinlm.__file__} is not in {sys.argv[1]}")
run_quickstart(sys.argv[2], seed=int(sys.argv[3]), quiet=True)
"""


@contextlib.contextmanager
def worktree(commit: str) -> Iterator[Path]:
    """The files of a commit, in a temporary folder."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "before"
        git = ["git", "-C", str(ROOT), "worktree"]
        subprocess.run([*git, "add", "--quiet", "--detach", str(path), commit], check=True)
        try:
            yield path
        finally:
            subprocess.run([*git, "remove", "--force", str(path)], check=True)


def run(source: Path, seed: int) -> dict[str, float]:
    """Seconds of one quickstart with the package in `source`, and its accuracy at the end."""
    environment = {**os.environ, "PYTHONPATH": str(source), "OMP_NUM_THREADS": "1", "HF_HUB_OFFLINE": "1"}
    with tempfile.TemporaryDirectory() as folder:
        output = Path(folder) / "quickstart"
        before = resource.getrusage(resource.RUSAGE_CHILDREN)
        command = [sys.executable, "-c", PROGRAM, str(source), str(output), str(seed)]
        subprocess.run(command, env=environment, check=True)
        after = resource.getrusage(resource.RUSAGE_CHILDREN)
        summary = json.loads((output / "summary.json").read_text(encoding="utf-8"))
    used = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
    return {
        **{name: summary[name] for name in PARTS[:3]},
        "processor_seconds": used,
        "accuracy": summary["accuracy_after"],
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--before", required=True, metavar="COMMIT")
    parser.add_argument("--turns", type=int, default=5, help="of each side")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--json", type=Path, metavar="PATH", help="write the figures there too")
    arguments = parser.parse_args()
    if arguments.turns < 1:
        parser.error("--turns is at least 1")
    turns: dict[str, list[dict[str, float]]] = {"before": [], "now": []}
    with worktree(arguments.before) as earlier:
        for number in range(arguments.turns):
            for side, source in (("before", earlier / "src"), ("now", ROOT / "src")):
                turns[side].append(run(source, arguments.seed))
                print(number + 1, side, json.dumps({k: round(v, 3) for k, v in turns[side][-1].items()}), flush=True)
    medians = {
        side: {name: statistics.median(t[name] for t in found) for name in PARTS} for side, found in turns.items()
    }
    ratios = {
        name: statistics.median(a[name] / b[name] for a, b in zip(*turns.values(), strict=True)) for name in PARTS
    }
    print("\n| | before | now | before / now |\n|---|---|---|---|")
    for name in PARTS:
        print(
            f"| {name.replace('_', ' ')} | {medians['before'][name]:.1f} | {medians['now'][name]:.1f} | {ratios[name]:.2f} |"
        )
    if arguments.json:
        arguments.json.write_text(json.dumps({"turns": turns, "ratios": ratios}, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
