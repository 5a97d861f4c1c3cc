"""Configuration: pydantic models that reject unknown keys, built from YAML, keywords and `key=value` overrides.

Each part defines its configuration beside it, derived from `Config`. A recipe is YAML; an override is `a.b=value`, where
the value is read as YAML too (`optimizer.learning_rate=1e-6`, `reward=[math, format]`).
"""

from __future__ import annotations

import contextlib
import math
import re
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Annotated, Any, ClassVar, TypeVar

import yaml
from pydantic import BaseModel, BeforeValidator, ConfigDict, ValidationError

from reinlm.errors import InputError, ReinlmError, nearest
from reinlm.keys import key_hint
from reinlm.places import model_folder

_ConfigT = TypeVar("_ConfigT", bound="Config")
MAX_SECONDS = 1e6
"""The longest time limit that a recipe may set, about 11 days: clocks of the system count no longer than some years."""
HIDDEN = "***"
"""Replaces secrets in the files of a run."""
_SECRET = re.compile(r"(token|secret|password|passwd|(api|access|private)[-_]?key)$", re.IGNORECASE)
_OF_A_TOKENIZER = re.compile(
    r"(^|[-_])(bos|eos|pad|unk|sep|cls|mask|bo[aiv]|eo[aiv]|image|video|audio|start|end|begin|stop|think|thinking|tool|call|"
    r"fim|prefix|suffix|middle|special|added|new|first|last|per|max|min)[-_]?token$",
    re.IGNORECASE,
)


class Config(BaseModel):
    """Base of every configuration: frozen, unknown keys are errors, numbers are finite, defaults are validated.

    A field that may be infinite or NaN says `Field(allow_inf_nan=True)`.
    """

    model_config = ConfigDict(
        extra="forbid", frozen=True, validate_default=True, arbitrary_types_allowed=True, allow_inf_nan=False
    )

    verb: ClassVar[str] = ""
    """The verb whose keys a configuration holds; empty for that of a part."""

    def changed(self, name: str) -> bool:
        """Whether a value differs from its default. (A run's config.yaml contains every key, so presence is no evidence.)"""
        default = type(self).model_fields[name].get_default(call_default_factory=True)
        return bool(getattr(self, name) != default)


def _model_path(value: Any) -> Any:
    if isinstance(folder := getattr(value, "folder", None), Path):  # the result of a run
        value = folder
    if not isinstance(value, str | Path):
        raise ValueError(
            f"a model's folder or Hugging Face name stands here, not an object of type {type(value).__name__}"
        )
    return model_folder(str(value))


ModelPath = Annotated[str, BeforeValidator(_model_path)]
"""Where a model is: a folder, or a name on the Hub. A run's folder or result stands for its last checkpoint."""


_COMPILED = yaml.__with_libyaml__  # some ten times as fast, with shorter messages


class _Loader(yaml.SafeLoader):
    """Reads `1e-6` as a number, which YAML 1.1 reads as text."""


class _FastLoader(yaml.CSafeLoader if _COMPILED else yaml.SafeLoader):  # type: ignore[misc]
    """The same by libyaml, where it is there."""


class _Dumper(yaml.SafeDumper):
    """Quotes texts such as `1e-6` that the loaders would read as numbers."""


class _FastDumper(yaml.CSafeDumper if _COMPILED else yaml.SafeDumper):  # type: ignore[misc]
    """The same by libyaml, which refuses half of a surrogate pair."""


for _kind in (_Loader, _FastLoader, _Dumper, _FastDumper):
    _kind.add_implicit_resolver(
        "tag:yaml.org,2002:float",
        re.compile(
            r"^[-+]?(?:\d+\.?\d*(?:[eE][-+]?\d+)|\d+\.\d*|\.\d+(?:[eE][-+]?\d+)?|\.(?:inf|Inf|INF)|\.(?:nan|NaN|NAN))$"
        ),
        list("-+0123456789."),
    )


def parse_yaml(text: str, source: str) -> Any:
    """Read YAML, with `1e-6` as a number; an `InputError` names `source` and the line where it is malformed."""
    try:
        tree = _read(yaml.load, text)
    except yaml.YAMLError as error:
        mark = getattr(error, "problem_mark", None)
        where = f"{source}:{mark.line + 1}" if mark else source
        raise InputError(f"{where}: not valid YAML: {getattr(error, 'problem', error)}") from error
    if (word := _colon_without_space(tree)) is not None:
        name, _, value = word.partition(":")
        raise InputError(
            f"{source}: {word!r} is one word to YAML", hint=f"write a space after the colon: {name}: {value}"
        )
    return tree


_JOINED = re.compile(r"[A-Za-z_]\w*:[^\s:/\\]+")
"""A name, a colon and a value without a space; neither a place such as file.py:NAME nor an address."""


def _colon_without_space(tree: Any) -> str | None:
    """A key without a value that is `name:value`, such as YAML makes of `{beta:0.1}`."""
    if isinstance(tree, Mapping):
        for key, value in tree.items():
            if value is None and isinstance(key, str) and _JOINED.fullmatch(key):
                return key
    parts: Iterable[Any] = tree.values() if isinstance(tree, Mapping) else tree if isinstance(tree, list) else ()
    return next((found for part in parts if (found := _colon_without_space(part)) is not None), None)


def dump_yaml(tree: Any, *, one_line: bool = False) -> str:
    """Write plain values as YAML that `parse_yaml` reads back to the same values, keys in their order.

    `one_line` writes lists and mappings in brackets, as they are typed after `key=`, without a line break at the end.
    """
    style: dict[str, Any] = {"sort_keys": False, "allow_unicode": True, "width": 120}
    if one_line:
        text = yaml.dump(tree, Dumper=_Dumper, **style | {"default_flow_style": True, "width": math.inf})
        return text.removesuffix("\n").removesuffix("\n...")
    with contextlib.suppress(UnicodeEncodeError):
        return yaml.dump(tree, Dumper=_FastDumper, **style)
    return yaml.dump(tree, Dumper=_Dumper, **style)


def yaml_nodes(text: str) -> yaml.Node | None:
    """The nodes of a YAML text, with their places in it."""
    node: yaml.Node | None = _read(yaml.compose, text)
    return node


def _read(function: Callable[..., Any], text: str) -> Any:
    """`yaml.load` or `yaml.compose`. What libyaml refuses, PyYAML reads, or says what is wrong with it."""
    with contextlib.suppress(yaml.YAMLError, UnicodeEncodeError):
        return function(text, Loader=_FastLoader)
    return function(text, Loader=_Loader)


def read_recipe(path: str | Path) -> dict[str, Any]:
    """The mapping that a recipe file holds."""
    path = Path(path)
    if not path.is_file():
        raise InputError(f"no such recipe: {path}", hint="give a YAML file, or flags such as --model and --data")
    tree = parse_yaml(path.read_text(encoding="utf-8"), str(path))
    if tree is None:
        return {}
    if not isinstance(tree, dict):
        raise InputError(f"{path}: a recipe is a mapping of keys to values, not {type(tree).__name__}")
    return tree


def apply_overrides(tree: Mapping[str, Any], overrides: Iterable[str]) -> dict[str, Any]:
    """`tree` with every `a.b=value` set; the input is not changed."""
    merged = dict(tree)
    for override in overrides:
        key, separator, text = override.partition("=")
        if not separator or not key.strip():
            raise InputError(
                f"cannot read {override!r}", hint="an override is key=value, such as rollout.group_size=16"
            )
        value = parse_yaml(text, f"override {key}") if text.strip() else None
        merged = merge(merged, _nest(key.strip().split("."), value))
    return merged


def merge(base: Mapping[str, Any], changes: Mapping[str, Any]) -> dict[str, Any]:
    """Deep merge of mappings; `changes` wins. Settings are merged by `reinlm.recipe.merge_settings`, which knows them."""
    merged = dict(base)
    for key, value in changes.items():
        old = merged.get(key)
        both = isinstance(old, Mapping) and isinstance(value, Mapping)
        merged[key] = merge(old, value) if both else value  # type: ignore[arg-type]  # mypy does not see `both`
    return merged


def build(kind: type[_ConfigT], tree: Mapping[str, Any]) -> _ConfigT:
    """Validate `tree` as `kind`; the first error is raised as an `InputError` with key, value and hint."""
    try:
        return kind.model_validate(tree)
    except ValidationError as error:
        raise validation_message(kind, error) from error


def redact(tree: Any) -> Any:
    """A copy in which the values of keys that look like secrets are `'***'`; sections of such a name are searched.

    Tokens of a tokenizer (`eos_token`) are no secrets, and rows of data (`path: [{…}]`) are left as they are.
    """
    if isinstance(tree, Mapping):
        return {k: HIDDEN if _is_secret(k, v) else v if _is_rows(k, v) else redact(v) for k, v in tree.items()}
    if isinstance(tree, list | tuple):
        return [redact(value) for value in tree]
    return tree


def may_be_secret(key: str) -> bool:
    """Whether a key ends like the name of a secret."""
    return bool(_SECRET.search(key))


def _is_secret(key: Any, value: Any) -> bool:
    plain = value is not None and not isinstance(value, Mapping | bool)
    return plain and may_be_secret(str(key)) and not _OF_A_TOKENIZER.search(str(key))


def _is_rows(key: Any, value: Any) -> bool:
    return key == "path" and isinstance(value, list | tuple)


def differences(old: Any, new: Any, prefix: str = "") -> list[str]:
    """The differences of two configurations, one line each: `rollout.group_size: 8 -> 16`."""
    if isinstance(old, Mapping) and isinstance(new, Mapping):
        lines = []
        for key in sorted({*old, *new}, key=str):
            path = f"{prefix}.{key}" if prefix else str(key)
            lines += differences(old.get(key), new.get(key), path)
        return lines
    return [] if old == new else [f"{prefix}: {old!r} -> {new!r}"]


def _nest(path: list[str], value: Any) -> dict[str, Any]:
    for part in reversed(path):
        value = {part: value}
    return value


def validation_message(kind: type[BaseModel], error: ValidationError) -> InputError:
    """The first of the complaints about a configuration, with key, value and hint."""
    # A misspelt key is often the reason why another one is missing: it comes first.
    first = min(error.errors(), key=lambda one: one["type"] != "extra_forbidden")
    path = [str(part) for part in first["loc"]]
    whole = "" if getattr(kind, "verb", "") else kind.__name__
    where = ".".join(path) or whole
    if first["type"] == "extra_forbidden":
        known = _fields(kind, path[:-1])
        near = nearest(path[-1], known)
        hint = f"did you mean {'.'.join([*path[:-1], near])!r}?" if near else f"known here: {', '.join(sorted(known))}"
        verb = getattr(kind, "verb", "")
        elsewhere = key_hint(path, first.get("input"), verb=verb) if verb or not near else None
        if near and elsewhere and ".*:" in elsewhere and len(path) > 1:  # of a whole section: a near name says more
            elsewhere = None
        return InputError(f"unknown key {where!r}", hint=elsewhere or hint)
    if first["type"] == "missing":
        return InputError(f"{where!r} is required", hint=f"set {where}=… or name it in the recipe")
    cause = first.get("ctx", {}).get("error")
    if isinstance(cause, ReinlmError):
        named = not path or cause.message.startswith(f"{where}: ")
        return InputError(cause.message if named else f"{where}: {cause.message}", hint=cause.hint)
    message = first["msg"].removeprefix("Value error, ")
    message = message[0].lower() + message[1:]
    if path and _TAG.fullmatch(path[-1]):  # one of several types that may stand there
        where = ".".join(path[:-1])
        others = [one["msg"] for one in error.errors() if one["loc"][:-1] == first["loc"][:-1]][1:]
        message = " or ".join([message, *(text.removeprefix("Input should be ") for text in others)])
    given = first.get("input")
    plain = isinstance(given, str | int | float | list | tuple | None)
    shown = f" (given: {_short(given)})" if plain else ""
    return InputError(f"{where}: {message}{shown}" if where else message)


_TAG = re.compile(r"str|int|float|bool|(dict|list|tuple)\[.*\]")
"""What pydantic calls a member of a union, at the end of an error's place."""


def _short(value: Any) -> str:
    text = " ".join(repr(value).split())
    return text if len(text) <= 200 else f"{text[:200]}…"


def _fields(kind: type[BaseModel], path: list[str]) -> set[str]:
    """The keys known at `path` inside `kind`."""
    current: Any = kind
    for part in path:
        model_field = current.model_fields.get(part)
        if model_field is None:
            continue  # a union's tag or a list index
        options = [model_field.annotation, *getattr(model_field.annotation, "__args__", ())]
        current = next((o for o in options if isinstance(o, type) and issubclass(o, BaseModel)), None)
        if current is None:
            return set()
    return set(current.model_fields)
