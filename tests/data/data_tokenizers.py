"""A byte-level tokenizer trained on the spot, without a chat template and with templates of three styles."""

from __future__ import annotations

from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers, processors, trainers
from transformers import PreTrainedTokenizerFast

CHATML = (
    "{% for m in messages %}<|im_start|>{{ m['role'] }}\n{{ m['content'] }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% if no_thinking %}<think></think>{% endif %}{% endif %}"
)
"""Ends a turn with a token of its own and a line break behind it, as Qwen's does."""

LLAMA = (
    "{{ bos_token }}{% for m in messages %}"
    "{% if m['role'] == 'tool' %}{{ raise_exception('no ' + m['role'] + ' here') }}{% endif %}"
    "<|head|>{{ m['role'] }}\n\n{{ m['content'] | trim }}<|eot|>{% endfor %}"
    "{% if add_generation_prompt %}<|head|>assistant\n\n{% endif %}"
)
"""Writes BOS itself, and trims what it is given."""

THINKING = (
    "{{ bos_token }}{% for m in messages %}{% if m['role'] == 'user' %}<|head|>{{ m['content'] }}{% else %}"
    "<|im_start|>{{ m['content'].split('</think>')[-1] }}</s>{% endif %}{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|><think>\n{% endif %}"
)
"""Opens an answer with <think>, and cuts the thoughts out of every finished answer, as DeepSeek-R1's does."""

BARE = (
    "{% for m in messages %}{{ m['role'] }}: {{ m['content'] }}\n{% endfor %}"
    "{% if add_generation_prompt %}assistant: {% endif %}"
)
"""Has no token for the end of a turn."""

SPECIAL = ["<s>", "</s>", "<|im_start|>", "<|im_end|>", "<|head|>", "<|eot|>"]


def build_tokenizer(chat_template: str | None = None, *, closing: bool = False) -> PreTrainedTokenizerFast:
    """BOS in front of plain text; with `closing` also an EOS behind it, as some tokenizers write."""
    raw = Tokenizer(models.BPE())
    raw.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    raw.decoder = decoders.ByteLevel()
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    trainer = trainers.BpeTrainer(
        vocab_size=320, special_tokens=SPECIAL, initial_alphabet=alphabet, show_progress=False
    )
    raw.train_from_iterator(["What is two plus three? The answer is five.", "Question: Answer: 12+30=42"] * 4, trainer)
    raw.add_special_tokens([AddedToken(name, special=True) for name in SPECIAL])
    raw.post_processor = processors.TemplateProcessing(
        single="<s> $A </s>" if closing else "<s> $A", special_tokens=[("<s>", 0), ("</s>", 1)]
    )
    return PreTrainedTokenizerFast(
        tokenizer_object=raw, bos_token="<s>", eos_token="</s>", chat_template=chat_template,
        clean_up_tokenization_spaces=False,
    )  # fmt: skip
