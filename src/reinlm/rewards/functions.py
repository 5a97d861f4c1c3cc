"""Find and load reward functions, in this process or in a worker."""

from __future__ import annotations

import functools
import importlib
import importlib.util
import inspect
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

from reinlm.errors import InputError, error_line, file_of, nearest
from reinlm.importing import ImportedCallError, importing
from reinlm.parts import IMPORTED, PARTS, builder, load_imports, read_part
from reinlm.rewards.copies import copied, restored
from reinlm.rewards.running import Function
from reinlm.rewards.signature import parameters_of
from reinlm.rewards.values import read_entry, read_judgement


@dataclass(frozen=True)
class FunctionSource:
    """Where a worker finds a function.

    Example:
        FunctionSource("file", "/home/me/rewards.py", "score"), FunctionSource("module", "package.rewards", "score"),
        FunctionSource("part", "/home/me/rewards.py", "close", {"scale": 2.0})
    """

    kind: Literal["part", "module", "file", "copy"]
    place: str
    """Path of the file, or name of the module: for a part, of the one that registers it. The function itself for a copy."""
    function: str
    """Name of the function, or of the part."""
    options: Mapping[str, Any] = field(default_factory=dict)
    """The values of a part, or of a class."""
    judges: bool = False
    """Whether it compares two answers: an object may then have a method `judge`, as TRL's judges have."""


def source_of(function: Callable[..., Any]) -> FunctionSource | None:
    """Where another process finds `function`; None for lambdas, closures, objects and what `__main__` defines."""
    module, name = getattr(function, "__module__", None), getattr(function, "__qualname__", "")
    if module in (None, "__main__", "__mp_main__") or not inspect.isfunction(function) or not name.isidentifier():
        return None
    return FunctionSource("module", module, name) if getattr(sys.modules.get(module), name, None) is function else None


def copy_of(function: Callable[..., Any]) -> FunctionSource:
    """The function itself, for a process that cannot import it; raises `NoCopyError` where it must stay in this one."""
    return FunctionSource("copy", copied(function), getattr(function, "__name__", "function"))


def as_judge(value: Any) -> Any:
    """The method `judge` of an object that has one, without the shuffling of TRL's judges; any other value as it is."""
    method = None if inspect.isclass(value) else getattr(value, "judge", None)
    if not callable(method):
        return value
    shuffles = "shuffle_order" in inspect.signature(method).parameters
    return functools.partial(method, shuffle_order=False) if shuffles else method


def ready(function: Callable[..., Any], concurrency: int = 1, *, judges: bool = False) -> Function:
    """The function with its signature; `InputError` for what can be called, but is no reward function."""
    name = getattr(function, "__name__", type(function).__name__)
    if inspect.isclass(function):
        raise InputError(f"{name} is a class", hint=f"give an instance of it: {name}(…)")
    if inspect.isgeneratorfunction(function) or inspect.isasyncgenfunction(function):
        raise InputError("it is a generator", hint="return a list of numbers instead of `yield`")
    return Function(function, parameters_of(function), concurrency, read_judgement if judges else read_entry)


def load(source: FunctionSource) -> Callable[..., Any]:
    """The function that `source` names; raises `InputError` where it cannot be had."""
    if source.kind == "part":
        load_imports([source.place])
        return _built(source.function, source.options)
    if source.kind == "copy":
        try:
            with importing("the main program"):
                return restored(source.place)
        except ImportedCallError:
            raise
        except Exception as error:
            raise InputError(f"its copy cannot be read: {error_line(error)}") from error
    file = source.place if source.kind == "file" else None
    try:
        with importing(source.place):
            module = _import_file(source.place) if file else importlib.import_module(source.place)
    except ImportedCallError:
        raise
    except (Exception, SystemExit) as error:
        beside = Path(f"{source.place.replace('.', '/')}.py")
        hint = f"write {beside}:{source.function}" if file is None and beside.is_file() else None
        raise InputError(f"{source.place} cannot be imported: {error_line(error, file)}", hint=hint) from error
    function = getattr(module, source.function, None)
    function = as_judge(function) if source.judges else function
    if function is None:
        names = [name for name, value in vars(module).items() if _could_be(value, name, module.__name__)]
        near = nearest(source.function, names)
        hint = f"did you mean {near!r}?" if near else f"functions there: {', '.join(sorted(names)) or 'none'}"
        raise InputError(f"{source.place} has no function {source.function!r}", hint=hint)
    if not callable(function):
        raise InputError(f"{source.function!r} in {source.place} is not a function but {type(function).__name__}")
    if inspect.isclass(function):
        return _made(function, source)
    if source.options:
        key = next(iter(source.options))
        hint = "a function of yours takes name, weight and label; values are for a class or a reward with a name"
        raise InputError(f"{source.function} in {source.place}: unknown key {key!r}", hint=hint)
    found: Callable[..., Any] = function
    return found


def _could_be(value: Any, name: str, module: str) -> bool:
    """Whether a value of a module can be a reward: a function of its own, an object with `__call__`, or a class of such."""
    while isinstance(value, functools.partial):
        value = value.func
    own = getattr(value, "__module__", None) == module and not name.startswith("_")
    kind = value if inspect.isclass(value) else type(value)
    return own and any("__call__" in vars(one) for one in kind.__mro__)


def _made(kind: type, source: FunctionSource) -> Callable[..., Any]:
    """An instance of a class with the values that are given. Raises InputError where these do not fit, or it is no function."""
    try:
        inspect.signature(kind).bind(**source.options)
    except TypeError as error:
        raise InputError(f"{source.function} in {source.place} is a class: {error}") from error
    try:
        made = kind(**source.options)
    except Exception as error:
        raise InputError(f"{source.function} in {source.place} raised {error_line(error, source.place)}") from error
    made = as_judge(made) if source.judges else made
    if not callable(made):
        raise InputError(
            f"{source.function} in {source.place} has no method `{'judge' if source.judges else '__call__'}`, which "
            "scores answers"
        )
    found: Callable[..., Any] = made
    return found


def source_of_part(name: str, options: Mapping[str, Any]) -> FunctionSource | None:
    """Where another process finds the reward of this name; None for one that the main program defines."""
    module = PARTS["reward"][name].__module__
    if module in ("__main__", "__mp_main__") or module not in sys.modules:
        return None
    file = getattr(sys.modules[module], "__file__", None)
    place = file if module.startswith(IMPORTED) and file else module
    return FunctionSource("part", place, name, options)


def runs_here(source: FunctionSource) -> bool:
    """Whether a reward with a name asks to stay in the main process."""
    if source.kind != "part" or source.function not in PARTS["reward"]:
        return False
    return bool(getattr(read_part("reward", {source.function: dict(source.options)}), "runs_here", False))


def _built(name: str, options: Mapping[str, Any]) -> Callable[..., Any]:
    """What the reward of this name builds."""
    build = builder("reward", read_part("reward", {name: options}))
    try:
        function = build()
    except InputError:
        raise
    except Exception as error:
        raise InputError(f"build raised {error_line(error, file_of(build))}") from error
    if not callable(function):
        raise InputError(f"build returned a {type(function).__name__}, not a function")
    found: Callable[..., Any] = function
    return found


def _import_file(path: str) -> Any:
    """Import a file by its path; files of its folder can be imported from it, as in a script."""
    name = f"reinlm_reward_{Path(path).stem}"
    folder = str(Path(path).parent)
    if folder not in sys.path:
        sys.path.insert(0, folder)
    spec = importlib.util.spec_from_file_location(name, path)
    if spec is None or spec.loader is None:
        raise ImportError("it is no Python file")
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module  # dataclasses and pickle look their module up while it is being imported
    spec.loader.exec_module(module)
    return module
