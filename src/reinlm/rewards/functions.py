"""Find, load, inspect and call reward functions, in this process or in a worker."""

from __future__ import annotations

import importlib
import importlib.util
import inspect
import sys
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

from reinlm.errors import InputError, error_line, file_of, nearest
from reinlm.parts import IMPORTED, PARTS, builder, load_imports, read_part

ALWAYS = ("prompts", "completions", "completion_ids", "trainer_state")
"""Arguments that every reward function may take, besides the columns of the data."""


@dataclass(frozen=True)
class FunctionSource:
    """Where a worker finds a function.

    Example:
        FunctionSource("file", "/home/me/rewards.py", "score"), FunctionSource("module", "package.rewards", "score"),
        FunctionSource("part", "/home/me/rewards.py", "close", {"scale": 2.0})
    """

    kind: Literal["part", "module", "file"]
    place: str
    """Path of the file, or name of the module: for a part, of the one that registers it."""
    function: str
    """Name of the function, or of the part."""
    options: Mapping[str, Any] = field(default_factory=dict)
    """The values of a part."""


@dataclass(frozen=True)
class Parameters:
    """What a function takes, from its signature."""

    names: tuple[str, ...]
    required: tuple[str, ...]
    takes_all: bool
    """It has `**kwargs`."""

    def chosen(self, columns: Sequence[str]) -> tuple[str, ...]:
        """Which of the arguments it is passed; an `InputError` for one that is no column and is required."""
        offered = (*ALWAYS, *columns)
        for name in self.required:
            if name not in offered:
                near = nearest(name, offered)
                did = f"did you mean {near!r}? " if near else ""
                known = ", ".join(columns) or "none"
                raise InputError(
                    f"it needs the argument {name!r}, which is no column of the data",
                    hint=f"{did}columns: {known}; every reward may also take {', '.join(ALWAYS)}",
                )
        return tuple(name for name in offered if self.takes_all or name in self.names)


def parameters_of(function: Callable[..., Any]) -> Parameters:
    """The signature of `function`; one that has none to show is passed everything."""
    try:
        found = inspect.signature(function).parameters.values()
    except (TypeError, ValueError):
        return Parameters((), (), takes_all=True)
    if any(p.kind is p.POSITIONAL_ONLY and p.default is p.empty for p in found):
        raise InputError(
            "it has positional-only arguments",
            hint="reward functions are called by keyword: remove the '/' from its signature",
        )
    named = [p for p in found if p.kind in (p.POSITIONAL_OR_KEYWORD, p.KEYWORD_ONLY)]
    return Parameters(
        names=tuple(p.name for p in named),
        required=tuple(p.name for p in named if p.default is p.empty),
        takes_all=any(p.kind is p.VAR_KEYWORD for p in found),
    )


def source_of(function: Callable[..., Any]) -> FunctionSource | None:
    """Where another process finds `function`; None for lambdas, closures, objects and what `__main__` defines."""
    module, name = getattr(function, "__module__", None), getattr(function, "__qualname__", "")
    if module in (None, "__main__", "__mp_main__") or not inspect.isfunction(function) or not name.isidentifier():
        return None
    return FunctionSource("module", module, name) if getattr(sys.modules.get(module), name, None) is function else None


def load(source: FunctionSource) -> Callable[..., Any]:
    """The function that `source` names; raises `InputError` where it cannot be had."""
    if source.kind == "part":
        load_imports([source.place])
        return _built(source.function, source.options)
    file = source.place if source.kind == "file" else None
    try:
        module = _import_file(source.place) if file else importlib.import_module(source.place)
    except (Exception, SystemExit) as error:
        raise InputError(f"{source.place} cannot be imported: {error_line(error, file)}") from error
    function = getattr(module, source.function, None)
    if function is None:
        names = [name for name, value in vars(module).items() if inspect.isfunction(value) and not name.startswith("_")]
        near = nearest(source.function, names)
        hint = f"did you mean {near!r}?" if near else f"functions there: {', '.join(sorted(names)) or 'none'}"
        raise InputError(f"{source.place} has no function {source.function!r}", hint=hint)
    if not callable(function):
        raise InputError(f"{source.function!r} in {source.place} is not a function but {type(function).__name__}")
    found: Callable[..., Any] = function
    return found


def source_of_part(name: str, options: Mapping[str, Any]) -> FunctionSource | None:
    """Where another process finds the reward of this name; None for one that the main program defines."""
    module = PARTS["reward"][name].__module__
    if module in ("__main__", "__mp_main__") or module not in sys.modules:
        return None
    file = getattr(sys.modules[module], "__file__", None)
    place = file if module.startswith(IMPORTED) and file else module
    return FunctionSource("part", place, name, options)


def invoke(function: Callable[..., Any], arguments: Mapping[str, Any]) -> Any:
    """Call `function`; the result of an async one is awaited in a new event loop."""
    result = function(**arguments)
    return _await(result) if inspect.isawaitable(result) else result


def _built(name: str, options: Mapping[str, Any]) -> Callable[..., Any]:
    """What the reward of this name builds."""
    build = builder("reward", read_part("reward", {name: options}))
    try:
        function = build()
    except Exception as error:
        raise InputError(f"build raised {error_line(error, file_of(build))}") from error
    if not callable(function):
        raise InputError(f"build returned a {type(function).__name__}, not a function")
    found: Callable[..., Any] = function
    return found


def _await(awaitable: Awaitable[Any]) -> Any:
    import asyncio
    from concurrent.futures import ThreadPoolExecutor

    async def result() -> Any:
        return await awaitable

    try:
        asyncio.get_running_loop()
    except RuntimeError:
        return asyncio.run(result())
    with ThreadPoolExecutor(1) as thread:  # a notebook's loop runs in this thread already, and loops do not nest
        return thread.submit(asyncio.run, result()).result()


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
