"""Arguments of `reinlm.evaluate`: one or several models, on one or several sets of prompts."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from reinlm.api.arguments import split_model_argument
from reinlm.config import Config
from reinlm.data import DataConfig
from reinlm.data.frames import is_rows
from reinlm.errors import InputError
from reinlm.loop import RunResult
from reinlm.models import ModelConfig
from reinlm.places import short_names
from reinlm.recipe import merge_settings

OF_ROWS = {*DataConfig.model_fields, "prompt", "messages", "text", "question"}
"""Keys of a mapping that is a section of data, or columns; another one names sets."""
ONE = ""
"""In place of the name of a model that is given alone."""


def evaluation_arguments(model: Any, data: Any, sections: Mapping[str, Any]) -> tuple[dict[str, Any], dict[str, Any]]:
    """Put models and sets into their sections.

    Returns:
        Loaded models by name, that of `model` alone under `ONE`; and the sections.

    Raises:
        InputError: a list with loaded models, which have no names.
    """
    merged = dict(sections)
    if _names_sets(data):
        merged = dict(merge_settings({}, merged) | {"evaluation": _with_sets(merged.get("evaluation"), data)})
        data = None
    text = merged.get("text")
    if isinstance(text, Mapping) and not is_rows(text) and "data" not in text:
        merged["text"] = {"data": text}
    models = merged.pop("models", None)
    if models is None:
        models = _named_models(model)
        model = None if models is not None else model
    one, merged = split_model_argument(model, data, merged.pop("output", None), merged, trains=False)
    loaded = {} if one is None else {ONE: one}
    if models is not None:
        if not isinstance(models, Mapping):
            raise InputError(f"models is a mapping of names to models, not {type(models).__name__}")
        merged["models"] = {}
        for name, given in models.items():
            own, section = split_model_argument(given, None, None, {}, trains=False)
            merged["models"][name] = section["model"]
            loaded |= {} if own is None else {name: own}
    return loaded, merged


def _names_sets(data: Any) -> bool:
    """Whether a mapping names sets of prompts, and is no section of data itself."""
    return not is_rows(data) and bool(data) and OF_ROWS.isdisjoint(data)


def _with_sets(evaluation: Any, sets: Mapping[str, Any]) -> dict[str, Any]:
    """The section `evaluation` with these sets."""
    if isinstance(evaluation, Config):
        evaluation = {name: getattr(evaluation, name) for name in evaluation.model_fields_set}
    if (evaluation or {}).get("data"):
        raise InputError("data and evaluation.data both name sets", hint="give one of them")
    return {**(evaluation or {}), "data": dict(sets)}


def _named_models(model: Any) -> dict[str, Any] | None:
    """Several models by name; None for one."""
    if isinstance(model, Mapping) and not any(hasattr(value, "requires_grad") for value in model.values()):
        return dict(model) if model and ModelConfig.model_fields.keys().isdisjoint(model) else None
    if not isinstance(model, list):
        return None
    paths = [str(item.folder if isinstance(item, RunResult) else item) for item in model if _is_place(item)]
    if not model or len(paths) < len(model):
        raise InputError(
            "a list of models holds folders or names on the Hub", hint='give loaded models by name: {"sft": model, …}'
        )
    if len({*paths}) < len(paths):
        raise InputError("two of the models are the same", hint='give them names: {"greedy": model, …}')
    return dict(zip(short_names(paths), model, strict=True))


def _is_place(item: Any) -> bool:
    return isinstance(item, str | Path | RunResult)
