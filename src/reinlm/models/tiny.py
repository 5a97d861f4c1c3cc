"""Tiny models and tokenizers from scratch: for the quickstart, tests and experiments on a laptop."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any, Literal, cast, get_args

from reinlm.errors import InputError, unknown

if TYPE_CHECKING:
    from transformers import PreTrainedModel, PreTrainedTokenizerFast

Family = Literal["qwen3", "llama", "gpt2", "qwen3_moe"]

PAD = "<pad>"
EOS = "<eos>"


def tiny_model(
    family: Family,
    *,
    vocab_size: int,
    hidden_size: int = 64,
    layers: int = 2,
    heads: int = 4,
    intermediate_size: int | None = None,
    context: int = 128,
    init_std: float = 0.02,
    rope_theta: float = 10000.0,
    tie: bool = True,
    seed: int = 0,
) -> PreTrainedModel:
    """A causal language model of a known architecture with random float32 weights, on the CPU, in evaluation mode.

    `tie` shares the embedding's weight with the head, there is no dropout, and `intermediate_size` is 4 · hidden_size
    unless given. A qwen3_moe has 4 experts, 2 of them active, of half that size. Same arguments and seed, same weights;
    the global random state is as it was afterwards.

    Raises:
        InputError: an unknown family, or a hidden size that the heads do not divide.
    """
    import torch
    from transformers import AutoModelForCausalLM

    if family not in get_args(Family):
        raise unknown("family", family, get_args(Family))
    if hidden_size % heads:
        raise InputError(f"hidden_size {hidden_size} is not a multiple of heads {heads}")
    config = _config(family, vocab_size, hidden_size, layers, heads, intermediate_size or 4 * hidden_size, context)
    config.initializer_range = init_std
    if family != "gpt2":
        config.rope_parameters["rope_theta"] = rope_theta
    config.tie_word_embeddings = tie
    with torch.random.fork_rng(devices=[]), torch.device("cpu"):
        torch.default_generator.manual_seed(seed)
        return cast("PreTrainedModel", AutoModelForCausalLM.from_config(config, dtype=torch.float32).eval())


def _config(family: Family, vocab: int, hidden: int, layers: int, heads: int, inner: int, context: int) -> Any:
    from transformers import GPT2Config, LlamaConfig, Qwen3Config, Qwen3MoeConfig

    shared: dict[str, Any] = {"vocab_size": vocab}
    # Their defaults are tokens of the published models, and would be letters here.
    shared |= {"bos_token_id": None, "eos_token_id": None, "pad_token_id": None}
    if family == "gpt2":
        shared |= {"resid_pdrop": 0.0, "embd_pdrop": 0.0, "attn_pdrop": 0.0}
        shared |= {"n_embd": hidden, "n_layer": layers, "n_head": heads, "n_inner": inner, "n_positions": context}
        return GPT2Config(**shared)
    shared |= {
        "hidden_size": hidden,
        "num_hidden_layers": layers,
        "num_attention_heads": heads,
        "num_key_value_heads": heads,
        "head_dim": hidden // heads,
        "max_position_embeddings": context,
    }
    if family == "qwen3_moe":
        experts: dict[str, Any] = {
            "num_experts": 4,
            "num_experts_per_tok": 2,
            "moe_intermediate_size": max(1, inner // 2),
        }
        return Qwen3MoeConfig(**(shared | experts), intermediate_size=inner)
    return {"qwen3": Qwen3Config, "llama": LlamaConfig}[family](**shared, intermediate_size=inner)


def character_tokenizer(alphabet: str, *, chat_template: str | None = None) -> PreTrainedTokenizerFast:
    """A tokenizer whose tokens are single characters: pad is 0, EOS is 1, `alphabet[i]` is i + 2.

    It adds no special tokens, and decoding restores the text exactly. A character outside the alphabet is an error.

    Raises:
        InputError: an empty alphabet, or one that names a character twice.
    """
    from tokenizers import Regex, Tokenizer, decoders, models, pre_tokenizers

    if not alphabet or len(set(alphabet)) < len(alphabet):
        raise InputError(f"the alphabet {alphabet!r} is empty or names a character twice")
    vocabulary = {PAD: 0, EOS: 1} | {character: index + 2 for index, character in enumerate(alphabet)}
    tokenizer = Tokenizer(models.WordLevel(vocabulary))
    tokenizer.pre_tokenizer = pre_tokenizers.Split(Regex(r"[\s\S]"), behavior="isolated")
    tokenizer.decoder = decoders.Fuse()
    return _wrap(tokenizer, chat_template)


def train_tokenizer(
    texts: Iterable[str],
    vocab_size: int,
    *,
    special_tokens: Sequence[str] = (),
    split_digits: bool = False,
    chat_template: str | None = None,
) -> PreTrainedTokenizerFast:
    """A byte-level BPE tokenizer, trained on `texts`: pad is 0, EOS is 1, then `special_tokens`, then bytes and merges.

    It can encode every text, and decoding restores it exactly. The vocabulary is smaller than `vocab_size` if the texts have
    too few pairs to merge. `split_digits` makes every digit a token, so that numbers are spelled alike wherever they stand.

    Raises:
        InputError: a vocabulary too small for 256 bytes and the special tokens.
    """
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers

    special = [PAD, EOS, *special_tokens]
    least = 256 + len(special)
    if vocab_size < least:
        raise InputError(f"vocab_size {vocab_size} is below {least}: 256 bytes and {len(special)} special tokens")
    tokenizer = Tokenizer(models.BPE())
    to_bytes = pre_tokenizers.ByteLevel(add_prefix_space=False)
    digits = pre_tokenizers.Digits(individual_digits=True)
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence([digits, to_bytes]) if split_digits else to_bytes
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=vocab_size,
        special_tokens=special,
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train_from_iterator(texts, trainer)
    return _wrap(tokenizer, chat_template)


def _wrap(tokenizer: Any, chat_template: str | None) -> PreTrainedTokenizerFast:
    from transformers import PreTrainedTokenizerFast

    wrapped = PreTrainedTokenizerFast(
        tokenizer_object=tokenizer, eos_token=EOS, pad_token=PAD, clean_up_tokenization_spaces=False
    )
    if chat_template is not None:
        wrapped.chat_template = chat_template
    return wrapped
