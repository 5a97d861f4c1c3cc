"""Plays as plain text become the files that `language.yaml`, `sft.yaml` and `rl.yaml` name.

    python recipes/couplets/prepare.py --text tinyshakespeare.txt

The language is learned from passages of the first nine tenths of the text: a speaker's name with up to four lines. The
demonstrations are the lines in them that follow one another and rhyme. Prompts are speakers' names, and the held-out ones are
names that no prompt of reinforcement learning has.
"""

from __future__ import annotations

import argparse
import itertools
import json
import random
import re
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from rewards import SYLLABLES, end_of, rhymes, syllables_of

PASSAGE = 4
"""Lines of a passage."""
HEADING = re.compile(r"[A-Z][^\n:]*:")
EVERY = 5
"""Every fifth speaker is held out."""


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--text", type=Path, required=True, help="plays: 'NAME:', then lines, then an empty line")
    parser.add_argument("--output", type=Path, default=Path("runs/couplets"))
    arguments = parser.parse_args()
    prepare(arguments.text, arguments.output)


def prepare(text_file: Path, output: Path) -> None:
    """Write `text.jsonl`, `validation.jsonl`, `demonstrations.jsonl`, `prompts.jsonl` and `held_out.jsonl` into `output`."""
    passages = list(read_passages(text_file.read_text(encoding="utf-8")))
    cut = len(passages) * 9 // 10
    output.mkdir(parents=True, exist_ok=True)
    _write(output / "text.jsonl", [{"text": passage} for passage in passages[:cut]])
    _write(output / "validation.jsonl", [{"text": passage} for passage in passages[cut:]])
    pairs = [pair for passage in passages[:cut] for pair in rhyming_lines(passage)]
    _write(output / "demonstrations.jsonl", [{"prompt": f"{name}\n", "completion": lines} for name, lines in pairs])
    speakers = sorted({passage.split("\n")[0] for passage in passages[:cut]})
    random.Random(0).shuffle(speakers)
    corpus = str(text_file.resolve())
    rows = [{"prompt": f"{speaker}\n", "corpus": corpus} for speaker in speakers]
    _write(output / "prompts.jsonl", [row for index, row in enumerate(rows) if index % EVERY])
    _write(output / "held_out.jsonl", rows[::EVERY])


def read_passages(text: str) -> Iterator[str]:
    """Speakers' names, each with up to four lines of a speech; longer speeches become several passages."""
    for speech in text.split("\n\n"):
        heading, *lines = speech.strip().split("\n")
        if HEADING.fullmatch(heading):
            for start in range(0, len(lines), PASSAGE):
                yield "\n".join([heading, *lines[start : start + PASSAGE]])


def rhyming_lines(passage: str) -> Iterator[tuple[str, str]]:
    """The speaker, and two lines that follow one another, rhyme, and have the length and the capitals of verse."""
    name, *lines = passage.split("\n")
    for pair in itertools.pairwise(lines):
        verse = all(line[:1].isupper() and syllables_of(line) in SYLLABLES for line in pair)
        if verse and rhymes(*map(end_of, pair)):
            yield name, "\n".join(pair)


def _write(file: Path, rows: Sequence[dict[str, Any]]) -> None:
    file.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")


if __name__ == "__main__":
    main()
