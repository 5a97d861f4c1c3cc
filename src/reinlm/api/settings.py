"""From sections and a recipe to the configuration of a run; on resume also from its own config.yaml."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, TypeVar

from reinlm.algorithms import ALGORITHMS, Algorithm, algorithm_spec
from reinlm.config import Config, build
from reinlm.insight.tracker import ReportTracker
from reinlm.parts import load_imports
from reinlm.recipe import (
    PYTHON,
    Settings,
    merge_settings,
    one_or_several,
    read,
    read_run,
    refuse_placeholders,
    refuse_two_lengths,
    resolved_of,
)
from reinlm.runs.folder import check_resumable
from reinlm.runs.progress import Progress
from reinlm.sources import leaves
from reinlm.training.eval_config import EvalConfig

_ConfigT = TypeVar("_ConfigT", bound=Config)


def session_options(options: Mapping[str, Any]) -> dict[str, Any]:
    """Keywords of a `Session`. Adds the callback that writes the report when the run ends."""
    return {
        "resume": options.get("resume", False),
        "overwrite": options.get("overwrite", False),
        "command": options.get("command", ""),
        "callbacks": options.get("callbacks", ()),
        "progress": Progress(quiet=options.get("quiet", False)),
        "reports": [ReportTracker()],
    }


@contextlib.contextmanager
def run_settings(kind: str, sections: Mapping[str, Any], options: Mapping[str, Any]) -> Iterator[Settings]:
    """The settings of a run: the recipe, overridden by keywords; on resume config.yaml, overridden by both.

    Within the context the working directory of a resumed run is the one in which the run was started
    (`resolved.directory` in its config.yaml, if it exists), because relative paths refer to it.

    Raises:
        InputError: a folder to resume in that holds no run of this kind ("sft", "rl", "dpo").
    """
    tree = merge_settings(read(options.get("recipe")), sections)
    run = tree.get("run")
    output = run.get("output") if isinstance(run, Mapping) else None
    if not output or not options.get("resume"):
        yield tree
        return
    check_resumable(output, kind)
    if not (Path(output) / "config.yaml").is_file():
        yield tree
        return
    old = read_run(output)
    begun = resolved_of(old).get("directory")
    old = _other_length(old, tree)
    if begun is None or not Path(begun).is_dir() or Path(begun).samefile(Path.cwd()):
        yield merge_settings(old, tree)
        return
    source = tree.sources.get(("run", "output"), "")
    tree = merge_settings(tree, {"run": {"output": str(Path(output).absolute())}}, source)
    with contextlib.chdir(begun):
        yield merge_settings(old, tree)


def _other_length(old: Settings, given: Mapping[str, Any]) -> Settings:
    """The settings of a run that is resumed, without its `training.epochs` where `steps` are given, and the other way round."""
    training = given.get("training")
    one = {"steps": "epochs", "epochs": "steps"}
    gone = {one[name] for name in one if isinstance(training, Mapping) and training.get(name) is not None}
    kept = {name: value for name, value in (old.get("training") or {}).items() if name not in gone}
    sources = {path: source for path, source in old.sources.items() if path[1:] not in [(name,) for name in gone]}
    return Settings({**old, "training": kept}, sources)


def configuration(
    kind: type[_ConfigT], tree: Mapping[str, Any], loaded: Any, *, resume: bool | None = False
) -> _ConfigT:
    """Import the files under `imports`, then validate.

    Args:
        loaded: a model that is given beside the configuration, or None.
        resume: whether a run goes on: a model that was given in Python then comes from its checkpoint, or the session asks.
    """
    model = {} if loaded is None and not resume else {"model": None}
    refuse_placeholders({**tree, **model})
    refuse_two_lengths(tree)
    load_imports(tree.get("imports") or [])
    return build(kind, one_or_several(tree) if kind is EvalConfig and isinstance(tree, Settings) else tree)


def composed_over(tree: Settings, composed: Algorithm) -> Settings:
    """Settings with a composed algorithm in place of the one that they name."""
    spec = algorithm_spec(composed)
    named = ALGORITHMS.get(spec["base"])
    its_own = dict(leaves({"algorithm": algorithm_spec(named())})) if named else {}
    sources = {path: source for path, source in tree.sources.items() if path[0] != "algorithm"}
    for path, value in leaves({"algorithm": spec}):
        if path not in its_own or its_own[path] != value or path[1] == "base":
            sources[path] = PYTHON
    return Settings({**tree, "algorithm": spec}, sources)
