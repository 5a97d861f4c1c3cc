"""The matrix of all keys and verbs: each key gets another value, in a run of a model of a few thousand weights.

A trial is observed against a baseline that differs in this key alone: logged metrics, answers, weights, files, messages, and
the passes through the model. Numbers differ where they do so by more than rounding. Without a difference the key has to be
refused by an error that names it.
"""

from __future__ import annotations

import collections
import contextlib
import importlib
import io
import json
import math
import re
import shutil
import sys
import warnings
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import jaxtyping
import pytest
import torch
import yaml
from matrix_contexts import CONTEXTS
from matrix_trials import FIXED, HIDDEN_HERE, PARTS_OF, VALUES

import reinlm
import reinlm.rollouts.engines
from reinlm.config import apply_overrides
from reinlm.errors import InputError, ReinlmError
from reinlm.keys import REQUIRED, Key, keys_of
from reinlm.parts import PARTS
from reinlm.recipe import merge_settings
from reinlm.runs import read_metrics, without_clocks
from reinlm.runs.folder import notes_in, read_run
from reinlm.sandbox.pool import end_kept
from tracker_files import trackio_runs, wandb_runs

Seen = dict[str, Any]
"""By what is observed ("metrics", "answers", …): a value to compare."""
NOTHING = "nothing"
"""The result of a trial without any difference."""
UNNAMED = "an error that does not name the key: "
"""Begins the result of a trial that was refused for another reason."""
REFUSED = "refused: "
"""Begins the result of a trial that was refused."""
CLOSE = {"rel_tol": 1e-5, "abs_tol": 1e-7}
"""Numbers this close are one: what differs is in which rows and in which order they were computed."""
STORE = "trackio"
"""The folder that Trackio writes to."""
OTHERS = ("%|", "left", "wandb", "trackio", "Python: ")
"""In lines of progress, of other libraries, and in the one that repeats what is given."""
STRAYS = (STORE, "answers.jsonl", "trace.json", "imported.txt", "other", "runs", "made")
"""What trials write beside the run's folder."""


class Matrix:
    """Runs trials in one folder, which holds the model and the data that `FIXED` names; baselines are kept.

    Example:
        Matrix(folder).trial("rl", key)    # "metrics, weights", or "refused: …"
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._baselines: dict[str, Seen] = {}

    def trial(self, verb: str, key: Key) -> str:
        """Where the effect of a key is seen; "refused: " and the error's text; or `NOTHING`."""
        context = context_of(verb, key.key)
        base = self._baseline(verb, context)
        found = self._observe(verb, dict(merge_settings(context, _nested(key.key, value_of(verb, key)))))
        error = found.get("error")
        if isinstance(error, InputError) and not isinstance(base.get("error"), InputError):
            named = re.search(rf"\b{re.escape(key.key.rpartition('.')[2])}\b", str(error))
            return f"{REFUSED if named else UNNAMED}{error.message.splitlines()[0]}"
        if "error" in base or error is not None:
            return self._of_errors(base.get("error"), error)
        return ", ".join(what for what in found if not same(found[what], base[what])) or NOTHING

    @staticmethod
    def _of_errors(base: ReinlmError | None, found: ReinlmError | None) -> str:
        if found is None:
            return "accepted where it is refused otherwise" if isinstance(base, InputError) else "the run goes on"
        if base is None:
            return "the run ends"
        if isinstance(base, InputError) or isinstance(found, InputError):
            return f"{UNNAMED}{found.message}; without the key: {base.message}"
        return f"{NOTHING}: {found.message}" if found.message == base.message else "the error that ends the run"

    def _baseline(self, verb: str, context: Mapping[str, Any]) -> Seen:
        name = f"{verb} {json.dumps(context, sort_keys=True, default=str)}"
        if name not in self._baselines:
            self._baselines[name] = self._observe(verb, context)
        return self._baselines[name]

    def _observe(self, verb: str, tree: Mapping[str, Any]) -> Seen:
        end_kept()  # every run starts its own processes, which are counted
        shutil.rmtree(self.folder / "run", ignore_errors=True)
        for stray in STRAYS:
            path = self.folder / stray
            shutil.rmtree(path) if path.is_dir() else path.unlink(missing_ok=True)
        before = {path.name for path in self.folder.iterdir()}
        said = io.StringIO()
        with (
            _passes() as passes,
            _events() as events,
            warnings.catch_warnings(record=True) as warned,
            contextlib.redirect_stderr(said),
        ):
            warnings.simplefilter("always", FutureWarning)
            try:
                seen = self._run(verb, tree)
            except ReinlmError as error:
                return {"error": error}
        new = {path.name for path in self.folder.iterdir()} - before - {"run", "__pycache__"}
        seen["messages"] = [
            *seen.get("messages", ()),
            *sorted({str(item.message) for item in warned if "reinlm" in item.filename}),
            *sorted(
                {line if line.startswith("note: ") else line.partition(": ")[0] for line in _lines(said.getvalue())}
            ),
        ]
        seen["files"] = [*seen.get("files", ()), *sorted(new)]
        seen["passes through the model"] = dict(passes)
        seen |= events
        return seen

    def _run(self, verb: str, tree: Mapping[str, Any]) -> Seen:
        if verb in ("rl", "sft", "rft", "dpo", "reward"):
            result: Any = getattr(reinlm, verb)(recipe=tree)
            return {**_run_files(result.folder), "weights": _weights(result.policy)}
        if verb == "eval":
            scored: Any = reinlm.evaluate(recipe=tree, quiet=True)
            each = list(scored.values()) if hasattr(scored, "rows") else [scored]
            texts = [rollout.completion for one in each for group in one.groups for rollout in group.group.rollouts]
            return {"metrics": [one.metrics for one in each], "answers": texts, "messages": list(scored.notes)}
        if verb == "bench":
            found = reinlm.bench(recipe=tree, quiet=True)
            rows = [
                {name: row[name] for name in ("rollout/tokens", "training/flops", "grad_norm")} for row in found.turns
            ]
            return {"metrics": [rows, vars(found.memory), found.machine.threads]}
        if verb == "create-model":
            made = reinlm.create_model(recipe=tree)
            names = sorted(path.name for path in made.folder.iterdir())
            figures = [made.parameters, made.rows, made.longest, made.fitting, made.policy.context_length]
            vocabulary = sorted(made.policy.tokenizer.get_vocab())
            return {
                "messages": figures,
                "files": [made.folder.name, names, vocabulary],
                "weights": _weights(made.policy),
            }
        answered = reinlm.generate(recipe=tree, quiet=True)
        return {"answers": [(one.prompt, one.completions, one.ends, one.rewards, one.votes) for one in answered]}


def same(one: Any, other: Any) -> bool:
    """Whether two observations are equal but for rounding."""
    if isinstance(one, torch.Tensor) and isinstance(other, torch.Tensor):
        alike = one.shape == other.shape and one.dtype == other.dtype
        return alike and torch.allclose(one, other, CLOSE["rel_tol"], CLOSE["abs_tol"], equal_nan=True)
    if isinstance(one, float) and isinstance(other, float):
        return math.isclose(one, other, **CLOSE) or (math.isnan(one) and math.isnan(other))
    if isinstance(one, Mapping) and isinstance(other, Mapping):
        return one.keys() == other.keys() and all(same(one[name], other[name]) for name in one)
    if isinstance(one, list | tuple) and isinstance(other, list | tuple):
        return len(one) == len(other) and all(map(same, one, other))
    return bool(one == other)


def _run_files(folder: Path) -> Seen:
    names = sorted(str(path.relative_to(folder)) for path in folder.rglob("*") if "wandb/" not in str(path))
    logs = [
        path.read_text() for path in sorted([*folder.glob("rollouts/*.jsonl"), *folder.glob("samples/*/selection_*")])
    ]
    samples = folder / "samples.json"
    return {
        "metrics": [_beyond_rounding(without_clocks(row)) for row in read_metrics(folder / "metrics.jsonl")],
        "answers": [json.loads(line) for text in logs for line in text.splitlines()]
        + ([json.loads(samples.read_text())] if samples.is_file() else []),
        "files": [
            sorted({name.split(".out.tfevents")[0] for name in names} | {folder.name}),
            wandb_runs(folder),
            trackio_runs(folder.parent / STORE),
        ],
        "messages": notes_in(read_run(folder)),
    }


def _beyond_rounding(row: Mapping[str, Any]) -> dict[str, Any]:
    """Without differences of log-probabilities in the last bits, which another order of the same sums has too."""
    rounding = ("sampling/logprob_difference/mean", "sampling/logprob_difference/max")
    of_ratios = ("log_ratios/", "rewards/chosen", "rewards/rejected", "rewards/margins", "rewards/accuracies")
    kept = {name: value for name, value in row.items() if not name.startswith(of_ratios)}
    return {name: value for name, value in kept.items() if name not in rounding or value > 1e-5}


def _weights(policy: Any) -> dict[str, torch.Tensor]:
    inner = getattr(policy, "model", policy)
    return {name: weight.detach().clone() for name, weight in inner.state_dict().items()}


def _lines(said: str) -> list[str]:
    """What a run says in the console, without its progress and those of the libraries below."""
    return [line for line in said.splitlines() if ": " in line and not any(word in line for word in OTHERS)]


@contextlib.contextmanager
def _passes() -> Iterator[collections.Counter[str]]:
    """Counts the calls of linear layers, also those that a backward pass makes again, and the products with weights of which
    some are made without a layer, by the shape and type of their input and whether they keep a graph."""
    counted: collections.Counter[str] = collections.Counter()

    def linear(*args: Any, **kwargs: Any) -> Any:
        output = product(*args, **kwargs)
        counted[f"product {tuple(args[0].shape)} {output.dtype} {output.requires_grad}"] += 1
        return output

    def count(module: Any, inputs: Any, output: Any) -> None:
        if isinstance(module, torch.nn.Linear):
            counted[f"{tuple(inputs[0].shape)} {output.dtype} {output.requires_grad}"] += 1

    handle = torch.nn.modules.module.register_module_forward_hook(count)
    product, torch.nn.functional.linear = torch.nn.functional.linear, linear
    try:
        yield counted
    finally:
        torch.nn.functional.linear = product
        handle.remove()


_counted: collections.Counter[str] = collections.Counter()


def _count(event: str, arguments: tuple[Any, ...]) -> None:
    if event == "subprocess.Popen" and any("reinlm" in str(word) for word in arguments[1]):
        _counted["processes"] += 1


sys.addaudithook(_count)


@contextlib.contextmanager
def _events() -> Iterator[dict[str, int]]:
    """Counts the processes that are started."""
    found: dict[str, int] = {}
    _counted.clear()
    yield found
    found["processes"] = _counted["processes"]


def context_of(verb: str, key: str) -> dict[str, Any]:
    """What stands beside a key in both runs: the settings of every run of the verb, and what the key needs to mean anything."""
    tree: Any = dict(FIXED[verb])
    beside_of = {**CONTEXTS[""], **CONTEXTS.get(verb, {})}
    for prefix in sorted(beside_of, key=len):
        below = prefix if prefix.endswith(".") else f"{prefix}."
        if key == prefix or key.startswith(below):
            tree = merge_settings(tree, beside_of[prefix])
    return dict(tree)


def _nested(key: str, value: Any) -> dict[str, Any]:
    if "." in key and key.split(".")[0] == "algorithm" and key.split(".")[1] in PARTS_OF:
        return apply_overrides(
            {}, [f"{key}={yaml.safe_dump(value, default_flow_style=True, width=10**6)}".replace("\n...\n", "").strip()]
        )
    for part in reversed(key.split(".")):
        value = {part: value}
    return dict(value)


def value_of(verb: str, key: Key) -> Any:
    """Another value than the default: from the table, else from what may stand there."""
    for name in (f"{verb} {key.key}", key.key):
        if name in VALUES:
            return VALUES[name]
    default = _default(verb, key)
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


def _default(verb: str, key: Key) -> Any:
    """The default of a key, that of another section where it is "as SECTION's"; None where there is none."""
    text = key.defaults[verb]
    if section := re.fullmatch(r"as (\w+)'s", text):
        same = f"{section[1]}.{key.key.rpartition('.')[2]}"
        text = next(other.defaults[verb] for other in keys_of(verb) if other.key == same)
    return yaml.safe_load(text) if text != REQUIRED else None


def measure(verb: str, folder: Path, patch: pytest.MonkeyPatch) -> dict[str, str]:
    """By key of a verb: where its effect is seen, or why it is refused; with the working directory in `folder`."""
    patch.chdir(folder)
    for name in ("WANDB_MODE", "WANDB_API_KEY", "WANDB_RUN_GROUP"):
        patch.delenv(name, raising=False)
    patch.setenv("TRACKIO_DIR", str(folder / STORE))
    importlib.import_module("trackio")
    for name, module in list(sys.modules.items()):  # one that was imported before has read another folder
        if name.startswith("trackio.") and hasattr(module, "TRACKIO_DIR"):
            patch.setattr(module, "TRACKIO_DIR", folder / STORE)
    patch.setitem(PARTS, "engine", dict(PARTS["engine"]))  # those of the folder's files end with the trials
    patch.setattr(jaxtyping.config, "jaxtyping_disable", True)  # other tests hold the shapes
    patch.setattr("reinlm.insight.tracker.write_report", lambda folder, *args, **kwargs: folder)  # no key is about it
    patch.setattr("reinlm.training.base_session.has_bfloat16", lambda: True)  # a note on processors without it
    matrix = Matrix(folder)
    found = {key.key: matrix.trial(verb, key) for key in keys_of(verb)}
    return {key: f"{HIDDEN}{HIDDEN_HERE[key]}" if _hidden(key, text) else text for key, text in found.items()}


HIDDEN = "not on a plain machine: "
"""Begins the result of a key whose effect needs a GPU, the network or an optional package."""


def _hidden(key: str, found: str) -> bool:
    return key in HIDDEN_HERE and found.startswith((REFUSED, UNNAMED, "the run ends"))


def problem(verb: str, key: str, found: str) -> str | None:
    """What is wrong with the result of a trial, and what to do; None where nothing is."""
    if found.startswith(NOTHING):
        return (
            f"{verb} {key}: {found.replace(NOTHING, 'no effect, and no error', 1)}: teach the matrix another value "
            "(tests/keys/matrix_trials.py) or what the key needs beside it (tests/keys/matrix_contexts.py), or let the "
            "library refuse it with an InputError that names it"
        )
    if found.startswith(UNNAMED):
        return f"{verb} {key}: {found}"
    if key in HIDDEN_HERE and not found.startswith(HIDDEN):
        return f"{verb} {key}: it is listed in HIDDEN_HERE, and has an effect here: {found}"
    return None
