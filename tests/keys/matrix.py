"""The matrix of all keys and verbs: each key gets another value, in a run of a model of a few thousand weights.

A trial is observed against a baseline that differs in this key alone: logged metrics, answers, weights, files, notes and
warnings, and the passes through the model. Without a difference the key has to be refused by an error that names it.
"""

from __future__ import annotations

import collections
import contextlib
import hashlib
import io
import json
import re
import shutil
import warnings
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import torch
import yaml
from matrix_trials import CONTEXTS, FIXED, HIDDEN_HERE, PARTS_OF, VALUES

import reinlm
from reinlm.config import apply_overrides
from reinlm.errors import ReinlmError
from reinlm.keys import Key
from reinlm.recipe import over
from reinlm.runs import read_metrics, without_clocks

Seen = dict[str, Any]
"""By what is observed ("metrics", "answers", …): a value to compare."""


ENDS_RUNS = re.compile(r"skip")
"""In the error of a baseline whose data, reward or environment fail: the trial goes on where it stops."""


class Matrix:
    """Runs trials in one folder, which holds the model and the data that `FIXED` names; baselines are kept.

    Example:
        Matrix(folder).trial("rl", key)    # "metrics, weights", or "refused: …"
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._baselines: dict[str, Seen] = {}

    def trial(self, verb: str, key: Key) -> str:
        """Where the effect of a key is seen; "refused: " and the error's text; or "nothing"."""
        context = _context(verb, key.key)
        base = self._baseline(verb, context)
        tree = over(context, _nested(key.key, _value(verb, key)))
        found = self._observe(verb, tree)
        if "error" in found:
            text = str(found["error"])
            named = key.key in text or key.key.rpartition(".")[2] in text
            return f"refused: {found['error'].message}" if named else f"an error without the key: {text}"
        if "error" in base:
            return "the run goes on" if base["goes on"] else f"an error without the key: {base['error']}"
        return ", ".join(what for what in found if found[what] != base[what]) or "nothing"

    def _baseline(self, verb: str, context: Mapping[str, Any]) -> Seen:
        name = f"{verb} {json.dumps(context, sort_keys=True, default=str)}"
        if name not in self._baselines:
            self._baselines[name] = self._observe(verb, context)
        return self._baselines[name]

    def _observe(self, verb: str, tree: Mapping[str, Any]) -> Seen:
        place = self.folder / "run"
        shutil.rmtree(place, ignore_errors=True)
        for stray in ("answers.jsonl", "imported.txt", "other", "runs"):
            path = self.folder / stray
            shutil.rmtree(path) if path.is_dir() else path.unlink(missing_ok=True)
        before = {path.name for path in self.folder.iterdir()}
        said = io.StringIO()
        with _passes() as passes, warnings.catch_warnings(record=True) as warned, contextlib.redirect_stderr(said):
            warnings.simplefilter("always", FutureWarning)
            try:
                seen = self._run(verb, tree)
            except ReinlmError as error:
                return {"error": error, "goes on": bool(ENDS_RUNS.search(str(error)))}
        new = {path.name for path in self.folder.iterdir()} - before - {"run"}
        seen["messages"] = [
            *seen.get("messages", ()),
            *sorted({str(item.message) for item in warned if "reinlm" in item.filename}),
        ]
        seen["files"] = [*seen.get("files", ()), *sorted(new)]
        seen["passes through the model"] = dict(passes)
        return seen

    def _run(self, verb: str, tree: Mapping[str, Any]) -> Seen:
        if verb in ("rl", "sft"):
            train = reinlm.rl if verb == "rl" else reinlm.sft
            result: Any = train(recipe=tree, quiet=True)
            return {**_run_files(result.folder), "weights": _digest(result.policy)}
        if verb == "eval":
            found = reinlm.evaluate(recipe=tree)
            texts = [rollout.completion for group in found.groups for rollout in group.group.rollouts]
            return {"metrics": found.metrics, "answers": texts, "messages": list(found.notes)}
        return {"answers": [(one.prompt, one.completions, one.ends) for one in reinlm.generate(recipe=tree)]}


def _run_files(folder: Path) -> Seen:
    names = sorted(str(path.relative_to(folder)) for path in folder.rglob("*"))
    texts = [
        path.read_text()
        for path in (*sorted(folder.glob("rollouts/*.jsonl")), folder / "samples.json")
        if path.is_file()
    ]
    answers = [line for text in texts for line in text.splitlines()]
    return {
        "metrics": json.dumps([without_clocks(row) for row in read_metrics(folder / "metrics.jsonl")]),
        "answers": hashlib.sha256("\n".join(answers).encode()).hexdigest(),
        "files": sorted({name.split(".out.tfevents")[0] for name in names} | {folder.name}),
        "messages": json.loads((folder / "run.json").read_text()).get("notes", []),
    }


def _digest(model: Any) -> str:
    inner = getattr(model, "model", model)
    digest = hashlib.sha256()
    for name, weight in sorted(inner.state_dict().items()):
        digest.update(name.encode() + weight.detach().cpu().double().numpy().tobytes())
    return digest.hexdigest()


@contextlib.contextmanager
def _passes() -> Iterator[collections.Counter[str]]:
    """Counts the calls of linear layers by the shape and type of their input, and whether they keep a graph."""
    counted: collections.Counter[str] = collections.Counter()

    def count(module: Any, inputs: Any, output: Any) -> None:
        if isinstance(module, torch.nn.Linear):
            counted[f"{tuple(inputs[0].shape)} {output.dtype} {output.requires_grad}"] += 1

    handle = torch.nn.modules.module.register_module_forward_hook(count)
    try:
        yield counted
    finally:
        handle.remove()


def _context(verb: str, key: str) -> dict[str, Any]:
    """What stands beside a key in both runs: the settings of every run of the verb, and what the key needs to mean anything."""
    tree = dict(FIXED[verb])
    for prefix, beside in {**CONTEXTS.get("", {}), **CONTEXTS.get(verb, {})}.items():
        if key == prefix or key.startswith(f"{prefix}."):
            tree = over(tree, beside)
    return tree


def _nested(key: str, value: Any) -> dict[str, Any]:
    if "." in key and key.split(".")[0] == "algorithm" and key.split(".")[1] in PARTS_OF:
        return apply_overrides(
            {}, [f"{key}={yaml.safe_dump(value, default_flow_style=True, width=10**6)}".replace("\n...\n", "").strip()]
        )
    for part in reversed(key.split(".")):
        value = {part: value}
    return dict(value)


def _value(verb: str, key: Key) -> Any:
    """Another value than the default: from the table, else from what may stand there."""
    for name in (f"{verb} {key.key}", key.key):
        if name in VALUES:
            return VALUES[name]
    default = yaml.safe_load(key.defaults[verb]) if key.defaults[verb] != "required" else None
    first = key.type.split(" | ")[0]
    if key.type.startswith("true | false"):
        return not default
    if first.startswith("integer"):
        return (default or 0) + 1
    if first.startswith("number"):
        return float(default or 1.0) * 0.5
    if key.type.startswith("text"):
        return "other"
    words = [
        word
        for word in key.type.split(" | ")
        if word not in (str(default), "null") and " " not in word and "{" not in word
    ]
    return words[-1] if words else "other"


def row(verb: str, key: Key, found: str) -> str | None:
    """What is wrong with the result of a trial, or None."""
    if found == "nothing":
        return f"{verb} {key.key}: no effect, and no error"
    if found.startswith("an error without"):
        return f"{verb} {key.key}: {found}"
    if f"{verb} {key.key}" in HIDDEN_HERE or key.key in HIDDEN_HERE:
        return (
            None if found.startswith("refused") else f"{verb} {key.key}: it is listed as unobservable and has an effect"
        )
    return None
