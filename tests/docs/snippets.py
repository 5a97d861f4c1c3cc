"""What the documentation tells readers to type: its fenced blocks and the commands inside sentences.

The language of a fence says what its text is: `sh` commands, `python` code, `yaml` a recipe or a part of one, `title="NAME"` a
file of that name; `text`, `math` and `json` are not run. A block that needs what no test has, such as a GPU or a package, is
marked by a comment on the line before it: `<!-- not run: reason -->`.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).parents[2]
SHOWN = ("text", "math", "json", "diff")
"""Languages of blocks that nobody types."""
RUN = ("sh", "python", "yaml")
_FENCE = re.compile(
    r"(?:^<!-- not run: (?P<reason>[^\n]*?) -->\n+)?^(?P<indent> *)```(?P<info>[^\n`]*)\n(?P<body>.*?)^(?P=indent)```\s*?$",
    re.DOTALL | re.MULTILINE,
)
_INLINE = re.compile(r"(?<![`\w])`((?:reinlm|make|pip|python) [^`\n]+)`")


@dataclass(frozen=True)
class Block:
    """A fenced block, or the command of a sentence."""

    page: str
    line: int
    language: str
    body: str
    title: str = ""
    reason: str = ""
    """Why it is not run; empty where it is."""

    @property
    def where(self) -> str:
        return f"{self.page}:{self.line}"


def pages() -> list[Path]:
    """README and every page of the documentation."""
    return [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").glob("*.md"))]


def blocks(page: Path) -> list[Block]:
    """The blocks of a page and the commands inside its sentences, in their order."""
    text = page.read_text(encoding="utf-8")
    name = str(page.relative_to(ROOT))
    found, outside = [], text
    for match in _FENCE.finditer(text):
        language, _, options = match["info"].strip().partition(" ")
        title = re.search(r'title="([^"]*)"', options)
        line = text.count("\n", 0, match.start("info")) + 1
        body = re.sub(f"^{match['indent']}", "", match["body"], flags=re.MULTILINE)
        found.append(Block(name, line, language, body, title[1] if title else "", match["reason"] or ""))
        outside = outside[: match.start()] + re.sub(r"[^\n]", " ", match[0]) + outside[match.end() :]
    for match in _INLINE.finditer(outside):
        found.append(Block(name, outside.count("\n", 0, match.start()) + 1, "sh", match[1]))
    return sorted(found, key=lambda block: block.line)


def outside_fences(page: Path) -> str:
    """A page's text without its fenced blocks."""
    return _FENCE.sub("", page.read_text(encoding="utf-8"))


def commands(body: str) -> Iterator[list[str]]:
    """The commands of a block, in words: comments off, lines that end in a backslash joined, `&&` taken apart."""
    for line in body.replace("\\\n", " ").splitlines():
        words = shlex.split(line.removeprefix("$ "), comments=True)
        while "&&" in words:
            place = words.index("&&")
            yield words[:place]
            words = words[place + 1 :]
        if words:
            yield words


# ------------------------------------------------------------------------------------------------------------- short runs

_SHORT = (
    (r"(steps[\"']?\s*[:=]\s*)\d[\d_]*", r"\g<1>1"),
    (r"(epochs[\"']?\s*[:=]\s*)\d+", r"\g<1>1"),
    (r"(max_new_tokens[\"']?\s*[:=]\s*)\d+", r"\g<1>4"),
    (r"(batch_size[\"']?\s*[:=]\s*)\d[\d_]*", r"\g<1>16"),
    (r"(group_size[\"']?\s*[:=]\s*)\d+", r"\g<1>4"),
    (r"(samples[\"']?\s*[:=]\s*)\d+", r"\g<1>2"),
    (r"(learn\((?:total_timesteps=)?)\d[\d_]*", r"\g<1>1024"),
    (r"(episodes=)\d+", r"\g<1>2"),
)


def shortened(source: str) -> str:
    """Code or a recipe whose runs are one step of a few short answers."""
    for pattern, short in _SHORT:
        source = re.sub(rf"(?<!\w){pattern}", short, source)
    return source


def short_command(words: list[str]) -> list[str]:
    """A command of reinlm whose run is one step of a few short answers; its other words stand as they are."""
    verb = words[0] if words and not {"--help", "--resume", "--explain", "--list"} & set(words) else ""
    if verb in ("rl", "sft", "rft", "dpo", "eval", "generate"):
        words = [shortened(word) if "=" in word else word for word in words]
    if verb in ("rl", "sft", "rft", "dpo"):
        sampled = (verb in ("rl", "rft") or "--reward" in words) and "answers=data" not in words
        small = ["rollout.batch_size=16", "rollout.group_size=4", "rollout.max_new_tokens=4"] if sampled else []
        words = [*_with(words, "--steps", "1"), *small]
    if verb in ("rl", "sft", "rft", "dpo", "compare"):
        words = _with(words, "--seeds", "2") if "--seeds" in words else words
    if verb == "generate" or (verb == "eval" and not ("--text" in words and "--data" not in words)):
        words = _with(_with(words, "--max-new-tokens", "4"), "--samples", "2")
    if verb == "bench":
        shape = {"prompt-tokens": 8, "max-new-tokens": 4, "group-size": 4, "batch-size": 16, "turns": 1}
        for name, number in shape.items():
            words = _with(words, f"--{name}", str(number))
    if verb == "classical":
        for flag, value in (("--steps", "1024"), ("--episodes", "20"), ("--seeds", "2")):
            words = _with(words, flag, value) if flag in words else words
        words = _with(words, "--evaluate", "2")
    return words


def _with(words: list[str], flag: str, value: str) -> list[str]:
    if flag in words:
        place = words.index(flag)
        return [*words[: place + 1], value, *words[place + 2 :]]
    return [*words, flag, value]
