"""Pairs of an earlier and a later answer to the same prompt, for the report."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from reinlm.insight.page import is_number, read_json
from reinlm.runs.metrics import numbered, read_lines

MOST_SAMPLES = 12
LONGEST_TEXT = 20_000


def read_samples(path: Path, sides: tuple[str, str] = ("before", "after")) -> list[dict[str, Any]] | None:
    """Rows of prompt, right answer, `before` and `after`, those whose verdict changed first; None without samples.

    From `samples.json`, else from the first and the last step of `rollouts/`: one row for each prompt, and where those steps
    have no prompt in common, right and wrong answers of the last one in turn.

    Args:
        sides: labels of samples that do not say at which step they were sampled.
    """
    found = read_json(path / "samples.json")
    if found:
        before = [_sample(row, _when(row, sides[0])) for row in found.get("before", [])]
        after = [_sample(row, _when(row, sides[1])) for row in found.get("after", [])]
    else:
        steps = numbered(path / "rollouts", ".jsonl")
        if not steps:
            return None
        logged = [steps[0], steps[-1]] if len(steps) > 1 else steps
        earlier, *rest = [[_sample(row, _sampled_in(step)) for _, row in read_lines(file)] for step, file in logged]
        later = rest[0] if rest else []
        if not {sample["prompt"] for sample in earlier} & {sample["prompt"] for sample in later}:
            return _varied(later or earlier)[:MOST_SAMPLES]
        before, after = _first_of_each(earlier), _first_of_each(later)
    return sorted(_pair(before, after), key=_unchanged)[:MOST_SAMPLES]


def _first_of_each(samples: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """The first answer to each prompt."""
    return list({sample["prompt"]: sample for sample in reversed(samples)}.values())[::-1]


def _varied(samples: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Rows of one answer to each prompt, right and wrong ones in turn where the prompts have both."""
    groups: dict[str, list[dict[str, Any]]] = {}
    for sample in samples:
        groups.setdefault(sample["prompt"], []).append(sample)
    rows, wanted = [], False
    for prompt, answers in groups.items():
        found = next((sample for sample in answers if sample["good"] == wanted), answers[0])
        wanted = not found["good"]
        rows.append({"prompt": prompt, "answer": found["answer"], "before": None, "after": found})
    return rows


def _when(row: Mapping[str, Any], side: str) -> str:
    """When an answer of an evaluation was sampled: by its step, or `side` for rows without one."""
    if "step" not in row:
        return side
    return f"after step {row['step']:,}" if row["step"] else "before the first update"


def _sampled_in(step: int) -> str:
    """When an answer of a batch was sampled: before the update that was made of it."""
    return "step 1, before the first update" if step == 1 else f"step {step:,}, before its update"


def _unchanged(row: Mapping[str, Any]) -> int:
    """0 where the verdict changed, 1 where the text did, 2 for the rest."""
    before, after = row["before"], row["after"]
    if before is None or after is None:
        return 1
    if (before["good"], before["reward"]) != (after["good"], after["reward"]):
        return 0
    return 1 if before["completion"] != after["completion"] else 2


def _pair(before: list[dict[str, Any]], after: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Rows of prompt, before, after; answers to the same prompt stand in one row, in order."""
    rows: list[dict[str, Any]] = []
    waiting: dict[str, list[dict[str, Any]]] = {}
    for sample in before:
        row = {"prompt": sample["prompt"], "answer": sample["answer"], "before": sample, "after": None}
        rows.append(row)
        waiting.setdefault(sample["prompt"], []).append(row)
    for sample in after:
        if waiting.get(sample["prompt"]):
            waiting[sample["prompt"]].pop(0)["after"] = sample
        else:
            rows.append({"prompt": sample["prompt"], "answer": sample["answer"], "before": None, "after": sample})
    if before and after and not any(row["before"] and row["after"] for row in rows):
        firsts, lasts = (
            rows[: len(before)],
            rows[len(before) :],
        )  # different prompts before and after: show both, alternating
        rows = [row for pair in zip(firsts, lasts, strict=False) for row in pair]
    return rows


def _sample(row: Mapping[str, Any], when: str) -> dict[str, Any]:
    reward = row["reward"] if is_number(row.get("reward")) else None
    correct = row.get("correct")
    return {
        "when": when,
        "answer": _text(row["answer"]) if row.get("answer") is not None else None,
        "prompt": _text(row.get("prompt", "")),
        "completion": _text(row.get("completion", "")),
        "reward": f"{reward:.3g}" if reward is not None else None,
        "good": correct if correct is not None else reward is not None and reward > 0,
        "end": _end(row),
    }


def _end(row: Mapping[str, Any]) -> str | None:
    """How an answer ended; None for a stop token and for an episode that the environment terminated."""
    end = row.get("end")
    if row.get("terminated"):
        return None
    if row.get("truncated", end == "length"):
        return "cut off" if end in ("length", None) else f"cut off: {end}"
    return None if end in ("stop", None) else str(end)


def _text(value: Any) -> str:
    """Text as it is; chat messages as `role: content`, with a line for every tool that a message calls."""
    if isinstance(value, list):
        value = "\n\n".join(_message(m) if isinstance(m, dict) else str(m) for m in value)
    text = str(value)
    return (
        text
        if len(text) <= LONGEST_TEXT
        else f"{text[:LONGEST_TEXT]}\n… ({len(text) - LONGEST_TEXT:,} characters more)"
    )


def _message(message: Mapping[str, Any]) -> str:
    content = message.get("content") or ""
    if isinstance(content, list):
        content = "".join(str(part.get("text", part)) if isinstance(part, dict) else str(part) for part in content)
    calls = [call.get("function", call) for call in message.get("tool_calls") or [] if isinstance(call, dict)]
    role, thoughts = message.get("role", "?"), message.get("reasoning_content")
    lines = [f"{role}, thinking: {thoughts}"] if thoughts else []
    lines += [f"{role}: {content}".rstrip()] if content or not thoughts else []
    return "\n".join(lines + [f"→ {call.get('name', '?')}({_arguments(call)})" for call in calls])


def _arguments(call: Mapping[str, Any]) -> str:
    arguments = call.get("arguments", "")
    return arguments if isinstance(arguments, str) else json.dumps(arguments, ensure_ascii=False)
