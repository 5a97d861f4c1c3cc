"""What is in force in a run, and where each value came from: for config.yaml, the console and `--explain`."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from reinlm.algorithms import ALGORITHMS, Algorithm, algorithm_spec, resolve
from reinlm.composition.document import short, short_kl
from reinlm.config import Config, dump_yaml, redact
from reinlm.sources import Key, annotate, find_source, leaves
from reinlm.training.config import RLConfig, dump

_SHOWN = 6
"""Values of one source that the console shows; `--explain` shows all."""


def settings_tree(config: Config, algorithm: Algorithm | None = None) -> dict[str, Any]:
    """The configuration as plain values, the algorithm with every choice spelled out; usable as a recipe.

    Args:
        algorithm: a composed one in place of `config.algorithm`.
    """
    tree = dump(config)
    if isinstance(config, RLConfig):
        tree["algorithm"] = algorithm_spec(algorithm or resolve(config.algorithm))
    return tree


def spelled_out(tree: Mapping[str, Any]) -> dict[str, Any]:
    """The tree of a config.yaml, with every choice of its algorithm spelled out, for a comparison."""
    algorithm = tree.get("algorithm")
    named = algorithm.get("base") if isinstance(algorithm, Mapping) else algorithm
    if named not in ALGORITHMS:
        return dict(tree)
    try:
        return {**tree, "algorithm": algorithm_spec(resolve(algorithm))}  # type: ignore[arg-type]  # its base is a name
    except ValueError:  # it holds choices that were given in Python
        return dict(tree)


def value_sources(tree: Mapping[str, Any], sources: Mapping[Key, str]) -> dict[Key, str]:
    """What gave each value of `tree` that is no default; the choices of an algorithm come from the one that it names."""
    algorithm = tree.get("algorithm")
    base = algorithm["base"] if isinstance(algorithm, Mapping) else None
    found = {}
    for path, _ in leaves(tree):
        source = find_source(sources, path)
        if source is None and base is not None and path[0] == "algorithm" and path != ("algorithm", "base"):
            source = str(base)
        if source is not None:
            found[path] = source
    return found


def explanation(tree: Mapping[str, Any], sources: Mapping[Key, str]) -> str:
    """Every key in force with its value and what gave it, as YAML with comments; a recipe that says the same."""
    tree = redact(tree)
    named = value_sources(tree, sources)
    return annotate(dump_yaml(tree), {path: named.get(path, "default") for path, _ in leaves(tree)})


def given_lines(sources: Mapping[Key, str], tree: Mapping[str, Any]) -> list[str]:
    """The values that were given, one line for each recipe, the command line and Python."""
    by_origin: dict[str, list[str]] = {}
    tree = redact(tree)
    for path, source in sources.items():
        value = _at(tree, path)
        if value is _ABSENT or path[0] == "resolved":
            continue
        origin = source if source == "Python" or source.startswith("recipe ") else "command line"
        by_origin.setdefault(origin, []).append(f"{'.'.join(path)}={_brief(value)}")
    lines = []
    for origin, given in by_origin.items():
        more = f", and {len(given) - _SHOWN} more (--explain shows all)" if len(given) > _SHOWN else ""
        lines.append(f"{origin}: {', '.join(given[:_SHOWN])}{more}")
    return lines


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
