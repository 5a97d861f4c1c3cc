"""Positional arguments and keywords of the verbs become sections of a configuration."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from reinlm.config import Config, merge
from reinlm.data.frames import is_rows, rows_of
from reinlm.errors import InputError
from reinlm.loop import RunResult
from reinlm.models import Policy
from reinlm.models.loading import add_adapter, refuse_no_model
from reinlm.models.lora import lora_config
from reinlm.recipe import merge_settings, refuse_resolved
from reinlm.training.base_session import Session
from reinlm.training.benchmark import BenchConfig
from reinlm.training.config import GenerateConfig, RLConfig, SFTConfig
from reinlm.training.dpo_config import DPOConfig
from reinlm.training.eval_config import EvalConfig
from reinlm.training.rejection.config import RFTConfig
from reinlm.training.reward_config import RewardModelConfig

_TRAINING = ("sft", "rl", "rft", "dpo", "reward")
KINDS: dict[str, type[Config]] = {
    "sft": SFTConfig,
    "rl": RLConfig,
    "rft": RFTConfig,
    "dpo": DPOConfig,
    "reward": RewardModelConfig,
    "eval": EvalConfig,
    "generate": GenerateConfig,
    "bench": BenchConfig,
}
"""The configuration of each verb."""


def read_prompts(given: Any) -> list[Any]:
    """A list of prompts; a single text, chat or row becomes a list of one, and a column or a frame a list of its values."""
    if isinstance(given, Mapping) and "prompt" not in given and not _has_role(given):
        raise InputError(
            f"prompts: a row needs the key 'prompt', and this one has {', '.join(map(str, given)) or 'none'}",
            hint="give a text, {'prompt': text}, or a list of them",
        )
    if isinstance(given, str | Mapping) or (isinstance(given, list) and given and _has_role(given[0])):
        return [[given] if _has_role(given) else given]
    if hasattr(given, "columns") or hasattr(given, "column_names"):
        given, _ = rows_of(given)
    if not isinstance(given, Iterable):
        raise InputError(f"prompts: {given!r} is no prompt", hint="give a text, a chat, or a list of them")
    prompts = list(given)
    if not prompts:
        raise InputError("prompts: the list is empty", hint="give a text, a chat, or a list of them")
    return prompts


def _has_role(value: Any) -> bool:
    return isinstance(value, Mapping) and "role" in value


def split_model_argument(
    model: Any, data: Any, output: Any, sections: Mapping[str, Any], *, trains: bool
) -> tuple[Any, dict[str, Any]]:
    """Put the common arguments into their sections; of a loaded model the configuration holds only the name.

    Args:
        trains: whether the model will be trained; a run's result then stands for its checkpoint, else for its policy.
    """
    refuse_resolved(sections)
    merged = dict(sections)
    adapter = lora_config(peft) if (peft := merged.pop("peft_config", None)) is not None else None
    loaded = None
    if isinstance(model, RunResult):
        model, loaded = str(model.folder), None if trains else model.policy
    elif model is not None and not isinstance(model, str | Path | Mapping | Config):
        if isinstance(model, Session):
            raise InputError(f"a {type(model).__name__} stands where a model belongs", hint="give trainer.policy")
        refuse_no_model(model)
        loaded = model if adapter is None else add_adapter(model, adapter)
        inner = model.model if isinstance(model, Policy) else model[0] if isinstance(model, tuple) else model
        origin = getattr(getattr(inner, "config", None), "_name_or_path", "")
        model = f"<{type(inner).__name__} given in Python{f', loaded from {origin}' if origin else ''}>"
    elif isinstance(model, Mapping) and any(hasattr(value, "requires_grad") for value in model.values()):
        raise InputError("weights alone are no model", hint="give the model that has them, as (model, tokenizer)")
    if model is not None:
        merged["model"] = model
    if adapter is not None and loaded is None:
        own = merged.get("model")
        section = own if isinstance(own, Mapping) else {} if own is None else {"path": own}
        merged["model"] = {**section, "lora": adapter.model_dump()}
    if data is not None:
        merged["data"] = data if isinstance(data, Config) or not is_rows(data) else {"path": data}
    if output is not None:
        merged = merge_settings(
            merge_settings({}, merged), {"run": {"output": str(output)}} if trains else {"output": str(output)}
        )
    return loaded, merged


SHORT: Mapping[str, Mapping[str, tuple[str, ...]]] = {
    "sft": {"steps": ("training", "steps"), "eval_data": ("evaluation", "data")},
    "rl": {"steps": ("training", "steps"), "eval_data": ("evaluation", "data")},
    "rft": {"steps": ("training", "steps"), "eval_data": ("evaluation", "data")},
    "dpo": {"steps": ("training", "steps"), "eval_data": ("evaluation", "data")},
    "reward": {"steps": ("training", "steps"), "eval_data": ("evaluation", "data")},
    "eval": {name: ("evaluation", name) for name in ("samples", "temperature", "top_p", "top_k", "max_new_tokens")},
    "generate": {
        **{name: ("sampling", name) for name in ("temperature", "top_p", "top_k", "max_new_tokens")},
        "system": ("system_prompt",),
        "prompt": ("prompts",),
    },
    "bench": {
        name: ("rollout", name)
        for name in ("prompt_tokens", "max_new_tokens", "group_size", "batch_size", "ignore_eos")
    },
}
"""verb -> keyword that stands for a key inside a section -> that key. A flag of the command line has the same name."""


_SAMPLING = {
    **dict.fromkeys(("max_completion_length", "max_tokens", "max_length"), "max_new_tokens"),
    **dict.fromkeys(("num_return_sequences", "num_generations", "n"), "samples"),
}
"""Keyword of other libraries' sampling -> the keyword of `evaluate` and `generate`."""


def expand_short_keywords(verb: str, given: Mapping[str, Any]) -> dict[str, Any]:
    """The keywords with those of `SHORT` at the keys that they stand for.

    Raises InputError where a value is given by both names.
    """
    foreign = next((name for name in given if verb not in _TRAINING and name in _SAMPLING), None)
    if foreign is not None:
        raise InputError(
            f"there is no {foreign}", hint=f"it is called {_SAMPLING[foreign]} here: {_SAMPLING[foreign]}=…"
        )
    evaluation = given.get("evaluation")
    if evaluation is not None and not isinstance(evaluation, Mapping | Config):
        raise InputError(
            f"evaluation is a section, not {type(evaluation).__name__}",
            hint='data to evaluate on: evaluation={"data": …}',
        )
    tree = {name: value for name, value in given.items() if name not in SHORT[verb]}
    for name, path in SHORT[verb].items():
        if name not in given:
            continue
        value = given[name]
        if name == "eval_data" and (is_rows(value) or isinstance(value, Config) or "path" in value):
            value = {"eval": value if not is_rows(value) else {"path": value}}
        section = tree.get(path[0])
        if len(path) == 1:
            tree[path[0]] = one_of(path[0], tree.get(path[0]), value, name)
            continue
        if isinstance(section, Mapping) and path[1] in section:
            raise InputError(f"{name} and {'.'.join(path)} are the same, and both are given", hint="give one of them")
        tree = merge(tree, {path[0]: {path[1]: value}})
    return tree


def one_of(name: str, value: Any, other: Any, short: str) -> Any:
    if value is not None and other is not None:
        raise InputError(f"{short} and {name} are the same, and both are given", hint="give one of them")
    return other if value is None else value


def given_keywords(verb: str, keywords: Mapping[str, Any]) -> dict[str, Any]:
    """The keywords without those that are None; an unknown name stays whatever its value, and is refused where it is read."""
    known = {*KINDS[verb].model_fields, *SHORT[verb], "output", "peft_config"}
    return {name: value for name, value in keywords.items() if value is not None or name not in known}


_OPTIONS = ("recipe", "resume", "overwrite", "quiet", "command", "callbacks")
_FLAGS: Mapping[str, str] = {
    "resume": "resume=True goes on from the newest checkpoint in output; to begin a new run from a checkpoint give its folder "
    "as the model",
    "overwrite": "overwrite=True replaces what is in output",
    "quiet": "quiet=True shows nothing",
}
"""Keyword that is True or False -> what True does."""


def check_flags(**flags: Any) -> None:
    """Raise InputError for a value of resume, overwrite or quiet that is neither True nor False."""
    for name, value in flags.items():
        if not isinstance(value, bool):
            raise InputError(f"{name} is True or False, not {value!r}", hint=_FLAGS[name])


def arguments(
    verb: str, model: Any, data: Any, keywords: Mapping[str, Any]
) -> tuple[Any, dict[str, Any], dict[str, Any]]:
    """Split arguments into a loaded model or None, the sections of the configuration, and all other keywords."""
    options = {name: keywords[name] for name in _OPTIONS if keywords.get(name) is not None}
    check_flags(**{name: options[name] for name in _FLAGS if name in options})
    given = expand_short_keywords(
        verb, given_keywords(verb, {n: value for n, value in keywords.items() if n not in _OPTIONS})
    )
    loaded, sections = split_model_argument(model, data, given.pop("output", None), given, trains=verb in _TRAINING)
    return loaded, sections, options
