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

import hashlib
import importlib
import importlib.util
import sys
import traceback
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from types import ModuleType
from typing import Any, TypeVar

from reinlm.config import Config, build
from reinlm.errors import InputError, unknown
from reinlm.renamed import renamed

_ConfigClass = TypeVar("_ConfigClass", bound=type[Config])

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

    Raises:
        InputError: an unknown name, or values that do not fit; the key that is wrong is named.
    """
    known = PARTS.get(kind, {})
    if isinstance(spec, Config):
        return spec
    name, values = (spec, None) if isinstance(spec, str) else _one_pair(kind, spec)
    if name not in known:
        raise unknown(kind, str(name), known)
    if values is not None and not isinstance(values, Mapping):
        raise InputError(f"{kind}.{name}: {values!r} is no mapping of values", hint=f"write {{{name}: {{key: value}}}}")
    try:
        return build(known[name], values or {})
    except InputError as error:
        raise InputError(f"{kind} {name}: {error.message}", hint=error.hint) from error


def builder(kind: str, config: Config) -> Callable[..., Any]:
    """The method `build`, which makes the part. Raises InputError where its configuration class has none."""
    build_part = getattr(config, "build", None)
    if not callable(build_part):
        name = name_of_part(kind, config)
        raise InputError(f"{kind} {name}: {type(config).__name__} has no method 'build'", hint="it makes the part")
    made: Callable[..., Any] = build_part
    return made


def name_of_part(kind: str, config: Config) -> str:
    """The name of the part in recipes."""
    return next(name for name, known in PARTS[kind].items() if known is type(config))


def part_spec(kind: str, config: Config) -> Any:
    """The part in recipe syntax: NAME, or {NAME: values}."""
    values = config.model_dump()
    name = name_of_part(kind, config)
    return {name: values} if values else name


def _one_pair(kind: str, spec: Any) -> tuple[str, Any]:
    if isinstance(spec, Mapping) and len(spec) == 1:
        ((name, values),) = spec.items()
        return str(name), values
    raise InputError(
        f"{kind}: cannot read {spec!r}",
        hint=f"write a name, or {{name: {{key: value}}}}; names: {', '.join(PARTS.get(kind, {}))}",
    )


# ---------------------------------------------------------------------------------------------------- users' own files


IMPORTED = "reinlm_imports_"
"""Prefix of the module names of users' files."""


def load_imports(places: str | Path | Sequence[str | Path]) -> list[ModuleType]:
    """Import the files (`mine.py`) or modules (`package.mine`) whose parts a recipe uses. A file is imported once.

    Args:
        places: one or several.

    Raises:
        InputError: a file or module that is not there, or that raises while it is imported; the line is named.
    """
    several = [places] if isinstance(places, str | Path) else places
    if not isinstance(several, Sequence) or not all(isinstance(place, str | Path) for place in several):
        raise InputError(f"imports: cannot read {places!r}", hint="write file.py, a module, or a list of them")
    return [_load(str(place)) for place in several]


def _load(place: str) -> ModuleType:
    if not place.endswith(".py"):
        return _load_module(place)
    path = Path(place).expanduser().resolve()
    if not path.is_file():
        raise InputError(f"imports: no such file: {place}", hint=f"looked for {path}")
    name = f"{IMPORTED}{hashlib.sha256(str(path).encode()).hexdigest()[:12]}"
    if name in sys.modules:
        return sys.modules[name]
    spec = importlib.util.spec_from_file_location(name, path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    try:
        spec.loader.exec_module(module)
    except BaseException as error:
        del sys.modules[name]
        if not isinstance(error, Exception | SystemExit):
            raise
        raise InputError(f"imports: {place} raises {type(error).__name__}: {error}{_line(error, path)}") from error
    return module


def _load_module(name: str) -> ModuleType:
    if "" in name.split("."):
        raise InputError(f"imports: {name!r} is no name of a module", hint="give a file.py or a module")
    try:
        return importlib.import_module(name)
    except ImportError as error:
        raise InputError(f"imports: cannot import {name}: {error}", hint="give a file.py or a module") from error
    except (Exception, SystemExit) as error:
        frames = traceback.extract_tb(error.__traceback__)
        files = [frame.filename for frame in frames if frame.name == "<module>"]
        if isinstance(error, SyntaxError) and error.filename:
            files.append(error.filename)
        line = _line(error, Path(files[-1])) if files else ""
        raise InputError(f"imports: {name} raises {type(error).__name__}: {error}{line}") from error


def _line(error: BaseException, path: Path) -> str:
    if isinstance(error, SyntaxError):
        return f" ({path.name}:{error.lineno})"
    lines = [frame.lineno for frame in traceback.extract_tb(error.__traceback__) if frame.filename == str(path)]
    return f" ({path.name}:{lines[-1]})" if lines else ""


renamed(__name__, {"spell_part": "reinlm.parts:part_spec"})
