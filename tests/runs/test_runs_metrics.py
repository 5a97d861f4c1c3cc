from __future__ import annotations

import json
import math
from fractions import Fraction
from pathlib import Path

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from reinlm.errors import InputError
from reinlm.runs.metrics import MetricsLog, MetricSums, read_metrics

values = st.floats(-1e6, 1e6)


def test_a_mean_over_unequal_micro_batches_is_the_mean_of_all_tokens() -> None:
    sums = MetricSums()
    sums.add("loss", total=1.0 + 2.0 + 3.0, count=3)
    sums.add("loss", total=4.0, count=1)
    assert sums.means() == {"loss": 2.5}


@given(st.lists(st.lists(values, max_size=5), min_size=1, max_size=6), st.booleans())
def test_any_split_into_parts_gives_the_figures_of_the_whole(parts: list[list[float]], tensors: bool) -> None:
    def wrap(value: float) -> float | torch.Tensor:
        return torch.tensor(value, dtype=torch.float64) if tensors else value

    merged = MetricSums()
    for part in parts:
        sums = MetricSums()
        sums.add("mean", wrap(math.fsum(part)), len(part))
        for value in part:
            sums.maximum("max", wrap(value))
            sums.minimum("min", wrap(value))
        merged.merge(MetricSums.from_state(json.loads(json.dumps(sums.state()))) if not tensors else sums)
    everything = [value for part in parts for value in part]
    if not everything:
        assert merged.means() == {}
        return
    exact = float(sum(map(Fraction, everything)) / len(everything))
    scale = sum(map(abs, everything)) / len(everything)
    means = merged.means()
    assert abs(means["mean"] - exact) <= 1e-15 * len(parts) * scale + 1e-300
    assert means["max"] == wrap(max(everything))
    assert means["min"] == wrap(min(everything))


def test_sums_of_float32_tensors_are_kept_in_float64() -> None:
    sums = MetricSums()
    for _ in range(1000):
        sums.add("loss", torch.tensor(16_777_216.0), torch.tensor(1))
        sums.add("loss", torch.tensor(1.0), 0)
    assert sums.means() == {"loss": 16_777_217.0}  # float32 has no such number


def test_a_name_that_measured_nothing_is_absent() -> None:
    sums = MetricSums()
    sums.add("kl", 0.0, 0)
    sums.add("entropy", torch.tensor(0.0), torch.tensor(0))
    assert sums.means() == {}


@pytest.mark.parametrize("order", [[1.0, math.nan, 2.0], [math.nan, 1.0], [1.0, math.nan]])
@pytest.mark.parametrize("wrap", [float, torch.tensor])
def test_nan_is_seen_in_an_extreme(order: list[float], wrap: type) -> None:
    sums = MetricSums()
    for value in order:
        sums.maximum("max", wrap(value))
        sums.minimum("min", wrap(value))
    assert all(math.isnan(value) for value in sums.means().values())


def test_floats_and_tensors_mix_in_one_metric() -> None:
    sums = MetricSums()
    sums.add("x", torch.tensor(2.0, requires_grad=True), 1)
    sums.add("x", 4.0, torch.tensor(1))
    sums.maximum("m", 3.0)
    sums.maximum("m", torch.tensor([5.0]))
    sums.maximum("m", 4.0)
    assert sums.means() == {"x": 3.0, "m": 5.0}


def test_one_name_has_one_meaning() -> None:
    sums = MetricSums()
    sums.add("loss", 1.0, 1)
    sums.maximum("ratio/max", 1.0)
    with pytest.raises(ValueError, match="'loss' is kept as a sum and as an extreme"):
        sums.maximum("loss", 1.0)
    with pytest.raises(ValueError, match="'ratio/max' is kept as a sum and as an extreme"):
        sums.add("ratio/max", 1.0, 1)
    with pytest.raises(ValueError, match="'ratio/max' is kept as a maximum and as a minimum"):
        sums.minimum("ratio/max", 1.0)
    with pytest.raises(ValueError, match="'loss': count must be 0 or more, not -1"):
        sums.add("loss", 1.0, -1)


def test_metrics_come_back_as_they_were_logged(tmp_path: Path) -> None:
    log = MetricsLog(tmp_path)
    log.append(0, {"eval/held_out/accuracy": 0.5})
    log.append(1, {"loss": 0.1, "samples": 8, "grad_norm": math.inf, "kl": torch.tensor(0.25), "time": 3.0})
    assert '"grad_norm": null' in (tmp_path / "metrics.jsonl").read_text()
    first, second = read_metrics(tmp_path / "metrics.jsonl")
    assert first["time"] > 1.7e9
    assert math.isnan(second.pop("grad_norm"))
    assert second == {"step": 1, "loss": 0.1, "samples": 8, "kl": 0.25, "time": 3.0}


def test_a_step_is_never_held_twice(tmp_path: Path) -> None:
    log = MetricsLog(tmp_path)
    log.append(3, {"loss": 1.0})
    with pytest.raises(ValueError, match="step 3 cannot follow step 3"):
        log.append(3, {"loss": 1.0})
    log.append(5, {"loss": 1.0})
    with pytest.raises(ValueError, match="step 4 cannot follow step 5"):
        log.append(4, {"loss": 1.0})


@pytest.mark.parametrize("value", ["high", None, [1.0]])
def test_a_metric_that_is_no_number_is_named(tmp_path: Path, value: object) -> None:
    with pytest.raises(ValueError, match="metric 'loss' must be a number, not"):
        MetricsLog(tmp_path).append(1, {"loss": value})


def test_resuming_cuts_at_every_byte_to_whole_steps_and_goes_on_the_same(tmp_path: Path) -> None:
    def append(log: MetricsLog, steps: range) -> None:
        for step in steps:
            log.append(step, {"loss": math.nan if step == 2 else 1 / 3 + step, "time": 0.0})

    log = MetricsLog(tmp_path)
    append(log, range(1, 5))
    whole = log.path.read_bytes()
    for cut in range(len(whole) + 1):
        log.path.write_bytes(whole[:cut])
        resumed = MetricsLog(tmp_path, after_step=2)
        kept = whole[:cut].count(b"\n")
        assert resumed.last_step in ({min(kept, 2), min(kept + 1, 2)} if kept else {-1, 1})
        append(resumed, range(max(resumed.last_step, 0) + 1, 5))
        assert log.path.read_bytes() == whole


def test_a_new_log_starts_empty(tmp_path: Path) -> None:
    MetricsLog(tmp_path).append(0, {"loss": 1.0})
    assert MetricsLog(tmp_path).last_step == -1
    assert read_metrics(tmp_path / "metrics.jsonl") == []


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ('{"step": 1}\n{"st\n{"step": 2}\n', "metrics.jsonl:2: not valid JSON"),
        ('{"step": 1}\n\n{"step": 1}\n', "metrics.jsonl:3: not the record of a step after 1"),
        ('{"loss": 1}\n', "metrics.jsonl:1: not the record of a step after -1"),
        ("[1]\n", "metrics.jsonl:1: not the record of a step after -1"),
    ],
)
def test_a_damaged_line_is_named(tmp_path: Path, text: str, message: str) -> None:
    path = tmp_path / "metrics.jsonl"
    path.write_text(text)
    with pytest.raises(InputError) as raised:
        read_metrics(path)
    assert raised.value.message.endswith(message)
