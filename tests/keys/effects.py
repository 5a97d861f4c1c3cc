"""Measure where the effect of every key is seen, and write src/reinlm/key_effects.json: `python tests/keys/effects.py`.

The page docs/configuration.md is written from it by `reinlm keys --page`. Prints the CPU time of each verb.
"""

from __future__ import annotations

import json
import sys
import tempfile
import time
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parents[1]))

from matrix import measure, problem
from matrix_data import fill
from test_matrix import VERBS

from reinlm.key_reference import EFFECTS


def main() -> None:
    effects = {}
    for verb in VERBS:
        with tempfile.TemporaryDirectory() as folder, pytest.MonkeyPatch.context() as patch:
            began = time.process_time()
            effects[verb] = measure(verb, fill(Path(folder)), patch)
        print(f"{verb}: {len(effects[verb])} keys, {time.process_time() - began:.1f} s of CPU time")
    wrong = [
        text for verb, found in effects.items() for key, seen in found.items() if (text := problem(verb, key, seen))
    ]
    if wrong:
        sys.exit("\n".join(wrong))
    EFFECTS.write_text(json.dumps(effects, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
