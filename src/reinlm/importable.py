"""Users' files and modules: import them, find an object at `file.py:NAME` or `module:NAME`, and name an object that way."""

from __future__ import annotations

import hashlib
import importlib
import importlib.util
import sys
import sysconfig
import traceback
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import fields, is_dataclass
from pathlib import Path
from types import ModuleType
from typing import Any

from reinlm.errors import InputError, nearest
from reinlm.importing import ImportedCallError, importing

IMPORTED = "reinlm_imports_"
"""Prefix of the module names of users' files."""


# ---------------------------------------------------------------------------------------------------- importing


def load_imports(places: str | Path | Sequence[str | Path]) -> list[ModuleType]:
    """Import the files (`mine.py`) or modules (`package.mine`) whose parts a recipe uses. A file is imported once.

    Args:
        places: one or several.

    Raises:
        InputError: a file or module that is not there, or that raises while it is imported, or calls what trains, samples
            or writes; the line is named.
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
    known = sys.modules.get(name) or _imported_from(path)
    if known is not None:
        return known
    spec = importlib.util.spec_from_file_location(name, path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    if str(path.parent) not in sys.path:
        sys.path.append(str(path.parent))  # a file may import those beside it, as a script may
    try:
        with importing(place):
            spec.loader.exec_module(module)
    except BaseException as error:
        del sys.modules[name]
        if isinstance(error, ImportedCallError) or not isinstance(error, Exception | SystemExit):
            raise
        raise InputError(f"imports: {place} raises {type(error).__name__}: {error}{_line(error, path)}") from error
    return module


def _imported_from(path: Path) -> ModuleType | None:
    """The module that this program has imported from a file, itself included, so that its classes are the same objects."""
    for name, module in list(sys.modules.items()):
        file = getattr(module, "__file__", None)
        same = isinstance(file, str) and file.endswith(path.name) and Path(file).resolve() == path
        if same and not name.startswith("reinlm_reward_"):
            return module
    return None


def _load_module(name: str) -> ModuleType:
    if "" in name.split("."):
        raise InputError(f"imports: {name!r} is no name of a module", hint="give a file.py or a module")
    try:
        with importing(name):
            return importlib.import_module(name)
    except ImportedCallError:
        raise
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


# ---------------------------------------------------------------------------------------------------- from name to object


def is_place(name: Any) -> bool:
    """Whether a text has the form of a place, `file.py:NAME` or `module:NAME`."""
    return isinstance(name, str) and ":" in name and not name.startswith("<")


def find(place: str, what: str) -> Any:
    """The object at `file.py:NAME` or `module:NAME`.

    Args:
        what: the kind of part, for messages.

    Raises:
        InputError: a file, module or name that is not there, or a file that raises.

    Example:
        >>> find("math:floor", "schedule")(2.5)
        2
    """
    home, _, name = place.rpartition(":")
    if not home or not name.isidentifier():
        raise InputError(f"{what} {place!r} cannot be read", hint="write file.py:NAME or module:NAME")
    if home.endswith(".py") and not Path(home).expanduser().is_file():
        looked = Path(home).expanduser().absolute()
        raise InputError(f"{what} {place!r}: no such file: {home}", hint=f"looked for {looked}; write file.py:NAME")
    try:
        (module,) = load_imports([home])
    except InputError as error:
        raise InputError(f"{what} {place!r}: {error.message.removeprefix('imports: ')}", hint=error.hint) from error
    if not hasattr(module, name):
        names = _names(module)
        near = nearest(name, names)
        hint = f"did you mean {near!r}?" if near else f"there: {', '.join(names) or 'nothing that can be called'}"
        raise InputError(f"{what} {place!r}: {home} has no {name!r}", hint=hint)
    return getattr(module, name)


def _names(module: ModuleType) -> list[str]:
    """The functions and classes that a module defines."""
    return [key for key, value in vars(module).items() if callable(value) and _is_own(value, module, key)]


def names_there(file: str) -> str:
    """`; there: NAME, NAME`, the functions and classes that a file defines; empty where it is not there or cannot be imported."""
    if not Path(file).expanduser().is_file():
        return ""
    try:
        (module,) = load_imports([file])
    except InputError:
        return ""
    return f"; there: {', '.join(_names(module))}" if _names(module) else ""


def _is_own(value: Any, module: ModuleType, key: str) -> bool:
    return not key.startswith("_") and getattr(value, "__module__", module.__name__) == module.__name__


# ---------------------------------------------------------------------------------------------------- from object to name


def written(made: Any) -> Any:
    """An object for a recipe: its place, {place of its class: values} for a dataclass, or `placeholder` where it has neither."""
    values = _values(made)
    home = place_of(type(made)) if is_plain(values) and values is not None else None
    return place_of(made) or placeholder(made) if home is None else {home: values}


def _values(made: Any) -> dict[str, Any] | None:
    """The values of a dataclass by field; None for anything else."""
    if not is_dataclass(made) or isinstance(made, type):
        return None
    return {member.name: getattr(made, member.name) for member in fields(made) if member.init}


def is_placeholder(value: Any) -> bool:
    """Whether a value of a recipe stands for an object that no file holds."""
    return isinstance(value, str) and value.startswith("<") and value.endswith(" given in Python>")


def placeholder(made: Any) -> str:
    """The text that stands in config.yaml for an object that no file holds under a name; with the values of a dataclass."""
    named = made if hasattr(made, "__qualname__") else type(made)
    values = _values(made)
    shown = f"({', '.join(f'{k}={v!r}' for k, v in values.items())})" if values and is_plain(values) else ""
    return f"<{getattr(named, '__module__', '')}.{named.__qualname__}{shown} given in Python>"


def place_of(made: Any) -> str | None:
    """`file.py:NAME` or `module:NAME`, at which another process finds this object; None where there is no such place.

    There is none for closures, lambdas in a call, and what a notebook defines. Files below the working directory are
    relative to it. Numbers and texts have none: equal ones are the same object wherever they stand.
    """
    if isinstance(made, bool | int | float | complex | str | bytes):
        return None
    for module, name in _homes(made):
        home = module_place(module)
        if home is not None:
            return f"{home}:{name}"
    return None


def module_place(module: ModuleType) -> str | None:
    """How `load_imports` finds a module: the path of a user's file, or the module's name; None for a notebook."""
    name, file = module.__name__, getattr(module, "__file__", None)
    if name in ("__main__", "__mp_main__"):
        spec = getattr(module, "__spec__", None)
        if spec is not None and "." in spec.name:  # python -m package.module
            return str(spec.name)
    elif "." in name or (file is not None and _is_installed(file)):
        return name
    if file is None or not file.endswith(".py") or not Path(file).is_file():
        return None
    path = Path(file).resolve()
    here = Path.cwd().resolve()
    return str(path.relative_to(here) if path.is_relative_to(here) else path)


def is_plain(value: Any) -> bool:
    """Whether a value is a number, a text, true, false, null, or lists and mappings of these."""
    if isinstance(value, Mapping):
        return all(isinstance(key, str) and is_plain(item) for key, item in value.items())
    if isinstance(value, list | tuple):
        return all(is_plain(item) for item in value)
    return value is None or type(value) in (bool, int, float, str)


def _homes(made: Any) -> Iterator[tuple[ModuleType, str]]:
    """Modules that hold the object under a name, its own first."""
    own = sys.modules.get(getattr(made, "__module__", None) or "")
    name = getattr(made, "__qualname__", "")
    if own is not None and name.isidentifier() and vars(own).get(name) is made:
        yield own, name
    instance = not hasattr(made, "__qualname__")
    others = [module for module in list(sys.modules.values()) if instance and _is_users(module)]
    for module in dict.fromkeys([own, *others] if own is not None else others):
        for key, value in list(vars(module).items()):
            if value is made and key.isidentifier() and not key.startswith("__"):
                yield module, key


def _is_users(module: Any) -> bool:
    file = getattr(module, "__file__", None) if isinstance(module, ModuleType) else None
    own = getattr(module, "__name__", "").partition(".")[0] == "reinlm"
    return isinstance(file, str) and not own and not _is_installed(file)


_INSTALLED = tuple({sysconfig.get_path(name) for name in ("stdlib", "platstdlib", "purelib", "platlib")})


def _is_installed(file: str) -> bool:
    return file.startswith(_INSTALLED)
