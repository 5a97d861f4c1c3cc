"""The registry of parts by name: environments, engines, rewards, optimizers.

    @part("environment", "countdown")
    class CountdownConfig(Config):
        start: int = 10

        def build(self) -> Environment:
            return Countdown(self.start)

A recipe then says `environment: countdown`, or `environment: {countdown: {start: 5}}`; with `imports: [mine.py]` parts in
a user's own file are used in the same way.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, TypeVar

from reinlm.config import Config, build
from reinlm.errors import InputError, unknown
from reinlm.importable import IMPORTED, find, is_place, load_imports, place_of, placeholder
from reinlm.renamed import renamed

_ConfigClass = TypeVar("_ConfigClass", bound=type[Config])

__all__ = ["IMPORTED", "PARTS", "builder", "is_part", "load_imports", "name_of_part", "part", "part_spec", "read_part"]

PARTS: dict[str, dict[str, type[Config]]] = {}
"""kind -> name -> the configuration class, whose `build` makes the part."""


def part(kind: str, name: str) -> Callable[[_ConfigClass], _ConfigClass]:
    """Register a configuration class as the part `name` of its kind.

    Raises:
        TypeError: what is decorated is no class that derives from `Config`.
        ValueError: the name is in use.
    """

    def register(config: _ConfigClass) -> _ConfigClass:
        if not (isinstance(config, type) and issubclass(config, Config)):
            raise TypeError(f"{kind} {name!r}: {config!r} is no class that derives from reinlm.config.Config")
        known = PARTS.setdefault(kind, {})
        if name in known and known[name].__qualname__ != config.__qualname__:
            raise ValueError(f"{kind} {name!r} is registered twice")
        known[name] = config
        return config

    return register


def read_part(kind: str, spec: Any) -> Config:
    """The configuration of the part that `spec` names: NAME, {NAME: values} or a configuration itself.

    A NAME may be the place of a configuration class, `file.py:CLASS`.

    Raises:
        InputError: an unknown name, or values that do not fit; the key that is wrong is named.
    """
    known = PARTS.get(kind, {})
    if isinstance(spec, Config):
        return spec
    name, values = (spec, None) if isinstance(spec, str) else _one_pair(kind, spec)
    made = _at_place(kind, name) if is_place(name) else known.get(name)
    if made is None:
        raise unknown(kind, str(name), known)
    if values is not None and not isinstance(values, Mapping):
        raise InputError(f"{kind}.{name}: {values!r} is no mapping of values", hint=f"write {{{name}: {{key: value}}}}")
    try:
        return build(made, values or {})
    except InputError as error:
        text = error.message.removeprefix(f"{made.__name__}: ")  # of what concerns several values
        raise InputError(f"{kind} {name}: {text}", hint=error.hint) from error


def _at_place(kind: str, place: str) -> type[Config]:
    made = find(place, kind)
    if not (isinstance(made, type) and issubclass(made, Config)):
        name = getattr(made, "__name__", type(made).__name__)
        raise InputError(
            f"{kind} {place!r}: {name} is no configuration class", hint="derive from reinlm.config.Config, with `build`"
        )
    return made


def builder(kind: str, config: Config) -> Callable[..., Any]:
    """The method `build`, which makes the part. Raises InputError where its configuration class has none."""
    build_part = getattr(config, "build", None)
    if not callable(build_part):
        name = name_of_part(kind, config)
        raise InputError(f"{kind} {name}: {type(config).__name__} has no method 'build'", hint="it makes the part")
    made: Callable[..., Any] = build_part
    return made


def name_of_part(kind: str, config: Config) -> str:
    """The name of the part in recipes; of a configuration that is not registered its place, or that of its class."""
    names = (name for name, known in PARTS.get(kind, {}).items() if known is type(config))
    return next(names, None) or place_of(type(config)) or type(config).__name__


def is_part(config: Config) -> bool:
    """Whether a configuration is that of a part, and not a section of a recipe: it is registered, or it can build one."""
    return any(type(config) in known.values() for known in PARTS.values()) or callable(getattr(config, "build", None))


def part_spec(kind: str, config: Config) -> Any:
    """The part in recipe syntax: NAME, or {NAME: values}; `kind` may be empty for any.

    The place of its class stands for a NAME that is not registered, and a placeholder for one that has none.
    """
    values = config.model_dump()
    kinds = [kind] if kind else list(PARTS)
    name = next((name for home in kinds for name, known in PARTS.get(home, {}).items() if known is type(config)), None)
    if name is None:
        name = place_of(type(config))
    if name is None:
        return placeholder(config)
    return {name: values} if values else name


def _one_pair(kind: str, spec: Any) -> tuple[str, Any]:
    if isinstance(spec, Mapping) and len(spec) == 1:
        ((name, values),) = spec.items()
        return str(name), values
    raise InputError(
        f"{kind}: cannot read {spec!r}",
        hint=f"write a name, or {{name: {{key: value}}}}; names: {', '.join(PARTS.get(kind, {}))}",
    )


renamed(__name__, {"spell_part": "reinlm.parts:part_spec"})
