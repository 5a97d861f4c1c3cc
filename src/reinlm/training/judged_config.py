"""What the verbs that learn from judged answers have in common in their configuration."""

from __future__ import annotations

from typing import Any

from pydantic import Field, field_validator

from reinlm.config import Config
from reinlm.data import JudgedDataConfig
from reinlm.data.frames import named_sets


class JudgedEvaluation(Config):
    """Scoring on judged answers that training never sees."""

    data: dict[str, JudgedDataConfig] = Field(default_factory=dict)
    """Named sets: `{test: test.jsonl}`; a single path is the set `eval`."""
    every: int = Field(0, ge=0)
    """Steps between evaluations; 0: at the start and the end alone."""
    patience: int | None = Field(None, ge=1)
    """End the run early after this many evaluations without a better one."""

    @field_validator("data", mode="before")
    @classmethod
    def _named(cls, value: Any) -> Any:
        return named_sets(value)
