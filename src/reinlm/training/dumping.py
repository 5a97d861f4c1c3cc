"""A configuration as plain values, for config.yaml: rows, functions and parts stand there by name."""

from __future__ import annotations

import functools
import hashlib
import json
from collections.abc import Mapping
from typing import Any

from reinlm.config import Config
from reinlm.importable import written
from reinlm.parts import is_part, part_spec
from reinlm.rewards import RewardConfig
from reinlm.rewards.spec import write_spec


def dump(config: Config) -> dict[str, Any]:
    """The resolved configuration as plain values, for config.yaml: rows and functions stand there by name."""
    tree: dict[str, Any] = _dumped({name: getattr(config, name) for name in type(config).model_fields})
    return tree


@functools.cache
def dump_defaults(kind: type[Config]) -> Mapping[str, Any]:
    """What `dump` says of sections and keys that are not given: what a run from before a key existed had in force."""
    fields = {name: field for name, field in kind.model_fields.items() if not field.is_required()}
    return {name: _dumped(field.get_default(call_default_factory=True)) for name, field in fields.items()}


def _dumped(value: Any) -> Any:
    if isinstance(value, RewardConfig):
        return {
            **{key: getattr(value, key) for key in type(value).model_fields},
            "functions": write_spec(value.functions),
        }
    if isinstance(value, Config) and is_part(value):
        return part_spec("", value)
    if isinstance(value, Config):
        return {name: _dumped(getattr(value, name)) for name in type(value).model_fields}
    if isinstance(value, Mapping):
        return {str(key): _dumped(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        if value and all(isinstance(item, Mapping) for item in value) and len(str(value)) > _LONG:
            digest = hashlib.sha256(json.dumps(list(value), sort_keys=True, default=repr).encode()).hexdigest()
            return f"<{len(value)} rows given in Python, sha256 {digest[:16]}>"
        return [_dumped(item) for item in value]
    if callable(value):
        return written(value)
    return value


_LONG = 2000
