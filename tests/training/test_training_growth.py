"""What benchmarks/growth.py makes of costs; what it measures, on a model of a few thousand weights."""

from __future__ import annotations

import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch

from reinlm.models.prefix_sharing import PrefixTree
from reinlm.rewards import build_rewards
from reinlm.training.benchmark.config import alternating

sys.path.insert(0, str(Path(__file__).parents[2] / "benchmarks"))
import growth
from growth import Clock, Cost, Line, Work, as_figure, as_table, peak_bytes, timed_attention
from random_models import Row

TINY = Row(
    "tiny", hidden=16, layers=2, heads=2, kv_heads=1, inner=32, vocabulary=20, prompt=4, answer=5, answers=6, group=3
)
MIB = 2**20


def costs(*seconds: float, attention: float = 0.0) -> list[Cost]:
    return [Cost(cpu, 2 * cpu, attention * cpu) for cpu in seconds]


def grown(seconds: list[list[Cost]], sizes: list[int]) -> Line:
    return growth.line("sequences", "update", seconds, sizes)


def test_costs_are_relative_to_the_smallest_size_of_their_own_turn() -> None:
    """The machine is half as fast in the second turn, and one size of the third was disturbed."""
    turns = [costs(1, 2, 4, 8), costs(2, 4, 8, 16), costs(1, 2, 9, 8)]
    found = grown(turns, [10, 15, 25, 45])
    assert found.time == [1.0, 1.0, 1.0, 1.0]
    assert found.seconds == [1, 2, 8, 8]
    assert found.memory == [1.0, 0.75, 0.625, 0.562]
    assert found.above() == []


def test_attention_is_left_out_of_the_ratios_and_its_share_is_told() -> None:
    turn = [Cost(10, 10, 1), Cost(22, 22, 4), Cost(52, 52, 16), Cost(136, 136, 64)]  # 9 k + k²
    found = grown([turn], [1, 2, 4, 8])
    assert found.time == [1.0, 1.0, 1.0, 1.0]
    assert found.all_time[-1] == 1.7
    assert found.attention == pytest.approx([0.1, 4 / 22, 16 / 52, 64 / 136], abs=1e-4)


@pytest.mark.parametrize(
    ("seconds", "sizes", "said"),
    [
        ((1, 2, 4, 10.1), (1, 2, 4, 8), ["time: 1.26 times linear at 8x", "time: 1.26 times linear from 4x to 8x"]),
        ((1, 2.6, 4, 8), (1, 2, 4, 8), ["time: 1.30 times linear at 2x"]),
        ((1, 2, 4, 8), (100, 101, 108, 300), ["memory: 1.39 times linear from 4x to 8x"]),
        ((1, 2.4, 4.9, 9.9), (1, 1, 1, 1), []),
    ],
)
def test_growth_of_more_than_a_quarter_above_linear_is_named(seconds, sizes, said) -> None:
    found = grown([costs(*seconds)], list(sizes))
    assert [text.partition(", more")[0] for text in found.above()] == [f"sequences, update, {text}" for text in said]


def test_a_peak_counts_tensors_and_arrays_and_what_is_freed_makes_room() -> None:
    def call() -> None:
        for _ in range(3):
            torch.ones(MIB)  # 4 MiB, freed at once
        kept = np.ones(MIB)  # 8 MiB
        kept += 1.0

    assert 12 * MIB <= peak_bytes(call) < 12.5 * MIB


def test_attention_is_timed_forward_and_backward_and_changes_no_gradient() -> None:
    query, key, value = (torch.randn(1, 2, 6, 4, requires_grad=True) for _ in range(3))
    from reinlm.models.prefix_sharing import share_prefixes
    from reinlm.models.row_attention import LayerSettings

    tree = share_prefixes([np.array([1, 2, 3, 4]), np.array([1, 2, 5, 6])]).tree(torch.device("cpu"))
    expected = torch.autograd.grad(tree(0, query, key, value, LayerSettings()).square().sum(), (query, key, value))
    clock, untimed = Clock(), PrefixTree.__call__
    with timed_attention(clock):
        found = tree(0, query, key, value, LayerSettings())
        forward = clock.wall
        assert forward > 0.0
        gradients = torch.autograd.grad(found.square().sum(), (query, key, value))
        assert clock.wall > forward
    assert all(torch.equal(x, y) for x, y in zip(gradients, expected, strict=True))
    assert PrefixTree.__call__ is untimed


def test_every_phase_of_a_step_is_measured_and_written(tmp_path: Path) -> None:
    with build_rewards(alternating, time_limit=None) as rewards:
        works = [Work(replace(TINY, answers=6 * factor), rewards, 0) for factor in growth.FACTORS]
        turns = [growth.turn(works)]
        peaks = [work.peaks() for work in works]
    assert [sum(rollout.length for group in work.groups for rollout in group.group.rollouts) for work in works] == [
        30 * factor for factor in growth.FACTORS
    ]
    lines = [
        growth.line("sequences", phase, [[cost[phase] for cost in turn] for turn in turns], [p[phase] for p in peaks])
        for phase in ("sampling", "scoring", "update")
    ]
    for line in lines:
        assert all(0.0 < share < 1.0 for share in line.attention)
        assert line.bytes == sorted(line.bytes)
    growth.write(tmp_path, lines)
    assert as_table(lines) in (tmp_path / "growth.md").read_text()
    assert as_figure(lines).count("<polyline") == 1 + 2 * 3
