"""Load a model as a `Policy`: with stop tokens, padding token, context length and device.

Stop tokens are determined only here, for sampling, training and saving. transformers is imported when a model is loaded.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from pydantic import Field, field_validator

from reinlm.config import Config, ModelPath
from reinlm.errors import InputError
from reinlm.hub import missing_model, nearest_path, why_not_on_hub
from reinlm.models.lora import LoraConfig, adapted, first_line, lora_config

if TYPE_CHECKING:
    import torch
    from transformers import PreTrainedModel, PreTrainedTokenizerBase

_TOKENIZER_FILES = (
    "tokenizer.json",
    "tokenizer_config.json",
    "tokenizer.model",
    "vocab.json",
    "spiece.model",
)
CLASSIFIER = "ForSequenceClassification"
"""How transformers ends the names of its sequence classifiers."""
PROMPT_FORMAT = "prompt_format.json"
"""The file beside a trained model that says how its prompts were rendered."""
_WEIGHT_FILES = ("*.safetensors", "*.safetensors.index.json", "pytorch_model*.bin", "pytorch_model.bin.index.json")
_CONTEXT_KEYS = ("max_position_embeddings", "n_positions", "max_seq_len", "max_sequence_length", "seq_length", "n_ctx")


class ModelConfig(Config):
    """Which model, and how to load it."""

    path: ModelPath
    """A Hugging Face directory, or a name on the Hub."""
    dtype: Literal["auto", "float32", "bfloat16", "float16"] = "auto"
    """dtype of the weights. "auto": bfloat16 on CUDA, float32 elsewhere."""
    device: str = Field(default="auto", pattern=r"^(auto|cpu|mps|cuda(:\d+)?)$")
    """"auto": CUDA where there is one, else the CPU; MPS by name only."""
    attention: Literal["auto", "sdpa", "eager", "flash_attention_2"] = "auto"
    """"auto" leaves the choice to transformers."""
    lora: LoraConfig | None = None
    """A low-rank adapter on the model; null: the model itself is trained."""
    gradient_checkpointing: bool = False
    """Gradient checkpointing: keep only layer inputs and recompute the rest in the backward pass. Needs training mode."""
    trust_remote_code: bool = False
    """Run the Python code that comes with the model."""
    revision: str | None = None
    """Branch, tag or commit on the Hub."""

    @field_validator("lora", mode="before")
    @classmethod
    def _of_peft(cls, value: Any) -> Any:
        return value if value is None or isinstance(value, Mapping | LoraConfig) else lora_config(value)


@dataclass(frozen=True)
class Policy:
    """A causal language model with the properties that sampling and training share.

    Example:
        Policy(model=model, tokenizer=tokenizer, stops=(151645, 151643), pad_id=151643, context_length=40960)
    """

    model: PreTrainedModel
    tokenizer: PreTrainedTokenizerBase
    stops: tuple[int, ...]
    """Token ids that end an answer, the tokenizer's EOS first."""
    pad_id: int
    """A valid id for padding. It is never trained on, and the tokenizer is not changed for it."""
    context_length: int | None
    """The maximum number of tokens, prompt included; None if the configuration does not say."""
    prompt_format: Mapping[str, Any] | None = None
    """How prompts were rendered when it was trained (`reinlm.data.PromptFormat`); None where nothing says so."""

    @property
    def device(self) -> torch.device:
        """Where the weights are."""
        return next(self.model.parameters()).device


def load_policy(source: Any, *, tokenizer: PreTrainedTokenizerBase | None = None) -> Policy:
    """A policy from a `ModelConfig`, a path or name, a loaded model, a pair of model and tokenizer, or a policy.

    `tokenizer` replaces the one that comes with the model; a loaded model without one takes it from where it was
    loaded. A loaded model is not changed: its dtype, device, adapter and mode are kept.

    Raises:
        InputError: a folder without configuration, tokenizer or weights; an unknown architecture; weights that are
            missing or broken; a name that cannot be downloaded; a device that is not there; a tokenizer without EOS, or
            one with more tokens than the model.
    """
    if isinstance(source, str | Path):
        source = ModelConfig(path=str(source))
    if isinstance(source, ModelConfig):
        tokenizer = tokenizer or load_tokenizer(source)
        return _policy(_load_model(source), tokenizer, source.path)
    if isinstance(source, Policy):
        return source
    if isinstance(source, tuple):
        refuse_no_model(source)
        source, tokenizer = source
    refuse_no_model(source if tokenizer is None else (source, tokenizer))
    name = getattr(source.config, "_name_or_path", "")
    if tokenizer is None:
        if not name:
            raise InputError(f"this {type(source).__name__} comes without a tokenizer", hint="give (model, tokenizer)")
        tokenizer = load_tokenizer(ModelConfig(path=name))
    return _policy(source, tokenizer, name or type(source).__name__)


def refuse_no_model(source: Any) -> None:
    """Raise InputError for an object that is no model and no (model, tokenizer), with what to write instead."""
    if isinstance(source, Policy):
        return
    names = "give a folder, a name, a transformers model, or a pair (model, tokenizer)"
    if isinstance(source, list | tuple):
        if isinstance(source, list) or len(source) != 2:
            raise InputError(f"a {type(source).__name__} of {len(source)} is no model", hint="give (model, tokenizer)")
        model, tokenizer = source
        if _is_tokenizer(model) and hasattr(tokenizer, "generate"):
            raise InputError("(tokenizer, model) is the wrong way round", hint="give (model, tokenizer)")
        if isinstance(model, str) or isinstance(tokenizer, str):
            raise InputError(
                "a pair (model, tokenizer) holds loaded objects, not names",
                hint="give the name alone, which loads both, or load them with from_pretrained",
            )
        if not _is_tokenizer(tokenizer):
            raise InputError(f"a {type(tokenizer).__name__} is no tokenizer", hint="give (model, tokenizer)")
        source = model
    kind = type(source).__name__
    if _is_tokenizer(source):
        raise InputError(f"a tokenizer ({kind}) stands where a model belongs", hint="give (model, tokenizer)")
    if hasattr(source, "model") and hasattr(source, "tokenizer") and hasattr(source, "task"):
        raise InputError(f"a pipeline ({kind}) is no model", hint="give (pipeline.model, pipeline.tokenizer)")
    if isinstance(source, type):
        raise InputError(f"the class {source.__name__} is no model", hint="give a loaded one: from_pretrained(…)")
    if not hasattr(source, "generate"):
        raise InputError(f"cannot train on a model of type {kind}", hint=names)


def _is_tokenizer(source: Any) -> bool:
    return hasattr(source, "convert_tokens_to_ids")


def add_adapter(model: Any, config: LoraConfig) -> Policy:
    """A loaded model, (model, tokenizer) or policy with an adapter on it; its weights are the base, which is not trained."""
    policy = load_policy(model)
    if hasattr(policy.model, "peft_config"):
        raise InputError("the model has an adapter already", hint="leave peft_config out, or give the base model")
    return replace(policy, model=adapted(policy.model, config))


def load_tokenizer(config: ModelConfig) -> PreTrainedTokenizerBase:
    """The tokenizer of a model folder or name, without its weights. Raises InputError as `load_policy` does."""
    from transformers import AutoTokenizer

    _check_folder(config.path, "tokenizer", config.revision)
    return _call(AutoTokenizer.from_pretrained, config, "tokenizer")


def stop_ids(model: PreTrainedModel, tokenizer: PreTrainedTokenizerBase) -> tuple[int, ...]:
    """Every token that ends an answer, the tokenizer's EOS first, the others in ascending order.

    The union of tokenizer, generation configuration (which is where chat models name their end-of-turn tokens) and
    model configuration; ids that the model has no embedding for are left out.
    """
    configs = (getattr(model, "generation_config", None), model.config, model.config.get_text_config())
    named: set[int] = set()
    for config in configs:
        ids = getattr(config, "eos_token_id", None)
        named.update(ids if isinstance(ids, Iterable) else () if ids is None else (ids,))
    size = _embedded(model)
    first = int(tokenizer.eos_token_id)
    return (first, *sorted(token for token in named - {first} if 0 <= token < size))


def _policy(model: PreTrainedModel, tokenizer: PreTrainedTokenizerBase, name: str) -> Policy:
    if tokenizer.eos_token_id is None:
        raise InputError(
            f"the tokenizer of {name} has no EOS token, so no answer would ever end",
            hint="set tokenizer.eos_token to a token of its vocabulary and save it",
        )
    size = _embedded(model)
    if len(tokenizer) > size:
        raise InputError(
            f"the tokenizer of {name} has {len(tokenizer)} tokens and the model embeds {size}",
            hint="use the model's own tokenizer, or model.resize_token_embeddings(len(tokenizer))",
        )
    stops = stop_ids(model, tokenizer)
    pad = tokenizer.pad_token_id
    pad_id = stops[0] if pad is None else int(pad)
    return Policy(model, tokenizer, stops, pad_id, _context(model.config), _read_prompt_format(Path(name).expanduser()))


def _context(settings: Any) -> int | None:
    text = settings.get_text_config()
    lengths = (getattr(text, key, None) for key in _CONTEXT_KEYS)
    return next((int(length) for length in lengths if isinstance(length, int) and length > 0), None)


def stated_context(config: ModelConfig) -> int | None:
    """The most tokens that a model of a folder or name reads, without its weights; None where its configuration does not say."""
    from transformers import AutoConfig

    return _context(_call(AutoConfig.from_pretrained, config, "configuration"))


def _read_prompt_format(folder: Path) -> Mapping[str, Any] | None:
    file = folder / PROMPT_FORMAT
    if not file.is_file():
        return None
    try:
        found = json.loads(file.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise InputError(
            f"cannot read {file}: {first_line(error)}", hint="remove the file, and set data.chat"
        ) from error
    if not isinstance(found, dict):
        raise InputError(f"{file} holds no mapping", hint="remove the file, and set data.chat")
    return found


def _embedded(model: Any) -> int:
    """How many tokens the model has an embedding for."""
    return int(model.get_input_embeddings().weight.shape[0])


def load_classifier(config: ModelConfig, *, trained: bool = False) -> Policy:
    """A model with a head of one label, for reward models: of a folder or name, as `load_policy` loads language models.

    Args:
        trained: the head is in the folder; else a language model will do, and the head is new.

    Raises:
        InputError: as `load_policy`; an architecture that transformers has no sequence classifier of.
    """
    if trained:
        return _policy(_load_model(config, classifier=True), load_tokenizer(config), config.path)
    from transformers.utils import logging

    before = logging.get_verbosity()
    logging.set_verbosity_error()  # it reports the missing head
    try:
        return _policy(_load_model(config, 1, classifier=True), load_tokenizer(config), config.path)
    finally:
        logging.set_verbosity(before)


def is_classifier(config: ModelConfig) -> bool:
    """Whether a folder or a name holds a sequence classifier, such as a reward model. Raises InputError where neither is."""
    from transformers import AutoConfig

    _check_folder(config.path, "config.json", config.revision)
    return _names_classifier(_call(AutoConfig.from_pretrained, config, "configuration"))


def _names_language_model(settings: Any) -> bool:
    """Whether a model's configuration names a language model."""
    names = getattr(settings, "architectures", None) or ()
    return any(str(name).endswith(("ForCausalLM", "LMHeadModel")) for name in names)


def _no_reward_head(path: str) -> InputError:
    return InputError(
        f"{path} has no reward head: it is a language model",
        hint=f"train a reward model from it: `reinlm reward --model {path} --data pairs.jsonl --output runs/rm`",
    )


def _names_classifier(settings: Any) -> bool:
    return any(str(name).endswith(CLASSIFIER) for name in getattr(settings, "architectures", None) or ())


def as_policy(source: Any) -> Policy:
    """A policy of a loaded (model, tokenizer) whose model need not generate, such as a classifier; a policy as it is."""
    if isinstance(source, Policy):
        return source
    model, tokenizer = source
    return _policy(model, tokenizer, getattr(model.config, "_name_or_path", "") or type(model).__name__)


def classifier_of(policy: Policy) -> Policy:
    """A sequence classifier of one label with a copy of a language model's backbone, and a new head.

    Raises InputError for an adapter, and an architecture that transformers has no sequence classifier of.
    """
    import copy

    import torch
    from transformers import AutoModelForSequenceClassification

    lm: Any = policy.model
    if hasattr(lm, "peft_config"):
        raise InputError("the model has an adapter", hint="give the base model with model.lora, or a merged one")
    config = copy.deepcopy(lm.config)
    config.num_labels = 1
    try:
        with torch.random.fork_rng(devices=[]):
            made: Any = AutoModelForSequenceClassification.from_config(config, dtype=lm.dtype)
    except ValueError as error:
        raise InputError(f"{type(lm).__name__}: {first_line(error)}") from error
    getattr(made, made.base_model_prefix).load_state_dict(getattr(lm, lm.base_model_prefix).state_dict())
    return replace(policy, model=made.to(policy.device).eval())


def _load_model(config: ModelConfig, labels: int | None = None, *, classifier: bool = False) -> PreTrainedModel:
    """`labels`: of a classifier, a new head with so many outputs; None: that of the folder."""
    from transformers import AutoConfig, AutoModelForCausalLM, AutoModelForSequenceClassification

    device = _device(config.device)
    _refuse_idle(config)
    _check_folder(config.path, "config.json", config.revision)
    _check_folder(config.path, "weights", config.revision)
    settings = _call(AutoConfig.from_pretrained, config, "configuration")
    if not classifier and _names_classifier(settings):
        raise InputError(
            f"{config.path} is a reward model (a sequence classifier), which writes no text, and a language model belongs here",
            hint="give the language model; a reward model stands as reward=…, as critic.path, or as the model of `reinlm reward`",
        )
    if classifier and labels is None and _names_language_model(settings):
        raise _no_reward_head(config.path)
    options: dict[str, Any] = {"dtype": _dtype(config.dtype, device), "weights_only": True, "output_loading_info": True}
    if config.attention != "auto":
        options["attn_implementation"] = config.attention
    if labels is not None:
        options["num_labels"] = labels
    kind = AutoModelForSequenceClassification if classifier else AutoModelForCausalLM
    try:
        model, info = _call(kind.from_pretrained, config, "model", **options)
    except InputError as error:
        if isinstance(error.__cause__, ImportError | ValueError) and "ttention" in error.message:
            raise InputError(f"model.attention {config.attention}: {error.message}", hint="leave it out") from error
        raise
    for problem in ("missing_keys", "mismatched_keys"):
        keys = sorted((key for key in info[problem] if labels is None or not str(key).startswith("score.")), key=str)
        if keys and classifier and problem == "missing_keys" and all(str(key).startswith("score.") for key in keys):
            raise _no_reward_head(config.path)
        if keys:
            what = problem.split("_")[0]
            raise InputError(f"{config.path}: {len(keys)} weights are {what}, the first is {keys[0]}")
    model = model.to(device)
    if config.gradient_checkpointing:
        _checkpoint_layers(model)
    if config.lora is not None:
        model = adapted(model, config.lora)
    return model.eval()


def model_device(config: ModelConfig) -> torch.device:
    """Where a model is loaded to. Raises InputError for a device that is not there."""
    return _device(config.device)


def empty_model(config: ModelConfig) -> PreTrainedModel:
    """The model of a folder or name without values (on the meta device), with its dtype and its adapter: for counting.

    Raises InputError as `load_policy` does.
    """
    import torch
    from transformers import AutoConfig, AutoModelForCausalLM

    device = _device(config.device)
    _check_folder(config.path, "config.json", config.revision)
    _check_folder(config.path, "weights", config.revision)
    settings = _call(AutoConfig.from_pretrained, config, "configuration")
    with torch.device("meta"):
        model: PreTrainedModel = AutoModelForCausalLM.from_config(
            settings, dtype=_dtype(config.dtype, device), trust_remote_code=config.trust_remote_code
        )
        model.tie_weights()
        return model if config.lora is None else adapted(model, config.lora)


def _refuse_idle(config: ModelConfig) -> None:
    """Raise InputError for options that only names on the Hub, or models with Python code of their own, can follow."""
    folder = Path(config.path).expanduser()
    if not folder.is_dir():
        return
    if config.revision is not None:
        raise InputError(
            f"model.revision {config.revision} has no effect: {config.path} is a folder, and only the Hub has revisions",
            hint="leave model.revision out, or give a name on the Hub as model.path",
        )
    files = [folder / name for name in ("config.json", "tokenizer_config.json")]
    if config.trust_remote_code and not any(file.is_file() and b'"auto_map"' in file.read_bytes() for file in files):
        raise InputError(
            f"model.trust_remote_code has no effect: the model in {config.path} brings no Python code",
            hint="leave model.trust_remote_code out",
        )


def _checkpoint_layers(model: Any) -> None:
    # transformers 5.20 or so renamed the method, and warns of the older name
    enable = getattr(model, "activation_checkpointing_enable", None) or model.gradient_checkpointing_enable
    try:
        enable({"use_reentrant": False})
    except ValueError as error:
        raise InputError(f"model.gradient_checkpointing: {first_line(error)}") from error


def check_model_folder(path: str, key: str) -> None:
    """Raises InputError, which names the key, where a folder that is named is not there, or lacks a configuration or weights."""
    try:
        for need in ("config.json", "weights"):
            _check_folder(path, need, None)
    except InputError as error:
        raise InputError(f"{key}: {error.message}", hint=error.hint) from error


def _check_folder(path: str, need: str, revision: str | None) -> None:
    """Raise InputError for a model folder without a needed file, or a name that cannot be downloaded."""
    folder = Path(path).expanduser()
    if not folder.is_dir():
        refused = missing_model(path)
        if refused is not None:
            raise refused
        _check_name(path, revision)
        return
    patterns = {"config.json": ("config.json",), "tokenizer": _TOKENIZER_FILES, "weights": _WEIGHT_FILES}[need]
    if not any(next(folder.glob(pattern), None) for pattern in patterns):
        raise InputError(f"model folder {path} has no {need}", hint=f"expected {' or '.join(patterns)} in it")


def _check_name(name: str, revision: str | None) -> None:
    """Ask the Hub once for a name that is not in the cache; transformers itself would try again for a minute."""
    reason = why_not_on_hub(name, "model", revision)
    if reason is not None:
        near = nearest_path(name)
        spelling = (
            f"if it is a folder: did you mean {near!r}? else" if near else "if it is a folder, check its path; else"
        )
        raise InputError(
            f"model {name!r} is neither a folder here nor a name that can be downloaded: {reason}",
            hint=f"{spelling} check the name, the network, and `hf auth login` for gated models",
        )


def _call(load: Any, config: ModelConfig, what: str, **options: Any) -> Any:
    """Call a `from_pretrained`; whatever it raises becomes one line that names the model."""
    folder = Path(config.path).expanduser()
    options |= {"trust_remote_code": config.trust_remote_code}
    if config.revision is not None:
        options["revision"] = config.revision
    try:
        return load(str(folder) if folder.is_dir() else config.path, **options)
    except Exception as error:  # loaders raise many kinds of errors for broken folders
        raise InputError(f"cannot load the {what} of {config.path}: {first_line(error)}") from error


def _device(name: str) -> torch.device:
    import torch

    if name == "auto":
        return torch.device("cuda" if torch.cuda.is_available() else "cpu")
    device = torch.device(name)
    count = {"cuda": torch.cuda.device_count(), "mps": int(torch.backends.mps.is_available())}.get(device.type, 1)
    if (device.index or 0) >= count:
        raise InputError(f"device {name!r} is not here: this machine has {count} of its kind", hint="use device=auto")
    return device


def _dtype(name: str, device: torch.device) -> torch.dtype:
    import torch

    if name == "auto":
        name = "bfloat16" if device.type == "cuda" else "float32"
    dtype: torch.dtype = getattr(torch, name)
    return dtype
