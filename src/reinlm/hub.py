"""Where models and data are: what is meant as a path, what may be a name on the Hugging Face Hub, and whether it is there.

huggingface_hub is imported when a text is no file or folder.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any, Literal

from reinlm.errors import InputError, error_line, nearest

WAIT = 10.0
"""Seconds after which an unanswered question to the Hub counts as no answer."""
_OUR_FOLDERS = ("runs", "checkpoints")
_FILES = (
    ".jsonl",
    ".json",
    ".csv",
    ".parquet",
    ".txt",
    ".tsv",
    ".gz",
    ".zip",
    ".yaml",
    ".yml",
    ".safetensors",
    ".bin",
    ".pt",
)


def missing_model(text: str) -> InputError | None:
    """The error for a model that is no folder and cannot be a name on the Hub; None for what may be one."""
    path = Path(text).expanduser()
    if path.is_dir():
        return None
    if path.exists():
        return InputError(f"{text} is a file, not a model folder", hint="give a folder that save_pretrained wrote")
    if not looks_like_path(text):
        return None
    near = nearest_path(text)
    hint = f"did you mean {near!r}?" if near else "give a folder that save_pretrained wrote, or a Hub name;"
    hint = f"{hint} looked for {path.absolute()}"
    return InputError(f"no such model folder: {text}", hint=hint)


def missing_data(text: str) -> InputError | None:
    """The error for data that are no file or folder and cannot be a data set's name; None for what may be one."""
    path = Path(text)
    if path.exists() or not looks_like_path(text):
        return None
    near = nearest_path(text) if path.parent.is_dir() else None
    hint = f"did you mean {near!r}? " if near else ""
    if not path.parent.is_dir():
        hint = f"there is no folder {path.parent} either; "
    return InputError(f"no such file: {text}", hint=f"{hint}looked for {path.absolute()}")


def looks_like_path(text: str) -> bool:
    """Whether a text that is no file or folder is meant as one, and not as NAME or OWNER/NAME on the Hub.

    That is: it begins with `.`, `/` or `~`, ends with `/` or like a file of data or weights, has a backslash or more than one
    `/`, its first part is a folder here, or the Hub allows no such name.
    """
    if text.startswith((".", "/", "~")) or text.lower().endswith(("/", *_FILES)) or "\\" in text or text.count("/") > 1:
        return True
    first, slash, _ = text.partition("/")
    return bool(slash and (first in _OUR_FOLDERS or Path(first).is_dir())) or not _valid(text)


def _valid(name: str) -> bool:
    from huggingface_hub.errors import HFValidationError
    from huggingface_hub.utils._validators import validate_repo_id

    try:
        validate_repo_id(name)
    except HFValidationError:
        return False
    return True


def nearest_path(text: str) -> str | None:
    """The most similar name in the folder that a path names, with the folder: a hint for a misspelt one."""
    path = Path(text).expanduser()
    if not path.parent.is_dir():
        return None
    near = nearest(path.name, (entry.name for entry in path.parent.iterdir()))
    return str(path.parent / near) if near else None


def why_not_on_hub(name: str, kind: Literal["model", "dataset"], revision: str | None = None) -> str | None:
    """Ask the Hub for a name that is not in the cache.

    Returns:
        Why it cannot be had, as one line; None if it is there, or a model's configuration is in the cache.
    """
    import huggingface_hub as hub

    if kind == "model" and isinstance(hub.try_to_load_from_cache(name, "config.json", revision=revision), str):
        return None
    if kind == "model":
        url = hub.hf_hub_url(name, "config.json", revision=revision)
        return _within(WAIT, lambda: hub.get_hf_file_metadata(url, timeout=WAIT))
    return _within(WAIT, lambda: hub.HfApi().dataset_info(name, revision=revision, timeout=WAIT))


def _within(seconds: float, ask: Callable[[], Any]) -> str | None:
    """Run `ask` for at most `seconds`: what it raised as one line, or None. Name resolution has no time limit of its own."""
    found: list[str] = []

    def run() -> None:
        try:
            ask()
        except Exception as error:  # noqa: BLE001  the Hub's client raises many kinds of errors
            found.append(error_line(error))

    thread = threading.Thread(target=run, daemon=True)
    thread.start()
    thread.join(seconds)
    return f"no answer within {seconds:g} s" if thread.is_alive() else found[0] if found else None
