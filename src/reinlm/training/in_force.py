"""What is in force in a run, and where each value came from: for config.yaml, the console and `--explain`."""

from __future__ import annotations

import hashlib
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from reinlm.algorithms import (
    ALGORITHMS,
    PREFERENCES,
    Algorithm,
    PreferenceAlgorithm,
    algorithm_spec,
    preference_algorithm_spec,
    resolve,
    resolve_preference,
)
from reinlm.composition import updates_in
from reinlm.composition.changes import OPTIONAL
from reinlm.composition.document import short, short_kl
from reinlm.config import Config, dump_yaml, redact
from reinlm.importable import is_place, is_placeholder, load_imports, module_place
from reinlm.objectives import CHOICES
from reinlm.parts import PARTS
from reinlm.recipe import Settings
from reinlm.schedules import SCHEDULES
from reinlm.sources import DEFAULT_OF, Key, annotate, find_source, leaves, unwrapped
from reinlm.training.config import RLConfig
from reinlm.training.dpo_config import DPOConfig
from reinlm.training.dumping import dump

_SHOWN = 6
"""Values of one source that the console shows; `--explain` shows all."""


def settings_tree(config: Config, algorithm: Algorithm | PreferenceAlgorithm | None = None) -> dict[str, Any]:
    """The configuration as plain values, the algorithm with every choice spelled out; usable as a recipe.

    Args:
        algorithm: a composed one in place of `config.algorithm`.
    """
    tree = dump(config)
    if isinstance(training := tree.get("training"), dict) and training.get("steps") is not None:
        del training["epochs"]  # it has no effect beside steps
    if isinstance(config, RLConfig):
        assert not isinstance(algorithm, PreferenceAlgorithm)
        tree["algorithm"] = _spec(algorithm or resolve(config.algorithm), config.algorithm)
    if isinstance(config, DPOConfig):
        assert not isinstance(algorithm, Algorithm)
        tree["algorithm"] = preference_algorithm_spec(algorithm or resolve_preference(config.algorithm))
    if "imports" in tree:
        tree["imports"] = [*tree["imports"], *_further_imports(tree)]
    return tree


def _spec(algorithm: Algorithm, given: Any) -> dict[str, Any]:
    """The algorithm with every choice spelled out, and the updates of a batch that were given, also where they are its own."""
    spec, updates = algorithm_spec(algorithm), updates_in(given)
    return {**spec, "updates": {**spec.get("updates", {}), **updates}} if updates else spec


def _further_imports(tree: Mapping[str, Any]) -> list[str]:
    """Users' files and modules that registered what the tree names, and that its imports lack: they were imported in Python."""
    words = {word for path, value in leaves(tree) for word in (*path, *_words(value))}
    given = {module.__name__ for module in load_imports(tree["imports"])}
    found: dict[str, None] = {}
    for table in (*CHOICES.values(), *PARTS.values(), SCHEDULES, ALGORITHMS):
        for name in words & table.keys():
            made = table[name]
            home = sys.modules.get(made.__module__)
            own = made.__module__.partition(".")[0] == "reinlm" or "<locals>" in made.__qualname__
            place = None if home is None or own or made.__module__ in given else module_place(home)
            if place is not None:
                found[place] = None
    return list(found)


def source_files(tree: Mapping[str, Any]) -> dict[str, str]:
    """The files that hold parts of a run, those of `file.py:NAME` and of `imports`, and the sha256 of each (16 digits).

    Example:
        {"choices.py": "9f2c41d0a7b3e865"}
    """
    words = {word for path, value in leaves(tree) for word in (*path, *_words(value))}
    homes = {word.rpartition(":")[0] for word in words if is_place(word)} | {*tree.get("imports", ())}
    files = sorted(home for home in homes if home.endswith(".py") and Path(home).expanduser().is_file())
    return {file: hashlib.sha256(Path(file).expanduser().read_bytes()).hexdigest()[:16] for file in files}


def _words(value: Any) -> list[str]:
    """The texts in a value of a tree, and the keys of mappings in a list."""
    if isinstance(value, str):
        return [value]
    if isinstance(value, Mapping):
        return [word for key, item in value.items() for word in (str(key), *_words(item))]
    return [word for item in value for word in _words(item)] if isinstance(value, list) else []


def same_parts(saved: Any, now: Any) -> Any:
    """The tree of a config.yaml with parts by the place at which they are now, where an earlier version named them alone.

    Example:
        >>> same_parts({"gate": {"Tanh": {"scale": 2.0}}}, {"gate": {"mine.py:Tanh": {"scale": 2.0}}})
        {'gate': {'mine.py:Tanh': {'scale': 2.0}}}
    """
    if isinstance(saved, str) and isinstance(now, str) and is_place(now):
        name = saved.removesuffix(" given in Python>").rpartition(".")[2] if is_placeholder(saved) else saved
        return now if name == now.rpartition(":")[2] else saved
    if isinstance(saved, list) and isinstance(now, list) and len(saved) == len(now):
        return [same_parts(old, new) for old, new in zip(saved, now, strict=True)]
    if not (isinstance(saved, Mapping) and isinstance(now, Mapping)):
        return saved
    if len(saved) == len(now) == 1:
        (old,), (new,) = saved, now
        if is_place(new) and old == new.rpartition(":")[2]:
            saved = {new: saved[old]}
    return {key: same_parts(value, now.get(key)) for key, value in saved.items()}


def spelled_out(tree: Mapping[str, Any]) -> dict[str, Any]:
    """The tree of a config.yaml, with every choice of its algorithm spelled out, for a comparison."""
    algorithm = tree.get("algorithm")
    named = algorithm.get("base") if isinstance(algorithm, Mapping) else algorithm
    if named not in ALGORITHMS and named not in PREFERENCES:
        return dict(tree)
    try:
        if named in PREFERENCES:
            return {**tree, "algorithm": preference_algorithm_spec(resolve_preference(algorithm))}  # type: ignore[arg-type]
        return {**tree, "algorithm": _spec(resolve(algorithm), algorithm)}  # type: ignore[arg-type]  # its base is a name
    except ValueError:  # it holds choices that were given in Python
        return dict(tree)


def value_sources(tree: Mapping[str, Any], sources: Mapping[Key, str]) -> dict[Key, str]:
    """What gave each value of `tree` that is no default; the choices of an algorithm come from the one that it names."""
    algorithm = tree.get("algorithm")
    base = algorithm["base"] if isinstance(algorithm, Mapping) else None
    its_own = _own_values(base)
    found = {}
    for path, value in leaves(tree):
        source = find_source(sources, path, value)
        if source is None and base is not None and path[0] == "algorithm" and path != ("algorithm", "base"):
            source = str(base)
            removed = value is None and len(path) == 3 and path[1] != "kl"  # a wrapper
            if len(path) > 2 and not removed and its_own.get(unwrapped(path), _ABSENT) != value:
                source = f"{DEFAULT_OF}{path[-2]}"
        if source is not None:
            found[path] = source
    return found


def _own_values(base: Any) -> dict[Key, Any]:
    """The values of a named algorithm's choices, without the wrappers around them."""
    spec = algorithm_spec(ALGORITHMS[base]()) if base in ALGORITHMS else {}
    return {unwrapped(path): value for path, value in leaves({"algorithm": spec})}


def replaced_choices(sources: Mapping[Key, str], algorithm: Algorithm) -> list[str]:
    """Notes on the choices of the named algorithm that a single value, `algorithm.gate.clip.high=0.3`, replaced or added."""
    notes = []
    spec, base = algorithm_spec(algorithm), algorithm.base or algorithm.name
    own = _own_values(base)
    for kind in ("advantage", "ratio", "gate", "kl", *OPTIONAL):
        given = {path: source for path, source in sources.items() if path[:2] == ("algorithm", kind)}
        keys = [_value_key(path, source) for path, source in given.items()]
        if not keys or not all(keys) or base not in ALGORITHMS or not isinstance(spec[kind], Mapping):
            continue
        if own.get(("algorithm", kind), _ABSENT) is None:
            shown = f"a KL of {spec[kind]['coefficient']:g}" if kind == "kl" else f"{kind} {short(spec[kind])}"
            notes.append(f"{keys[0]} adds {shown}, which {base} has not")
        elif kind != "kl" and (name := next(iter(given))[2]) not in (was := _names_of(own, kind)):
            notes.append(f"{keys[0]} replaces {base}'s {kind} {was[-1]} by {name}")
    return notes


def _value_key(path: Key, source: str) -> str | None:
    """The dotted key of a source KEY=VALUE that sets one value of a choice; None for any other."""
    key = source.partition("=")[0].strip()
    one = key.startswith("algorithm.") and key.count(".") > 1 and key.rpartition(".")[2] == path[-1]
    return key if one else None


def _names_of(own: Mapping[Key, Any], kind: str) -> list[str]:
    """The names of the choice of a kind, the innermost last."""
    found = {
        path[2] if len(path) > 2 else str(value): None for path, value in own.items() if path[:2] == ("algorithm", kind)
    }
    return list(found)


def explanation(
    tree: Mapping[str, Any], sources: Mapping[Key, str], nulls: Mapping[Key, str], notes: Sequence[str] = ()
) -> str:
    """Every key in force with its value and what gave it, as YAML with comments; a recipe that says the same.

    Args:
        nulls: comments on what stands for settings that are null.
        notes: lines above it, on what a user should know before the run.
    """
    tree = redact(tree)
    named = value_sources(tree, sources)
    comments = {path: named.get(path, "default") for path, _ in leaves(tree)}
    comments |= {path: f"{comments[path]}; {text}" for path, text in nulls.items() if path in comments}
    text = annotate(dump_yaml(tree), comments)
    above = [*(f"note: {note}" for note in notes), *_evaluation_lines(sources, tree)]
    return "".join(f"# {line}\n" for line in above) + text


def _evaluation_lines(sources: Mapping[Key, str], tree: Mapping[str, Any]) -> list[str]:
    """What gave each evaluation set, where several places gave some."""
    sets = tree["evaluation"].get("data") if isinstance(tree.get("evaluation"), Mapping) else None
    given = {name: find_source(sources, ("evaluation", "data", name, "path")) for name in sets} if sets else {}
    if len(set(given.values())) < 2:
        return []
    named = ", ".join(f"{name} ({source or 'default'})" for name, source in given.items())
    return [f"evaluation on {len(given)} sets, each by its name: {named}"]


def given_lines(sources: Mapping[Key, str], tree: Mapping[str, Any], before: Settings | None = None) -> list[str]:
    """The values that were given, one line for each recipe, the command line and Python.

    Args:
        before: the settings of a run that is resumed; what did not change, nor what gave it, is of its config.yaml.
    """
    by_origin: dict[str, list[str]] = {}
    tree = redact(tree)
    for path, source in sources.items():
        if path[0] == "algorithm" and len(path) > 2 and _at(tree, path[:-1]) == path[-1]:
            path = path[:-1]  # a choice that is a bare name
        value = _at(tree, path)
        if value is _ABSENT or path[0] == "resolved" or (source == "Python" and path == ("run", "output")):
            continue
        own = source == _at(tree, ("algorithm", "base")) or source.startswith(DEFAULT_OF)
        if path[0] == "algorithm" and own:
            continue  # of the algorithm that a resumed run names
        origin = source if source == "Python" or source.startswith("recipe ") else "command line"
        if before is not None and before.sources.get(path) == source and _at(before, path) == value:
            origin = "config.yaml of the run"
        if isinstance(value, Mapping) and "path" in value:  # a file that stands for the section
            path, value = (*path, "path"), value["path"]
        by_origin.setdefault(origin, []).append(f"{'.'.join(path)}={_brief(value)}")
    lines = []
    for origin, given in by_origin.items():
        more = f", and {len(given) - _SHOWN} more (--explain shows all)" if len(given) > _SHOWN else ""
        lines.append(f"{origin}: {', '.join(given[:_SHOWN])}{more}")
    return lines + _evaluation_lines(sources, tree)


def choices_line(algorithm: Algorithm) -> str:
    """The five choices of an algorithm in one line."""
    tree = algorithm_spec(algorithm)
    choices = {kind: short(tree[kind]) for kind in ("advantage", "ratio", "gate")}
    choices |= {"kl": short_kl(tree["kl"]), "aggregation": short(tree["aggregation"])}
    return "; ".join(f"{kind} {text}" for kind, text in choices.items())


_ABSENT = object()


def _at(tree: Any, path: Key) -> Any:
    for key in path:
        if not isinstance(tree, Mapping) or key not in tree:
            return _ABSENT
        tree = tree[key]
    return tree


def _brief(value: Any) -> str:
    text = " ".join(dump_yaml(value).removesuffix("...\n").split()) if not isinstance(value, str) else value
    return text if len(text) <= 60 else f"{text[:60]}…"
