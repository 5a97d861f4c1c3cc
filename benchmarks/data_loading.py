"""How fast rows become examples, and how much memory they keep.

    TOKENIZERS_PARALLELISM=false python benchmarks/data_loading.py [--rows 20000] [--data train.jsonl]

Rows are synthetic (prompt and completion, whole text, and chats of two turns, of some 90 words each), or those of a file. The
tokenizer is byte-level BPE with 4,096 tokens, trained on the spot on the first rows, with a ChatML template.
"""

from __future__ import annotations

import argparse
import gc
import random
import time
import tracemalloc
from pathlib import Path
from typing import Any

from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
from transformers import PreTrainedTokenizerFast

from reinlm.data import DataConfig, load_examples, load_rows

CHATML = (
    "{% for m in messages %}<|im_start|>{{ m['role'] }}\n{{ m['content'] }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)
WORDS_IN_A_ROW = 90


def synthetic_rows(kind: str, count: int, seed: int = 0) -> list[dict[str, Any]]:
    """Rows of words drawn from 2,000 made-up ones, by Zipf's law."""
    rng = random.Random(seed)
    vocabulary = ["".join(rng.choices("etaoinshrdlu", k=rng.randint(2, 9))) for _ in range(2000)]
    weights = [1 / rank for rank in range(1, 2001)]

    def words(number: int) -> str:
        return " ".join(rng.choices(vocabulary, weights, k=number))

    third = WORDS_IN_A_ROW // 3
    if kind == "text":
        return [{"text": words(3 * third)} for _ in range(count)]
    if kind == "prompt+completion":
        return [{"prompt": words(third), "completion": words(2 * third)} for _ in range(count)]
    roles = ("user", "assistant", "user", "assistant")
    return [{"messages": [{"role": role, "content": words(22)} for role in roles]} for _ in range(count)]


def trained_tokenizer(texts: list[str]) -> PreTrainedTokenizerFast:
    """Byte-level BPE with ChatML's tokens."""
    raw = Tokenizer(models.BPE())
    raw.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    raw.decoder = decoders.ByteLevel()
    special = ["</s>", "<|im_start|>", "<|im_end|>"]
    raw.train_from_iterator(
        texts,
        trainers.BpeTrainer(
            vocab_size=4096,
            special_tokens=special,
            initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
            show_progress=False,
        ),
    )
    return PreTrainedTokenizerFast(tokenizer_object=raw, eos_token=special[0], chat_template=CHATML)


def measure(name: str, data: str | list[dict[str, Any]], tokenizer: PreTrainedTokenizerFast) -> None:
    """Print a line: rows per second of processor time, the best of three, and bytes that a row keeps and peaks at."""
    config = DataConfig(path=data)
    seconds = float("inf")
    for _ in range(3):
        started = time.process_time()
        examples = load_examples(config, tokenizer)
        seconds = min(seconds, time.process_time() - started)
        count, tokens = len(examples), sum(len(example.token_ids) for example in examples)
        del examples
        gc.collect()
    tracemalloc.start()
    kept = load_examples(config, tokenizer)
    gc.collect()
    held, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    del kept
    print(
        f"{name:<20} {count:>7,} rows {tokens / count:>6.1f} tokens a row {count / seconds:>9,.0f} rows/cpu s "
        f"{held / count:>8,.0f} bytes a row kept {peak / count:>8,.0f} at the peak"
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rows", type=int, default=20_000)
    parser.add_argument("--data", help="a file of rows for supervised fine-tuning")
    arguments = parser.parse_args()
    for kind in ("text", "prompt+completion", "chat"):
        rows = synthetic_rows(kind, arguments.rows)
        measure(kind, rows, trained_tokenizer([str(row) for row in rows[:2000]]))
    if arguments.data:
        sample = load_rows(arguments.data, limit=2000)
        texts = ["\n".join(str(value) for value in row.columns.values()) for row in sample]
        measure(Path(arguments.data).name, arguments.data, trained_tokenizer(texts))


if __name__ == "__main__":
    main()
