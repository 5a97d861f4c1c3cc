"""What `reinlm classical` is told: algorithm, environment, budget, seeds, settings."""

from __future__ import annotations

from typing import Any, ClassVar

from pydantic import Field, ValidationError, field_validator, model_validator

from reinlm.classical.environments import name_of
from reinlm.classical.registry import classical_name, find
from reinlm.config import Config, explain
from reinlm.errors import InputError


class ClassicalConfig(Config):
    """`reinlm classical`: what is learned, where, for how long, and with how many seeds."""

    verb: ClassVar[str] = "classical"

    algorithm: str
    env: str
    """A Gymnasium id, `file.py:CLASS` or `module:CLASS`."""
    env_arguments: dict[str, Any] = Field(default_factory=dict)
    """What `gymnasium.make` is given besides the id: `env.sab=true`."""
    steps: int | None = Field(None, ge=1)
    """Steps of the environment for each seed; never more."""
    episodes: int | None = Field(None, ge=1)
    """Or episodes for each seed."""
    seeds: int = Field(1, ge=1)
    """Independent runs, with seeds `seed`, `seed + 1`, …"""
    seed: int = Field(0, ge=0, lt=2**31)
    evaluation_episodes: int = Field(100, ge=1)
    """Greedy episodes after training, for each seed."""
    settings: dict[str, Any] = Field(default_factory=dict)
    """Of the algorithm; config.yaml holds all of them."""
    tensorboard: bool = False
    output: str | None = None

    def __init__(self, **given: Any) -> None:
        try:
            super().__init__(**given)
        except ValidationError as error:
            raise explain(type(self), error) from error

    @field_validator("env", mode="before")
    @classmethod
    def _written_down(cls, value: Any) -> Any:
        if isinstance(value, str):
            return value
        raise InputError(
            f"env is the text that config.yaml holds, not {name_of(value) if callable(value) else repr(value):.60}",
            hint='a Gymnasium id, or "file.py:CLASS" or "module:CLASS" for a class of your own',
        )

    @field_validator("algorithm")
    @classmethod
    def _registered_name(cls, value: str) -> str:
        return classical_name(value)

    @model_validator(mode="after")
    def _a_budget(self) -> ClassicalConfig:
        planned = "sweeps" in find(self.algorithm).units
        given = [name for name in ("steps", "episodes") if getattr(self, name) is not None]
        if planned and given:
            raise InputError(f"{self.algorithm} takes no {given[0]}: it sweeps over a model until its values converge")
        if not planned and len(given) != 1:
            raise InputError(f"{self.algorithm} learns for --steps or for --episodes: give one of them")
        return self
