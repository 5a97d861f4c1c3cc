"""Save a policy as a Hugging Face directory, and restore its weights exactly."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

from reinlm.errors import InputError
from reinlm.importing import refuse_while_importing
from reinlm.models.loading import PROMPT_FORMAT, Policy

if TYPE_CHECKING:
    import torch

ADAPTER = "adapter"
"""The folder beside a merged model that holds its adapter."""


def save_policy(policy: Policy, folder: str | Path) -> None:
    """Write a directory that `AutoModelForCausalLM.from_pretrained` and `load_policy` load.

    Its generation configuration names every stop token, and `prompt_format.json` says how prompts were rendered in
    training. A model with LoRA is written merged, with the adapter as it is in `adapter/`, from which `restore_policy`
    restores the exact weights.
    """
    refuse_while_importing("reinlm.save_policy")
    folder = Path(folder)
    model: Any = policy.model
    if hasattr(model, "merge_and_unload"):
        model.save_pretrained(folder / ADAPTER, selected_adapters=["default"])
        model.get_base_model().save_pretrained(folder, state_dict=_merged(model))
    else:
        model.save_pretrained(folder)
    policy.tokenizer.save_pretrained(folder)
    if policy.prompt_format is not None:
        text = json.dumps(dict(policy.prompt_format), indent=2, ensure_ascii=False)
        (folder / PROMPT_FORMAT).write_text(text + "\n", encoding="utf-8")
    path = folder / "generation_config.json"
    generation = json.loads(path.read_text(encoding="utf-8")) if path.exists() else {}
    generation |= {"eos_token_id": list(policy.stops), "pad_token_id": policy.pad_id}
    path.write_text(json.dumps(generation, indent=2) + "\n", encoding="utf-8")


def restore_policy(policy: Policy, folder: str | Path) -> None:
    """Give `policy.model` the weights that `save_policy` wrote to `folder`, bit for bit, in place.

    Raises:
        InputError: the folder holds another kind of model, or none.
    """
    import torch

    folder = Path(folder)
    with torch.no_grad():
        if hasattr(policy.model, "merge_and_unload"):
            _restore_adapter(policy.model, folder / ADAPTER)
        else:
            _restore_model(policy.model, folder)


def _restore_model(model: Any, folder: Path) -> None:
    file = folder / "config.json"
    if not file.is_file():
        raise InputError(f"{folder} holds no model", hint="give a folder that save_policy wrote")
    kind = json.loads(file.read_text(encoding="utf-8")).get("model_type")
    if kind != model.config.model_type:
        raise InputError(f"{folder} holds a {kind} model, and this one is a {model.config.model_type}")
    saved = type(model).from_pretrained(folder, dtype=model.dtype, weights_only=True)
    try:
        model.load_state_dict(saved.state_dict())
    except RuntimeError as error:
        raise InputError(f"{folder} holds a {kind} model of another shape than this one") from error


def _restore_adapter(model: Any, folder: Path) -> None:
    from peft import set_peft_model_state_dict
    from safetensors.torch import load_file

    file = folder / "adapter_model.safetensors"
    if not file.is_file():
        raise InputError(
            f"{folder.parent} holds no adapter", hint="resume with the model.lora of the run that wrote it"
        )
    try:
        outcome: Any = set_peft_model_state_dict(model, load_file(file))
    except RuntimeError as error:
        raise InputError(f"{folder} holds an adapter of another shape than model.lora") from error
    if unexpected := outcome.unexpected_keys:
        raise InputError(f"{folder} holds an adapter of other modules than model.lora names: {unexpected[0]}")


def _merged(model: Any) -> dict[str, torch.Tensor]:
    """The base model's weights by their own names, the adapter "default" added; on the CPU.

    W + B A · alpha / rank for every module that has one. The model itself is not changed.
    """
    weights = {}
    deltas = {
        name: module.get_delta_weight("default").detach()
        for name, module in model.get_base_model().named_modules()
        if hasattr(module, "get_delta_weight") and "default" in getattr(module, "scaling", {})
    }
    for name, weight in model.get_base_model().state_dict().items():
        if ".lora_" in name:
            continue
        module, _, last = name.rpartition(".")
        owner = module.removesuffix(".base_layer")
        value = weight.detach()
        if module != owner and last == "weight":
            value = value + deltas[owner].to(value.dtype)
        weights[f"{owner}.{last}" if owner else last] = value.to("cpu", copy=True)
    return weights
