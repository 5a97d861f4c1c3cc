"""Merge recipe, flags, overrides and keywords into one tree of settings, from which a configuration is built.

Later ones go over earlier ones (`merge_settings`), by one rule: a given value changes that value and nothing beside it.

- A single value may stand for a section, as its main key: `model: PATH` is `model: {path: PATH}`, and `--reward X` over a
  section of rewards changes which rewards there are, and not their time limit.
- Where a key names one of several kinds (`environment: {guess: {tries: 2}}`), the same name keeps the other values, and
  another name replaces them with its own defaults. In a list of such kinds (rewards, trackers) a mapping changes the item of
  its name, which of `file.py:f` is also `f`. `optimizer.options` belong to `optimizer.name`.
- Choices of an algorithm follow `reinlm.composition.changes`; another base comes with its own choices.
- null removes, and a list replaces a list.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

from reinlm.config import HIDDEN, Config, apply_overrides, may_be_secret, read_recipe, redact
from reinlm.errors import InputError
from reinlm.importable import load_imports
from reinlm.keys import keys_of
from reinlm.sources import DEFAULT_OF, RUN_HEADER, Key, leaves, read_sources

MAIN = {
    **dict.fromkeys(("model", "reference", "teacher", "data"), "path"),
    "text": "data",
    "reward": "functions",
    "gold": "reward",
    "judge": "function",
}
"""Sections that a single value may replace -> the key that the value sets."""
NAMED: tuple[Key, ...] = (("environment",), ("rollout", "engine"))
"""Keys whose value is one of several kinds: NAME, or {NAME: values}."""
NAMED_LISTS: tuple[Key, ...] = (("reward", "functions"), ("gold", "reward"), ("run", "trackers"))
"""Keys whose value is a list of such kinds, or one of them."""
DEFAULT_EPOCHS = 1.0
LENGTHS = ("steps", "epochs")
"""Keys of `training` of which a run has one."""
DEFAULT_ALGORITHM = "grpo"
PYTHON = "Python"
"""The source of what is given by keyword."""


class Settings(dict[str, Any]):
    """A tree of settings, and where its values came from.

    Example:
        >>> merge_settings(Settings(), {"rollout": {"group_size": 4}}, "--group-size").sources
        {('rollout', 'group_size'): '--group-size'}
    """

    def __init__(self, tree: Mapping[str, Any] | None = None, sources: Mapping[Key, str] | None = None) -> None:
        super().__init__(tree or {})
        self.sources = dict(sources or {})
        """Path of a key -> what gave it: `recipe gsm8k.yaml`, `--reward`, `rollout.group_size=16`, `Python`."""


def read(recipe: Any) -> Settings:
    """The settings of a recipe: a YAML file, a mapping, or None for none.

    Of a run's config.yaml the values that the run had from defaults have no source.

    Raises:
        InputError: a file that cannot be read, or a value of another type.
    """
    if recipe is None:
        return Settings()
    if isinstance(recipe, Settings):
        return recipe
    if isinstance(recipe, Mapping):
        return merge_settings(Settings(), recipe)
    if not isinstance(recipe, str | Path):
        raise InputError(
            f"recipe: {recipe!r} is neither a file nor a mapping", hint="give a YAML file, or {section: …}"
        )
    name = f"recipe {Path(recipe).name}"
    found = merge_settings(Settings(), read_recipe(recipe), name)
    text = Path(recipe).read_text(encoding="utf-8")
    if text.startswith(RUN_HEADER):
        found.sources = dict.fromkeys(_given_in(text, found), name)
    return found


def read_run(folder: str | Path) -> Settings:
    """What config.yaml in a run folder holds, with the sources that it names."""
    file = Path(folder) / "config.yaml"
    tree = expand_sections(read_recipe(file))
    return Settings(tree, _given_in(file.read_text(encoding="utf-8"), tree))


def _given_in(text: str, tree: Mapping[str, Any]) -> dict[Key, str]:
    """The sources in a run's config.yaml of what was given; not of the choices that its algorithm brought along."""
    algorithm = tree.get("algorithm")
    base = algorithm.get("base") if isinstance(algorithm, Mapping) else algorithm
    return {
        path: source
        for path, source in read_sources(text).items()
        if path[0] != "algorithm" or (source != base and not source.startswith(DEFAULT_OF))
    }


def merge_settings(tree: Mapping[str, Any], changes: Mapping[str, Any], source: str = PYTHON) -> Settings:
    """Lay `changes` over `tree`; neither is changed.

    Args:
        source: where the changes come from; those that are `Settings` say so themselves.
    """
    base, given = expand_sections(tree), expand_sections(changes)
    for at in NAMED_LISTS:
        given = _placed(base, given, at)
    if "algorithm" in given and "algorithm" in base:
        load_imports(given.get("imports") or base.get("imports") or [])
    sources = dict(tree.sources) if isinstance(tree, Settings) else {}
    fresh = changes.sources if isinstance(changes, Settings) else dict.fromkeys(_given(given), source)
    if _another_algorithm(base.get("algorithm"), given.get("algorithm")):
        sources = {key: name for key, name in sources.items() if key[0] != "algorithm"}  # its choices went with it
    for path in fresh:
        sources = {key: name for key, name in sources.items() if key[: len(path)] != path}
    return Settings(_merge(base, given, ()), sources | fresh)


def _another_algorithm(old: Any, new: Any) -> bool:
    """Whether a change of the algorithm names another one than the one that it changes."""
    if old is None or new is None:
        return False
    from reinlm.algorithms import algorithm_name, preference_name  # they import torch, which a wrong path needs not

    names = [spec.get("base") if isinstance(spec, Mapping) else spec for spec in (old, new)]
    judged = _of_judgements(old, new)
    default, read_name = ("dpo", preference_name) if judged else (DEFAULT_ALGORITHM, algorithm_name)
    known = [read_name(name) if isinstance(name, str) else default for name in names]
    return known[0] != known[1] and names[1] is not None


def _of_judgements(*specs: Any) -> bool:
    """Whether changes of an algorithm are of one that learns from judged answers."""
    from reinlm.algorithms import of_judgements  # it imports torch, which a wrong path is refused without

    return any(of_judgements(spec) for spec in specs)


def _given(tree: Mapping[str, Any]) -> Iterator[Key]:
    """The paths of the values that are given; those of an algorithm with all names spelled out."""
    spelled = dict(tree)
    algorithm = tree.get("algorithm")
    if isinstance(algorithm, str):
        spelled["algorithm"] = {"base": algorithm}
    elif isinstance(algorithm, Mapping):
        from reinlm.algorithms import spell_changes  # it imports torch, which a wrong path is refused without

        spelled["algorithm"] = algorithm if _of_judgements(algorithm) else spell_changes(algorithm)
    for path, _ in leaves(spelled):
        yield path


def _merge(base: Mapping[str, Any], changes: Mapping[str, Any], at: Key) -> dict[str, Any]:
    merged = dict(base)
    for key, value in changes.items():
        path, old = (*at, str(key)), merged.get(key)
        if old is None:
            merged[key] = value
        elif path == ("algorithm",):
            from reinlm.algorithms import merge_preference_specs, merge_specs

            judged = _of_judgements(old, value)
            merged[key] = merge_preference_specs(old, value) if judged else merge_specs(old, value, DEFAULT_ALGORITHM)
        elif path == ("evaluation", "data") and not isinstance(old, Mapping) and isinstance(value, Mapping):
            merged[key] = _merge({"eval": {"path": old}}, value, path)  # one set without a name is `eval`
        elif path == ("evaluation", "data") and isinstance(value, Mapping) and "path" not in {**old, **value}:
            before, after = ({name: _as_data(one) for name, one in sets.items()} for sets in (old, value))
            merged[key] = _merge(before, after, path)
        elif path == ("text", "data"):
            merged[key] = _merge({"data": _as_data(old)}, {"data": _as_data(value)}, ())["data"]
        elif path in NAMED:
            merged[key] = _named(old, value)
        elif path in NAMED_LISTS:
            merged[key] = _named_list(old, value)
        elif isinstance(old, Mapping) and isinstance(value, Mapping):
            kept = _of_another_optimizer(old, value) if key == "optimizer" else old
            merged[key] = _merge(kept, value, path)
        else:
            merged[key] = value
    return merged


def _as_data(given: Any) -> Any:
    """A file, or a list of files or rows, as the section of data that it stands for."""
    return {"path": given} if isinstance(given, str | Path | list) else given


def _of_another_optimizer(old: Mapping[str, Any], new: Mapping[str, Any]) -> Mapping[str, Any]:
    """The settings of an optimizer without the options of the one that another replaces."""
    another = "name" in new and new["name"] != old.get("name")
    return {key: value for key, value in old.items() if key != "options"} if another else old


def _name(item: Any) -> str | None:
    """The name in NAME, {NAME: values} or {name: NAME, …}."""
    if isinstance(item, str):
        return item
    if isinstance(item, Mapping):
        if isinstance(item.get("name"), str):
            return str(item["name"])
        return str(next(iter(item))) if len(item) == 1 else None
    return None


def _values(item: Any) -> Mapping[str, Any]:
    """The values beside the name."""
    if not isinstance(item, Mapping):
        return {}
    if "name" in item:
        return {key: value for key, value in item.items() if key != "name"}
    (values,) = item.values()
    return values if isinstance(values, Mapping) else {}


def _named(old: Any, new: Any) -> Any:
    """One of several kinds: the same name keeps the other values, another one replaces them."""
    beside = isinstance(old, Mapping) and "name" in old and isinstance(new, Mapping)
    if beside and "name" not in new and not any(isinstance(value, Mapping) for value in new.values()):
        return {**old, **new}  # {name: regex, pattern: …} and a value of it
    name = _name(new)
    if name is None or name != _name(old):
        return new
    values = _merge(_values(old), _values(new), ())
    if not values:
        return name
    spelled = any(isinstance(item, Mapping) and "name" in item for item in (old, new))
    return {"name": name, **values} if spelled else {name: values}


def _placed(base: dict[str, Any], changes: dict[str, Any], at: Key) -> dict[str, Any]:
    """The changes with `{f: values}` as `{file.py:f: values}`, where the base has that and no built-in one is called `f`."""
    section, key = at
    old, new = (tree[section].get(key) if isinstance(tree.get(section), Mapping) else None for tree in (base, changes))
    name = _name(new)
    if not isinstance(new, Mapping) or "name" in new or name is None:
        return changes
    places = [_name(item) or "" for item in (old if isinstance(old, list | tuple) else [old])]
    meant = [place for place in places if place != name and place.rpartition(":")[2] == name]
    if len(meant) != 1 or any(one.key.startswith(f"{section}.{key}.{name}.") for one in keys_of("rl")):
        return changes
    return {**changes, section: {**changes[section], key: {meant[0]: new[name]}}}


def _named_list(old: Any, new: Any) -> Any:
    """Several of several kinds: a mapping changes the one of its name, anything else says which there are."""
    if not isinstance(old, list | tuple):
        return new if isinstance(new, list | tuple) else _named(old, new)
    at = [index for index, item in enumerate(old) if _name(item) is not None and _name(item) == _name(new)]
    if not isinstance(new, Mapping) or len(at) != 1:
        return new
    return [_named(item, new) if index == at[0] else item for index, item in enumerate(old)]


def override(tree: Mapping[str, Any], words: Iterable[str]) -> Settings:
    """Apply overrides `a.b=value` to `tree`, one after the other.

    Raises:
        InputError: a word that is no key=value, or a key that only a run's own file may hold.
    """
    changed = tree if isinstance(tree, Settings) else merge_settings(Settings(), tree)
    for word in words:
        change = apply_overrides({}, [word])
        refuse_resolved(change)
        shown = word if redact(change) == change else f"{word.partition('=')[0]}={HIDDEN}"
        changed = merge_settings(changed, change, shown)
    return changed


def one_or_several(tree: Settings) -> Settings:
    """Settings of eval without the `model` or the `data` of a recipe where several are given over it, or the other way round."""
    sets = (tree.get("evaluation") or {}).get("data") if isinstance(tree.get("evaluation"), Mapping) else None
    kept = dict(tree)
    for one, several, value in (("model", ("models",), tree.get("models")), ("data", ("evaluation", "data"), sets)):
        given = [
            any(path[: len(key)] == key and not source.startswith("recipe ") for path, source in tree.sources.items())
            for key in ((one,), several)
        ]
        if not (tree.get(one) and value) or given[0] == given[1]:
            continue
        if given[1]:
            del kept[one]
        elif len(several) == 1:
            del kept[several[0]]
        else:
            kept["evaluation"] = {name: part for name, part in kept["evaluation"].items() if name != "data"}
    return Settings(kept, tree.sources)


def resolved_of(settings: Mapping[str, Any]) -> Mapping[str, Any]:
    """What a run wrote down beside its settings: `resolved` of its config.yaml. Raises InputError for what is no section."""
    found = settings.get("resolved") or {}
    if not isinstance(found, Mapping):
        raise InputError(f"resolved in config.yaml is {found!r}, not a section", hint="runs write it; restore the file")
    return found


def refuse_resolved(given: Mapping[str, Any]) -> None:
    """Raise InputError for `resolved`, a section that runs write and that cannot be set."""
    if "resolved" in given:
        raise InputError(
            "'resolved' cannot be set: it is what a run writes down beside its settings",
            hint="set the section itself, such as data.renderer",
        )


def expand_sections(tree: Mapping[str, Any]) -> dict[str, Any]:
    """Replace single values by the sections that they stand for."""
    sections = dict(tree)
    for section, key in MAIN.items():
        value = sections.get(section)
        if value is None or isinstance(value, Config):
            continue
        if not isinstance(value, Mapping) or (section in ("reward", "gold") and _is_one_reward(value, key)):
            sections[section] = {key: str(value) if isinstance(value, Path) else value}
    return sections


def _is_one_reward(value: Mapping[str, Any], main: str) -> bool:
    """Whether a mapping is one reward, `{name: …}` or `{regex: {…}}`, and not the section with rewards under `main`."""
    if main in value:
        return False
    return (
        "name" in value or "function" in value or (len(value) == 1 and isinstance(next(iter(value.values())), Mapping))
    )


# ---------------------------------------------------------------------------------------------------- placeholders


_FROM_PYTHON = re.compile(r"<.+>", re.DOTALL)


def is_model_placeholder(path: str) -> bool:
    """Whether `model.path` of a config.yaml stands for a loaded model: `<Qwen3ForCausalLM given in Python, loaded from PATH>`."""
    return _FROM_PYTHON.fullmatch(path) is not None


def loaded_from(path: str) -> str:
    """The folder or name that a `model.path` of a config.yaml means; of a loaded model what it was loaded from, else its kind.

    Example:
        >>> loaded_from("<Qwen3ForCausalLM given in Python, loaded from models/chat>")
        'models/chat'
        >>> loaded_from("<Qwen3ForCausalLM given in Python>")
        '<Qwen3ForCausalLM>'
    """
    found = re.fullmatch(r"<(.+?) given in Python(?:, loaded from (.+))?>", path)
    return path if found is None else found[2] or f"<{found[1]}>"


def refuse_placeholders(tree: Mapping[str, Any]) -> None:
    """Raise InputError for placeholders in config.yaml: redacted secrets, and objects that were given in Python."""
    for path, value in _texts(tree):
        key = ".".join(path)
        if value == HIDDEN and may_be_secret(path[-1]):
            raise InputError(
                f"{key} is {HIDDEN!r}: a run's file does not hold secrets",
                hint=f"give it again, {key}=VALUE, such as {key}=$NAME in a shell that has it in a variable",
            )
        named = path[0] in (*MAIN, "environment", "evaluation", "algorithm", "rollout", "optimizer")
        if named and _FROM_PYTHON.fullmatch(value) and (" given in Python" in value or path == ("model", "path")):
            again = (
                "model=…, or --model PATH" if path[0] == "model" else f"{path[0]}=… in the call that resumes the run"
            )
            raise InputError(
                f"{key} was given in Python and is not in the file: {value}", hint=f"give it again: {again}"
            )


def refuse_two_lengths(tree: Mapping[str, Any]) -> None:
    """Raise InputError where `training.steps` and `training.epochs` are both given, also where one equals its default.

    Values that a run's config.yaml holds from defaults are not given: `Settings.sources` says which are.
    """
    training = tree.get("training")
    if isinstance(training, Config):
        both = {name: getattr(training, name, None) for name in LENGTHS if name in training.model_fields_set}
    elif isinstance(training, Mapping) and isinstance(tree, Settings):
        both = {name: training.get(name) for name in LENGTHS if ("training", name) in tree.sources}
    else:
        return
    of_a_run = bool(tree.get("resolved")) and both.get("epochs") == DEFAULT_EPOCHS  # its file holds defaults too
    unusable = any(value is None or value == math.inf for value in both.values())
    if len(both) == len(LENGTHS) and not unusable and not of_a_run:
        given = " and ".join(f"training.{name} {value}" for name, value in both.items())
        raise InputError(f"{given} both say how long the run is; give one of them")


def _texts(value: Any, path: tuple[str, ...] = ()) -> Iterator[tuple[tuple[str, ...], str]]:
    """Every text in a tree of settings with the keys that lead to it; rows of data are no settings."""
    if isinstance(value, str):
        yield path, value
    elif isinstance(value, Mapping):
        for key, item in value.items():
            yield from _texts(item, (*path, str(key)))
    elif isinstance(value, list | tuple) and path and path[-1] not in ("path", "prompts"):
        for item in value:
            yield from _texts(item, path)
