"""What tests of the command line share beside fixtures."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

FAST_RL = (
    "rollout.group_size=4",
    "rollout.batch_size=16",
    "rollout.max_new_tokens=6",
    "run.tensorboard=false",
)


def process(*words: str, cwd: Path, **options) -> subprocess.Popen:
    """The command line in a process of its own."""
    env = {**os.environ, "OMP_NUM_THREADS": "1"}
    return subprocess.Popen(
        [sys.executable, "-m", "reinlm.cli", *words],
        cwd=cwd, env=env, text=True, stdout=subprocess.PIPE, stderr=subprocess.PIPE, **options,
    )  # fmt: skip
