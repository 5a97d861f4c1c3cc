"""Trackers by name: the values of `run.trackers` in a recipe."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from importlib.util import find_spec
from typing import Any, TypeVar

from reinlm.config import Config, build
from reinlm.errors import InputError, unknown
from reinlm.loop.callbacks import Callback
from reinlm.program import install

_Factory = TypeVar("_Factory", bound=Callable[..., Callback])


@dataclass(frozen=True)
class _Kind:
    make: Callable[..., Callback]
    config: type[Config]
    package: str | None
    extra: str | None


_KINDS: dict[str, _Kind] = {}


def tracker(
    name: str, config: type[Config], *, package: str | None = None, extra: str | None = None
) -> Callable[[_Factory], _Factory]:
    """Register the class or factory of a tracker under its name in recipes.

    Args:
        name: such as "wandb".
        config: the class of its settings.
        package: the module that it needs; a run without it is refused before anything is loaded.
        extra: of reinlm, that installs the package: `pip install '.[EXTRA]'`.

    Example:
        class CsvConfig(Config):
            path: str

        @tracker("csv", CsvConfig)
        class CsvTracker(Callback):
            def __init__(self, config): ...
            def on_logged(self, event, control): ...
    """

    def register(make: _Factory) -> _Factory:
        if name in _KINDS:
            raise InputError(f"a tracker {name!r} is registered already", hint="take another name")
        _KINDS[name] = _Kind(make, config, package, extra)
        return make

    return register


def tracker_configs() -> dict[str, type[Config]]:
    """The classes of settings of all trackers, by name."""
    return {name: kind.config for name, kind in _KINDS.items()}


def check_trackers(given: Any) -> list[dict[str, dict[str, Any]]]:
    """Trackers as a recipe names them, `"tensorboard"` or `{"wandb": {"project": "x"}}`, with all settings resolved.

    Raises:
        InputError: for a name that is not registered or given twice, or settings that its tracker does not know.
    """
    if isinstance(given, str | Mapping) or not isinstance(given, Sequence):
        raise InputError(f"trackers is a list of names, or of {{name: settings}}, not {given!r}")
    resolved: list[dict[str, dict[str, Any]]] = []
    for spec in given:
        name, settings = (spec, {}) if isinstance(spec, str) else _pair(spec)
        if name not in _KINDS:
            raise unknown("tracker", name, _KINDS)
        if any(name in other for other in resolved):
            raise InputError(f"tracker {name!r} is given twice")
        resolved.append({name: build(_KINDS[name].config, settings).model_dump()})
    return resolved


def build_trackers(given: Any) -> list[Callback]:
    """Make the trackers that a recipe names.

    Raises:
        InputError: as `check_trackers` does, and for a tracker whose package is not installed.
    """
    made = []
    for spec in check_trackers(given):
        ((name, settings),) = spec.items()
        kind = _KINDS[name]
        if kind.package is not None and find_spec(kind.package) is None:
            hint = install(kind.extra) if kind.extra else f"pip install {kind.package}"
            raise InputError(f"tracker {name!r} needs the package {kind.package}, which is not installed", hint=hint)
        made.append(kind.make(build(kind.config, settings)))
    return made


def _pair(spec: Any) -> tuple[str, Mapping[str, Any]]:
    if not isinstance(spec, Mapping) or len(spec) != 1:
        raise InputError(f"a tracker is a name or {{name: settings}}, not {spec!r}")
    ((name, settings),) = spec.items()
    if settings is not None and not isinstance(settings, Mapping):
        raise InputError(f"the settings of tracker {name!r} are a mapping, not {settings!r}")
    return str(name), settings or {}
