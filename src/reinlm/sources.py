"""Where each value of a configuration came from, as comments in a run's config.yaml and as text."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import yaml

from reinlm.config import yaml_nodes

Key = tuple[str, ...]
"""The path of a key: ("rollout", "group_size")."""
RUN_HEADER = "# reinlm "
"""How the config.yaml of a run begins."""
IN_FORCE = "in force: "
"""How the comment beside a null begins that says what stands for it in the run; it names no source."""
DEFAULT_OF = "default of "
"""How the comment on a value begins that a choice of an algorithm has by itself: `default of clip`."""
_LONGEST = 80


def leaves(tree: Any, at: Key = ()) -> Iterator[tuple[Key, Any]]:
    """Every value of a tree that is no mapping, and empty mappings, with its path."""
    if isinstance(tree, Mapping) and (tree or not at):
        for key, value in tree.items():
            yield from leaves(value, (*at, str(key)))
    else:
        yield at, tree


def unwrapped(path: Key) -> Key:
    """The path of a value of a choice without the wrappers around the choice.

    Example:
        >>> ".".join(unwrapped(("algorithm", "advantage", "whitened", "advantage", "gae", "gamma")))
        'algorithm.advantage.gae.gamma'
    """
    if path[0] != "algorithm" or path[1:2] == () or path[1] not in path[2:]:
        return path
    last = len(path) - 1 - path[::-1].index(path[1])
    return path[:2] + path[last + 1 :]


def find_source(sources: Mapping[Key, str], path: Key, value: Any = None) -> str | None:
    """What gave the value at `path`: itself, or a section around it as a whole; None for a default.

    The choice of an algorithm is found under its own kind, also where a wrapper holds it: `advantage.gae.gamma` is
    `advantage.whitened.advantage.gae.gamma`.

    Args:
        value: at the path; a choice that is a bare name, `aggregation: token_mean`, has its source under that name.
    """
    candidates = [path, unwrapped(path)]
    if path[0] == "algorithm" and isinstance(value, str):
        candidates = [*((*candidate, value) for candidate in candidates), *candidates]
    for candidate in candidates:
        for length in range(len(candidate), 0, -1):
            if candidate[:length] in sources:
                return sources[candidate[:length]]
    return None


def annotate(text: str, comments: Mapping[Key, str]) -> str:
    """YAML with a comment at the end of the line of each value whose path has one."""
    lines = text.splitlines()
    for path, line, column in _places(text):
        if path in comments and len(lines[line]) >= column:
            comment = " ".join(comments[path].split())
            shown = comment if len(comment) <= _LONGEST else f"{comment[:_LONGEST]}…"
            lines[line] = f"{lines[line]}  # {shown}"
    return "\n".join(lines) + "\n"


def read_sources(text: str) -> dict[Key, str]:
    """The comments on sources that `annotate` wrote, by path."""
    found, lines = {}, text.splitlines()
    for path, line, column in _places(text):
        comment = re.match(r"\s+# (.+)$", lines[line][column:])
        if comment and not comment[1].startswith(IN_FORCE):
            found[path] = comment[1]
    return found


def _places(text: str) -> list[tuple[Key, int, int]]:
    """(path, line, column) after which the comment of each value stands, lines from 0."""
    root = yaml_nodes(text)
    return list(_within(root, (), text.splitlines())) if isinstance(root, yaml.MappingNode) else []


def _within(node: yaml.MappingNode, at: Key, lines: Sequence[str]) -> Iterator[tuple[Key, int, int]]:
    for key, value in node.value:
        path = (*at, str(key.value))
        if isinstance(value, yaml.MappingNode) and value.value:
            yield from _within(value, path, lines)
        elif isinstance(value, yaml.ScalarNode) and value.style in ("|", ">"):
            yield path, value.start_mark.line, _indicator_end(lines, value)
        elif isinstance(value, yaml.SequenceNode) and not value.flow_style:
            yield path, key.end_mark.line, key.end_mark.column + 1
        else:
            yield path, value.end_mark.line, value.end_mark.column


def _indicator_end(lines: Sequence[str], value: yaml.ScalarNode) -> int:
    """The column after a block scalar's indicator, such as `|-`."""
    start = value.start_mark
    indicator = re.match(r"[|>][+-]?\d?[+-]?", lines[start.line][start.column :])
    return int(start.column) + (len(indicator[0]) if indicator else 1)
