"""`held_out.json`: what the report draws of held-out judgements: reliability, accuracy by length difference and by slice."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from reinlm.data import Judged
from reinlm.objectives.calibration import bin_of
from reinlm.training.reward_report import BINS, Cases, cases_of, length_gap

if TYPE_CHECKING:
    from jaxtyping import Bool, Float

_MOST_LENGTH_BINS = 6


def held_out_tables(judged: Judged, score: Float[Tensor, " scores"]) -> dict[str, Any]:
    """Rows of `mean`, `low`, `high` (Wilson's 95 % interval over prompts) and `cases`, as plain values; empty of ratings.

    - reliability: predictions in bins of equal width, `from` and `to`; `predicted` and `mean` (observed) of each.
    - by_length: pairs by how many tokens longer the better answer is, about as many in each row: `from`, `to`, `difference`.
    - by_slice: by column, accuracy of each `value`.

    Args:
        score: of each answer, or of each step.
    """
    cases = cases_of(judged, score)
    if cases is None or not len(cases.unit):
        return {}
    found: dict[str, Any] = {
        "kind": judged.kind,
        "cases": len(cases.unit),
        "prompts": len(cases.cluster.unique()),
        "reliability": _reliability(cases),
    }
    if cases.answers is not None:
        found["by_length"] = _by_length(cases, length_gap(judged, cases).double())
    slices: dict[str, list[dict[str, Any]]] = {}
    for column, values in judged.slices.items():
        for value in sorted(set(values.tolist())):
            members = torch.tensor(values == value)[cases.unit]
            if bool(members.any()):
                slices.setdefault(column, []).append({"value": value} | _row(cases, cases.right, members))
    return found | {"by_slice": slices}


def _row(cases: Cases, values: Float[Tensor, " cases"], members: Bool[Tensor, " cases"]) -> dict[str, float]:
    mean, low, high = cases.share(values, members)
    return {"mean": mean, "low": low, "high": high, "cases": int(members.sum())}


def _reliability(cases: Cases) -> list[dict[str, float]]:
    where = bin_of(cases.predicted, BINS, cases.least)
    width = (1.0 - cases.least) / BINS
    return [
        {"from": cases.least + width * number, "to": cases.least + width * (number + 1)}
        | {"predicted": float(cases.predicted[where == number].mean())}
        | _row(cases, cases.observed, where == number)
        for number in where.unique().tolist()
    ]


def _by_length(cases: Cases, gap: Float[Tensor, " cases"]) -> list[dict[str, float]]:
    """Rows between quantiles of the length difference; equal differences stand in one row."""
    ends = gap.quantile(torch.linspace(0, 1, _MOST_LENGTH_BINS + 1, dtype=torch.float64)).unique()
    where = torch.bucketize(gap, ends[1:-1], right=True)
    rows = []
    for number in where.unique().tolist():
        members = where == number
        there = gap[members]
        found = {"from": float(there.min()), "to": float(there.max()), "difference": float(there.mean())}
        rows.append(found | _row(cases, cases.right, members))
    return rows
