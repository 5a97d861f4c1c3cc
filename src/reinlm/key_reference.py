"""The configuration reference: enumerates every key of every verb from the classes that hold them.

`python -m reinlm.key_reference` writes `keys.json` beside `reinlm.keys`, which everything else reads.
"""

from __future__ import annotations

import ast
import functools
import inspect
import json
import textwrap
import types
from collections.abc import Iterator, Mapping
from dataclasses import MISSING, asdict, fields, is_dataclass
from pathlib import Path
from typing import Annotated, Any, Literal, NamedTuple, Union, get_args, get_origin, get_type_hints

from pydantic_core import PydanticUndefined

from reinlm.algorithms import ALGORITHMS, PREFERENCES
from reinlm.aliases import ALIASES
from reinlm.classical.registry import catalogue, find
from reinlm.composition.algorithm import Algorithm
from reinlm.composition.changes import LISTS, OPTIONAL
from reinlm.composition.choices import FIELDS
from reinlm.composition.composition import OVERLONG, Updates
from reinlm.composition.document import yaml_text
from reinlm.config import Config
from reinlm.keys import REQUIRED, Key
from reinlm.loop.trackers.registry import tracker_configs
from reinlm.objectives import CHOICES, KL
from reinlm.objectives.kl import ANCHORS, NAMES, PLACEMENTS
from reinlm.objectives.layout import LEVELS
from reinlm.parts import PARTS
from reinlm.schedules import SCHEDULES
from reinlm.training.benchmark.config import OF_A_LOOP, BenchConfig
from reinlm.training.config import OF_TRAINING, GenerateConfig, RLConfig, SFTConfig
from reinlm.training.create import CreateConfig
from reinlm.training.dpo_config import DEFAULT_PREFERENCE, DPOConfig
from reinlm.training.eval_config import OF_A_RUN, EvalConfig
from reinlm.training.rejection.config import RFTConfig
from reinlm.training.reward_config import RewardModelConfig

CONFIGS: Mapping[str, type[Config]] = {
    "rl": RLConfig,
    "sft": SFTConfig,
    "rft": RFTConfig,
    "dpo": DPOConfig,
    "reward": RewardModelConfig,
    "eval": EvalConfig,
    "generate": GenerateConfig,
    "bench": BenchConfig,
    "create-model": CreateConfig,
}
"""The configuration of each verb of language models."""
_UNTRAINED = tuple(f"{section}.{name}" for section in ("model", "models.eval") for name in OF_TRAINING)
NOT_SET = {
    "": ("resolved",),
    "eval": (*(f"evaluation.{name}" for name in OF_A_RUN), *_UNTRAINED),
    "generate": _UNTRAINED,
    "bench": (*(f"training.{name}" for name in OF_A_LOOP), "algorithm.base", *(f"algorithm.{name}" for name in FIELDS)),
}
"""By verb, and for all: keys that runs write, or that belong to other verbs. They cannot be set."""


class _Row(NamedTuple):
    key: str
    type: str
    default: str
    doc: str


def enumerate_keys() -> list[Key]:
    """Every key of every verb, each once where type and description agree."""
    found: dict[tuple[str, str, str], dict[str, str]] = {}
    for verb, kind in CONFIGS.items():
        out = (*NOT_SET[""], *NOT_SET.get(verb, ()))
        for row in _config_rows(kind, ""):
            if not any(f"{row.key}.".startswith(f"{key}.") for key in out):
                found.setdefault((row.key, row.type, row.doc), {})[verb] = row.default
    keys = [Key(key, type_, doc, defaults) for (key, type_, doc), defaults in found.items()]
    return [*keys, *_classical_keys()]


# ---------------------------------------------------------------------------------------------------- configurations


def _config_rows(kind: type[Config], prefix: str) -> Iterator[_Row]:
    """The keys below one configuration class, and below the parts that its values may name."""
    docs = attribute_docs(kind)
    for name, member in kind.model_fields.items():
        key = f"{prefix}{name}"
        inner, many = _section_in(member.annotation)
        required = member.is_required()
        if inner is None or many or not required:
            default = REQUIRED if required else member.get_default(call_default_factory=True)
            if inner is None or many or default is None:
                text = default if default is REQUIRED else _default_text(default)
                if prefix == "critic.optimizer." and name != "warmup_steps":
                    text = "as optimizer's"
                yield _Row(key, _described(key, member.annotation, member.metadata), text, docs.get(name, ""))
        if inner is not None:
            yield from _config_rows(inner, f"{key}.eval." if many else f"{key}.")
        yield from _preference_rows() if key == "algorithm" and kind is DPOConfig else _part_rows(key)


def _section_in(annotation: Any) -> tuple[type[Config] | None, bool]:
    """The configuration class that a field holds, alone or as the values of a mapping."""
    many = get_origin(annotation) is dict
    for option in (annotation, *get_args(annotation)):
        if isinstance(option, type) and issubclass(option, Config):
            return option, many
    return None, False


def _part_rows(key: str) -> Iterator[_Row]:
    """The keys of the parts that the value of `key` may name."""
    if key == "algorithm":
        yield from _algorithm_rows()
    elif key == "optimizer.options" or key.endswith(".optimizer.options"):
        for part in PARTS["optimizer"].values():
            yield from _config_rows(part, f"{key}.")
    elif key == "reward.functions":
        for name, part in PARTS["reward"].items():
            yield _Row(f"{key}.{name}.weight", "number", "1.0", "Its weight in the sum of the rewards.")
            yield _Row(f"{key}.{name}.label", "text", name, "The name that it is logged by.")
            yield from _config_rows(part, f"{key}.{name}.")
    elif key in ("environment", "rollout.engine"):
        for name, part in PARTS[key.rpartition(".")[2]].items():
            yield from _config_rows(part, f"{key}.{name}.")
    elif key == "run.trackers":
        for name, settings in _own_trackers().items():
            yield from _config_rows(settings, f"{key}.{name}.")


def _own_trackers() -> dict[str, type[Config]]:
    """The settings of the library's own trackers, also in a process that has registered others."""
    return {name: kind for name, kind in tracker_configs().items() if kind.__module__.startswith("reinlm.")}


def _described(key: str, annotation: Any, metadata: Any = ()) -> str:
    """What may stand at `key`."""
    names = [name for name in _names(key) if annotation is not str or "{" not in name]
    text = " | ".join(names) if names else type_text(annotation, metadata)
    optional = type(None) in get_args(annotation)
    return f"{text} | null" if optional and not text.endswith("null") else text


def _names(key: str) -> list[str]:
    """The words that may stand at `key`, where a registry holds them."""
    last = key.rpartition(".")[2]
    if key in ("environment", "rollout.engine"):
        return [*PARTS[last], "{NAME: {key: value}}", *(["file.py:CLASS"] if last == "environment" else [])]
    if last == "name" and key.endswith("optimizer.name"):
        return [*PARTS["optimizer"]]
    if last in ("schedule", "clip_schedule"):
        return [*SCHEDULES]
    rewards = [*PARTS["reward"], "file.py:function", "{name: NAME, weight: 1}", "a list of them"]
    registries: dict[str, list[str]] = {
        "algorithm": [*ALGORITHMS, "{base: NAME, …}"],
        "reward.functions": rewards,
        "gold.reward": rewards,
        "run.trackers": [*_own_trackers(), "{NAME: {key: value}}", "a list of them"],
    }
    return registries.get(key, [])


# ---------------------------------------------------------------------------------------------------- algorithms


def _algorithm_rows() -> Iterator[_Row]:
    """The choices of an algorithm, and the values of each choice by its name."""
    docs = attribute_docs(Algorithm)
    yield _Row(
        "algorithm.base", " | ".join(ALGORITHMS), "grpo", "The named algorithm whose choices stand where none is given."
    )
    for choice in FIELDS:
        allowed = _allowed_choices(choice)
        yield _Row(f"algorithm.{choice}", allowed, "as in the base", docs.get(choice, ""))
        if choice in ("kl", "updates"):
            yield from _choice_rows(f"algorithm.{choice}.", KL if choice == "kl" else Updates)
        for name, made in CHOICES.get(LISTS.get(choice, choice), {}).items():
            alone = choice in OPTIONAL and len(CHOICES[choice]) == 1  # its name may be left out
            yield from _choice_rows(f"algorithm.{choice}." if alone else f"algorithm.{choice}.{name}.", made)


def _preference_rows() -> Iterator[_Row]:
    """The values of the losses of judged answers, each once, with the algorithms that have it."""
    yield _Row(
        "algorithm.base",
        " | ".join(PREFERENCES),
        DEFAULT_PREFERENCE,
        "The named algorithm whose values stand where none is given.",
    )
    yield _Row("algorithm.name", "text", "as in the base", "The name that the run shows.")
    yield _Row(
        "algorithm.loss",
        f"{' | '.join(CHOICES['preference'])} | file.py:NAME",
        "as in the base",
        "Another loss of judged answers.",
    )
    yield _Row(
        "algorithm.kl",
        "{estimator: k3, …} | null",
        "as in the base",
        "A KL to the reference at every token of the answers.",
    )
    rows: dict[str, list[tuple[str, _Row]]] = {}
    for name, made in CHOICES["preference"].items():
        for row in _choice_rows("algorithm.", made):
            rows.setdefault(row.key, []).append((name, row))
    for key, found in rows.items():
        docs = list(dict.fromkeys(row.doc for _, row in found if row.doc))
        of = ", ".join(name for name, _ in found)
        yield _Row(key, found[0][1].type, "as in the base", f"{' '.join(docs)} Of {of}.".strip())


def _allowed_choices(choice: str) -> str:
    if choice == "name":
        return "text"
    if choice == "overlong":
        return " | ".join(OVERLONG)
    if choice == "kl":
        return "{estimator: k3, …} | a list of them | null"
    if choice == "updates":
        return "{passes: 1, minibatches: 4}"
    kind = LISTS.get(choice, choice)
    alone = choice in OPTIONAL and len(CHOICES[kind]) == 1
    names = "{key: value}" if alone else " | ".join([*CHOICES[kind], "file.py:NAME"])
    return names + (" | a list of them" if choice in LISTS else " | null" if choice in OPTIONAL else "")


def _choice_rows(prefix: str, made: Any) -> Iterator[_Row]:
    """The fields of a choice; of one that a field holds, the name alone, and its values below a controller."""
    if not (isinstance(made, type) and is_dataclass(made)):
        return
    docs, hints = attribute_docs(made), get_type_hints(made, localns={"Advantage": Any, "Controller": Any})
    for member in fields(made):
        kind = member.metadata.get("kind")
        key = f"{prefix}{member.name}"
        default = REQUIRED if member.default is MISSING else yaml_text(member.default)
        if kind is None:
            text = " | ".join(_words(made, member.name)) or type_text(hints[member.name])
            if _words(made, member.name) and type(None) in get_args(hints[member.name]):
                text += " | null"
        else:
            text = " | ".join(CHOICES[kind]) + (" | null" if member.default is None else "")
        yield _Row(key, text, default, docs.get(member.name, "") or _first_sentence(made))
        if kind == "controller":
            for name, inner in CHOICES[kind].items():
                yield from _choice_rows(f"{key}.{name}.", inner)


_WORDS: Mapping[str, tuple[str, ...]] = {
    "estimator": NAMES,
    "anchor": ANCHORS,
    "placement": PLACEMENTS,
    "direction": ("reverse", "forward"),
    "against": ("old", "rollout"),
    "per": ("token", "sequence"),
    "by": ("token", "episode"),
    "level": ("token", *LEVELS[:3]),
}
"""The allowed words of a choice's text fields."""


def _words(made: Any, name: str) -> tuple[str, ...]:
    return _WORDS.get(name, ())


def _first_sentence(made: Any) -> str:
    return " ".join((made.__doc__ or "").split("\n\n")[0].split())


# ---------------------------------------------------------------------------------------------------- classical


def _classical_keys() -> list[Key]:
    """The settings of the algorithms of `reinlm classical`, each with the algorithms that have it.

    What an algorithm narrows to a single value is no setting of it.
    """
    found: dict[_Row, list[str]] = {}
    for card in catalogue():
        kind = find(card.name).Settings
        for row in _config_rows(kind, ""):
            if len(get_args(kind.model_fields[row.key].annotation)) != 1 or row.type != row.default:
                found.setdefault(row, []).append(card.name)
    return [Key(row.key, row.type, row.doc, {"classical": row.default}, tuple(of)) for row, of in found.items()]


# ---------------------------------------------------------------------------------------------------- text of a field


@functools.cache
def attribute_docs(kind: type) -> dict[str, str]:
    """The docstrings below the fields of a class and of its bases, each on one line; without source, none."""
    docs: dict[str, str] = {}
    for base in reversed(kind.__mro__):
        if base.__module__.split(".")[0] in ("builtins", "pydantic", "abc", "typing"):
            continue
        try:
            body = ast.parse(textwrap.dedent(inspect.getsource(base))).body[0]
        except (OSError, TypeError, SyntaxError):
            continue
        assert isinstance(body, ast.ClassDef)
        for node, following in zip(body.body, body.body[1:], strict=False):
            if (
                isinstance(node, ast.AnnAssign)
                and isinstance(node.target, ast.Name)
                and isinstance(following, ast.Expr)
            ):
                value = following.value
                if isinstance(value, ast.Constant) and isinstance(value.value, str):
                    docs[node.target.id] = " ".join(value.value.split())
    return docs


def type_text(annotation: Any, metadata: Any = ()) -> str:
    """A type with its range, in words: `integer ≥ 1`, `auto | always | never`, `number > 0 and < 1 | null`."""
    origin, arguments = get_origin(annotation), get_args(annotation)
    if origin is Annotated:
        return type_text(arguments[0], [*arguments[1:], *metadata])
    if origin in (Union, types.UnionType):
        parts = [type_text(option, metadata) for option in arguments if option is not type(None)]
        return " | ".join([*dict.fromkeys(parts), *(["null"] if type(None) in arguments else [])])
    if origin is Literal:
        return " | ".join(str(value) for value in arguments)
    if origin in (list, tuple):
        if origin is tuple and Ellipsis not in arguments:
            return f"[{', '.join(type_text(part) for part in arguments)}]"
        return f"list of {_PLURALS.get(type_text(arguments[0]), type_text(arguments[0]))}"
    name = _PLAIN.get(annotation) or (
        "mapping" if origin is dict else "section" if _section_in(annotation)[0] else "any"
    )
    return " ".join([name, " and ".join(_limits(metadata))]).strip() if name in _NUMBERS else name


_PLAIN: Mapping[Any, str] = {int: "integer", float: "number", str: "text", bool: "true | false"}
_NUMBERS = ("integer", "number")
_PLURALS = {"text": "texts", "integer": "integers", "number": "numbers", "any": "values", "integer ≥ 0": "integers ≥ 0"}
_SIGNS = {"ge": "≥", "gt": ">", "le": "≤", "lt": "<"}


def _limits(metadata: Any) -> list[str]:
    bounds = ((sign, getattr(item, name, None)) for item in metadata for name, sign in _SIGNS.items())
    return [
        f"{sign} {bound if isinstance(bound, int) else format(bound, 'g')}"
        for sign, bound in bounds
        if bound is not None
    ]


def _default_text(value: Any) -> str:
    if value is PydanticUndefined:
        return REQUIRED
    if isinstance(value, str):
        return value
    if isinstance(value, tuple | list):
        return f"[{', '.join(_default_text(item) for item in value)}]"
    if isinstance(value, Mapping):
        return "{}" if not value else json.dumps(value)
    return "null" if value is None else str(value).lower() if isinstance(value, bool) else f"{value}"


# ---------------------------------------------------------------------------------------------------- files


EFFECTS = Path(__file__).parent / "key_effects.json"
"""By verb and key: where a change of its value is seen, or why it is refused; `tests/keys/effects.py` measures and writes it."""


def _effect(key: Key, effects: Mapping[str, Mapping[str, str]]) -> str:
    """Where the effect of a key is seen, verbs with the same answer together."""
    verbs: dict[str, list[str]] = {}
    for verb in key.defaults:
        verbs.setdefault(effects.get(verb, {}).get(key.key, ""), []).append(verb)
    if len(verbs) == 1:
        return next(iter(verbs))
    return "; ".join(f"{', '.join(names)}: {text}" for text, names in verbs.items() if text)


def written() -> str:
    """The contents of keys.json."""
    rows = [
        {name: value for name, value in asdict(key).items() if value or name != "algorithms"}
        for key in enumerate_keys()
    ]
    return "[\n" + ",\n".join(json.dumps(row, ensure_ascii=False) for row in rows) + "\n]\n"


INTRODUCTION = """# Configuration

Every key of a recipe, of `key=value` on the command line, and of the sections that the verbs take from Python
(`reinlm.rl(rollout={"group_size": 16})` is `rollout.group_size=16`). `reinlm keys WORD` searches them, also by their names in
TRL, verl and Stable-Baselines3. The page is written by `reinlm keys --page` from the classes that hold the keys.

A recipe is a YAML file of these keys; what comes later overrides: recipe, flags, `key=value`
([what a given value changes](recipes.md#what-a-given-value-changes)). `null` switches off what is optional.
Relative paths count from the directory in which the command is started, also those of a recipe in another folder. The
last column says where another value of the key is seen, as a test measures it on a small model, beside what the key needs to mean
anything: in the logged metrics, the answers, the weights, the run's files, the messages, the processes that are started, or the
passes through the model (their shapes, types and number); or why the value that was tried is refused.
A value of a named part stands below the part's name: `algorithm.gate.clip.low`, `reward.functions.regex.pattern`.
"""
_TITLES = {"": "Keys that stand alone"}


def configuration_page() -> str:
    """docs/configuration.md: the keys of the verbs by section, then the settings of the classical algorithms."""
    groups: dict[str, list[Key]] = {}
    keys = enumerate_keys()
    for key in keys:
        if "classical" not in key.defaults:
            groups.setdefault(key.section, []).append(key)
    alone = {key.key for key in groups.get("", [])} & groups.keys()  # such as `reward` beside `reward.functions`
    for name in alone:
        groups[name] = [key for key in groups[""] if key.key == name] + groups[name]
    groups[""] = [key for key in groups[""] if key.key not in alone]
    effects = json.loads(EFFECTS.read_text(encoding="utf-8"))
    lines = [INTRODUCTION]
    for section, members in groups.items():
        lines += [
            f"## {_TITLES.get(section, f'`{section}`')}",
            "",
            _HEAD.format(of="verbs | where its effect is seen", rule="---|---"),
        ]
        lines += [*(_page_row(key, ", ".join(key.defaults), _effect(key, effects)) for key in members), ""]
    lines += ["## Settings of `reinlm classical`", "", _HEAD.format(of="algorithms", rule="---")]
    lines += [_page_row(key, ", ".join(key.algorithms)) for key in keys if "classical" in key.defaults]
    return "\n".join(lines) + "\n"


_HEAD = "| key | what may stand there | default | what it does | {of} |\n|---|---|---|---|{rule}|"


def _page_row(key: Key, *of: str) -> str:
    several = len(set(key.defaults.values())) > 1
    default = (
        "; ".join(f"{verb}: {text}" for verb, text in key.defaults.items())
        if several
        else next(iter(key.defaults.values()))
    )
    cells = (f"`{key.key}`", key.type, default, key.doc, *of)
    return "| " + " | ".join(cell.replace("|", "\\|") for cell in cells) + " |"


def names_table(library: str) -> str:
    """The Markdown table of a library's option names; those without a counterpart for one reason share a row."""
    classical = library == "Stable-Baselines3"
    heads = ["`reinlm classical`", "`reinlm rl`"] if classical else ["here", "what differs"]
    rows: dict[tuple[str, ...], list[str]] = {}
    for name, alias in ALIASES[library].items():
        ours, note = (f"`{alias.ours}`" if alias.ours else ""), alias.note.replace("|", "\\|")
        cells: tuple[str, ...] = (ours, note)
        if classical:
            cells = (
                f"`{alias.classical}`" if alias.classical else "",
                "; ".join(part for part in (ours, note) if part),
            )
        rows.setdefault((*cells, "") if not (alias.ours or alias.classical) else (*cells, name), []).append(name)
    lines = [[library or "name", *heads], ["---"] * 3]
    lines += [[", ".join(f"`{name}`" for name in names), *cells[:2]] for cells, names in rows.items()]
    return "\n".join("| " + " | ".join(cells) + " |" for cells in lines)


if __name__ == "__main__":
    (Path(__file__).parent / "keys.json").write_text(written(), encoding="utf-8")
