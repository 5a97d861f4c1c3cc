"""Weights on their way from the trainer to vLLM: how they are named and packed, and what takes them inside vLLM's workers."""

from __future__ import annotations

import base64
import functools
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from reinlm.models.modules import whole

EXTENSION = "reinlm.rollouts.vllm_worker.WeightReceiver"
"""What vLLM is given as `worker_extension_cls`."""
CHUNK_BYTES = 64 << 20
"""Bytes of tensors that one call to a server carries, about; a larger tensor goes alone."""
SHAPE = ("model_type", "vocab_size", "hidden_size", "num_hidden_layers", "num_attention_heads", "num_key_value_heads")
"""Entries of a model's configuration by which a server's model is compared with the trainer's."""

Weights = Mapping[str, Tensor]


@dataclass(frozen=True)
class Adapter:
    """A LoRA adapter as peft names its parts.

    Example:
        Adapter({"r": 8, "lora_alpha": 16, "target_modules": ["q_proj"]}, {"base_model.model.….lora_A.weight": weight})
    """

    config: Mapping[str, Any]
    weights: Weights

    @property
    def rank(self) -> int:
        return int(self.config["r"])


def model_shape(config: Any) -> dict[str, Any]:
    """The entries `SHAPE` of a Hugging Face configuration; None for those that it lacks."""
    text = config.get_text_config(decoder=True) if hasattr(config, "get_text_config") else config
    return {name: getattr(text, name, None) for name in SHAPE}


def base_weights(model: nn.Module) -> dict[str, Tensor]:
    """The weights under the names of a checkpoint, without an adapter's; they share the model's memory, unless it is sharded.

    A head that is tied to the embedding is among them: vLLM keeps it in a layout of its own.
    """
    from transformers.core_model_loading import revert_weight_conversion

    inner: Any = model.get_base_model() if hasattr(model, "get_base_model") else model  # type: ignore[operator]
    found = {
        name.replace(".base_layer.", "."): whole(value.detach())
        for name, value in inner.state_dict().items()
        if "lora_" not in name
    }
    converted: dict[str, Tensor] = revert_weight_conversion(inner, found)
    return converted


def adapter_of(model: Any) -> Adapter | None:
    """The active adapter of a model of peft; None where there is none."""
    if not hasattr(model, "peft_config"):
        return None
    from peft import get_peft_model_state_dict

    name = model.active_adapter
    config = model.peft_config[name].to_dict()
    modules = config["target_modules"]
    config["target_modules"] = modules if isinstance(modules, str) else sorted(modules)
    weights = {
        name: whole(value.detach()) for name, value in get_peft_model_state_dict(model, adapter_name=name).items()
    }
    return Adapter({name: value for name, value in config.items() if _plain(value)}, weights)


def _plain(value: Any) -> bool:
    return value is None or isinstance(value, bool | int | float | str | list)


def packed(weights: Weights, dtype: torch.dtype) -> Iterator[str]:
    """The weights as texts of about `CHUNK_BYTES` bytes each: safetensors in base64, floats cast to `dtype`."""
    from safetensors.torch import save

    piece: dict[str, Tensor] = {}
    size = 0
    for name, value in weights.items():
        kept = value.to(dtype) if value.is_floating_point() else value
        if piece and size + kept.nbytes > CHUNK_BYTES:
            yield base64.b64encode(save(piece)).decode("ascii")
            piece, size = {}, 0
        piece[name] = kept.cpu().clone(memory_format=torch.contiguous_format)
        size += kept.nbytes
    yield base64.b64encode(save(piece)).decode("ascii")


class WeightReceiver:
    """Takes the trainer's weights. vLLM adds its methods to the class of its workers, so their names begin with `reinlm_`.

    In one process `reinlm_load` and `reinlm_adapter` are given tensors. A server is sent the pieces of `packed` with
    `reinlm_append`, and then one of the two without tensors.
    """

    model_runner: Any
    vllm_config: Any
    reinlm_pieces: dict[str, Tensor]
    reinlm_adapters: dict[str, tuple[Mapping[str, Any], Weights]]

    def reinlm_describe(self) -> dict[str, Any]:
        """What a client has to know of the engine."""
        model, lora = self.vllm_config.model_config, self.vllm_config.lora_config
        return {
            "shape": model_shape(model.hf_config),
            "dtype": str(model.dtype).removeprefix("torch."),
            "context_length": model.max_model_len,
            "logprobs_mode": model.logprobs_mode,
            "max_lora_rank": lora.max_lora_rank if lora is not None else None,
        }

    def reinlm_load(self, weights: Iterable[tuple[str, Tensor]] | None = None) -> None:
        """Take these weights of the base model (names of a checkpoint), or those that were appended."""
        self.model_runner.reload_weights(
            weights_iterator=iter(self._reinlm_taken().items() if weights is None else weights)
        )

    def reinlm_adapter(self, path: str, config: Mapping[str, Any] | str, weights: Weights | None = None) -> None:
        """Take these weights, or those that were appended, as the adapter that LoRA requests name by `path`.

        Args:
            config: of peft, as a mapping or JSON. Only the newest adapter is kept.
        """
        import json

        taken = self._reinlm_taken() if weights is None else weights
        self.reinlm_adapters = {path: (json.loads(config) if isinstance(config, str) else config, taken)}
        manager = self.model_runner.lora_manager
        if not isinstance(manager._load_adapter, functools.partial):
            manager._load_adapter = functools.partial(self._reinlm_load_adapter, manager, manager._load_adapter)

    def reinlm_append(self, piece: str) -> None:
        """Keep a piece of `packed` until the call that takes it."""
        from safetensors.torch import load

        if not hasattr(self, "reinlm_pieces"):
            self.reinlm_pieces = {}
        self.reinlm_pieces |= load(base64.b64decode(piece))

    def reinlm_forget(self) -> None:
        """Drop pieces that nothing took: those of a trainer that ended between two calls."""
        self.reinlm_pieces = {}

    def _reinlm_taken(self) -> dict[str, Tensor]:
        taken, self.reinlm_pieces = self.reinlm_pieces, {}
        return taken

    def _reinlm_load_adapter(self, manager: Any, from_disk: Callable[[Any], Any], request: Any) -> Any:
        """vLLM's adapter for a request: from memory where its path names one that was taken."""
        if request.lora_path not in self.reinlm_adapters:
            return from_disk(request)
        from vllm.lora.peft_helper import PEFTHelper

        config, weights = self.reinlm_adapters[request.lora_path]
        peft = PEFTHelper.from_dict({**config, "vllm_max_position_embeddings": manager.max_position_embeddings})
        peft.validate_legal(manager.lora_config)
        model = manager._adapter_manager.model
        mapper = getattr(model, "hf_to_vllm_mapper", None)
        lora = manager._lora_model_cls.from_lora_tensors(
            request.lora_int_id,
            {name: value.clone() for name, value in weights.items()},
            peft,
            device="cpu",
            dtype=manager.lora_config.lora_dtype,
            model_vocab_size=manager.vocab_size,
            weights_mapper=mapper.get_rename_mapper() if mapper is not None else None,
            skip_prefixes=getattr(model, "lora_skip_prefixes", None),
        )
        lora.is_3d_lora_weight = request.is_3d_lora_weight
        return lora
