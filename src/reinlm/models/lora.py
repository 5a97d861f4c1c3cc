"""Low-rank adapters on a model: their configuration, that of peft in its place, and the adapted model."""

from __future__ import annotations

import warnings
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, cast

from pydantic import Field

from reinlm.config import Config, build
from reinlm.errors import InputError, unknown
from reinlm.program import install

if TYPE_CHECKING:
    from transformers import PreTrainedModel


class LoraConfig(Config):
    """A low-rank adapter (arXiv 2106.09685): the base model is not trained. Needs the extra `lora`: `pip install '.[lora]'`."""

    rank: int = Field(default=16, ge=1)
    """Columns of the adapter's matrices."""
    alpha: float = Field(default=32.0, gt=0)
    """The adapter's output is scaled by alpha / rank."""
    dropout: float = Field(default=0.0, ge=0, lt=1)
    """Share of the adapter's inputs that sft drops at random; rl refuses it."""
    target_modules: str | list[str] = "all-linear"
    """Names of the modules to adapt, or "all-linear": every linear one but the head."""


def lora_config(given: Any) -> LoraConfig:
    """Our `LoraConfig` of a mapping, or of one of peft.

    Raises:
        InputError: an object of another type; an option of peft's that is set and has no counterpart here.
    """
    if isinstance(given, LoraConfig):
        return given
    if isinstance(given, Mapping):
        return build(LoraConfig, given)
    if type(given).__module__.partition(".")[0] != "peft" or type(given).__name__ != "LoraConfig":
        raise InputError(
            f"model.lora: an object of type {type(given).__name__} is no LoRA configuration",
            hint="give {'rank': 16, 'alpha': 32}, or a LoraConfig of peft",
        )
    own = {"r": "rank", "lora_alpha": "alpha", "lora_dropout": "dropout", "target_modules": "target_modules"}
    plain = type(given)()
    ignored = {*own, "task_type", "inference_mode", "base_model_name_or_path", "peft_version", "runtime_config"}
    for name, value in vars(given).items():
        if name not in ignored and not name.startswith("_") and value != getattr(plain, name, None):
            raise InputError(
                f"model.lora: {name} {value!r} of peft's LoraConfig has no counterpart here",
                hint=f"leave it out (taken: {', '.join(own)}), or give a model that peft has adapted",
            )
    if given.task_type not in (None, "CAUSAL_LM"):
        raise InputError(f"model.lora: task_type {given.task_type!r} is no language model", hint='give "CAUSAL_LM"')
    if given.target_modules is None:
        raise InputError(
            "model.lora: peft's LoraConfig names no target_modules", hint='give target_modules="all-linear", or names'
        )
    modules = given.target_modules
    return LoraConfig(
        rank=given.r,
        alpha=given.lora_alpha,
        dropout=given.lora_dropout,
        target_modules=modules if isinstance(modules, str) else sorted(modules),
    )


def adapted(model: PreTrainedModel, config: LoraConfig) -> PreTrainedModel:
    """The model with an adapter, whose weights alone are trained. Raises InputError for modules that cannot have one."""
    try:
        import peft
    except ImportError as error:
        raise InputError("model.lora needs peft", hint=install("lora")) from error
    if isinstance(config.target_modules, list):
        known = _linear_names(model)
        for name in config.target_modules:
            if name.rpartition(".")[2] not in known:
                raise unknown("module in model.lora.target_modules", name, known)
    head, embedding = model.get_output_embeddings(), model.get_input_embeddings()
    adapter = peft.LoraConfig(
        r=config.rank,
        lora_alpha=config.alpha,  # type: ignore[arg-type]  # any number scales
        lora_dropout=config.dropout,
        target_modules=config.target_modules,
        task_type=None if head is None else "CAUSAL_LM",
        exclude_modules=["score"] if head is None else None,  # a classifier's head is trained whole
    )
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", FutureWarning)  # peft asks transformers by an older name
            made = peft.get_peft_model(model, adapter)
    except ValueError as error:
        raise InputError(f"model.lora.target_modules {config.target_modules!r}: {first_line(error)}") from error
    head, embedding = model.get_output_embeddings(), model.get_input_embeddings()  # wrapped where they are adapted
    if (
        head is not None
        and head.weight is embedding.weight
        and (hasattr(head, "base_layer") or hasattr(embedding, "base_layer"))
    ):
        raise InputError(
            f"model.lora.target_modules {config.target_modules!r} names a head or embedding that share their weights",
            hint="a merged model cannot hold such an adapter: name other modules, or use all-linear",
        )
    return cast("PreTrainedModel", made)


def _linear_names(model: Any) -> set[str]:
    """The last names of the modules that an adapter can go on."""
    kinds = ("Linear", "Conv1D", "Embedding")
    return {name.rpartition(".")[2] for name, module in model.named_modules() if type(module).__name__ in kinds}


def first_line(error: BaseException) -> str:
    """The first line of an error's text that is not empty; the name of its type where there is none."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    return lines[0] if lines else type(error).__name__
