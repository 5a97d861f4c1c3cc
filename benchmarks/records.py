"""Memory of sampled answers as records: bytes a token, and what flattening them into a batch takes.

python benchmarks/records.py --answers 1024 --tokens 8192
"""

from __future__ import annotations

import argparse
import time

import numpy as np

from reinlm.batches import token_batch
from reinlm.records import NO_TURN, RewardEvent, Rollout, RolloutGroup, ScoredGroup, Segment, Task

PROMPT, GROUP = 64, 8


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--answers", type=int, default=1024)
    parser.add_argument("--tokens", type=int, default=8192)
    given = parser.parse_args()
    groups = [_group(number, given.tokens) for number in range(given.answers // GROUP)]
    segments = [s for group in groups for rollout in group.group.rollouts for s in rollout.segments]
    held, tokens = sum(s.nbytes for s in segments), sum(s.length for s in segments)
    print(f"{len(segments)} answers of {given.tokens} tokens after prompts of {PROMPT}: {held / 2**20:.0f} MiB")
    print(f"{held / tokens:.2f} bytes a sampled token, prompts included")
    started = time.perf_counter()
    batch = token_batch(groups)
    print(f"flattened into a batch of {batch.tokens} scored tokens in {time.perf_counter() - started:.2f} s")


def _group(number: int, tokens: int) -> ScoredGroup:
    rng = np.random.default_rng(number)
    task = Task(f"data[{number}]", "a question")
    rollouts = []
    for _ in range(GROUP):
        columns = {"rollout_logprobs": rng.normal(size=tokens), "version": np.full(tokens, number)}
        turns = np.repeat([NO_TURN, 0], [PROMPT, tokens])
        segment = Segment(rng.integers(0, 150_000, PROMPT + tokens), turns, columns)
        rollouts.append(Rollout(task, (segment,), "an answer", terminated=True, truncated=False, reason="stop"))
    return ScoredGroup(RolloutGroup(task, tuple(rollouts)), ((RewardEvent("reward", 1.0),),) * GROUP)


if __name__ == "__main__":
    main()
