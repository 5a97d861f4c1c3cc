"""How the prompts of a run are rendered: alike in training, in evaluation, and where its checkpoints are tried."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

import numpy as np

from reinlm.data import DataConfig, Examples, Judged, build_renderer
from reinlm.data.loading import Found
from reinlm.data.prompts import Settled, describe, record, settle
from reinlm.models import Policy
from reinlm.records import Task
from reinlm.training.config import RLConfig, RunVerbConfig

_ConfigT = TypeVar("_ConfigT", bound=RunVerbConfig)

PLAIN: Mapping[str, Any] = {"chat": "messages"}
"""What `auto` stands for in a run whose config.yaml does not say it: text stays plain."""


@dataclass(frozen=True)
class RunPrompts:
    """The rendering of a run's training prompts.

    Example:
        RunPrompts(Settled(config.data), format={"chat": "always", …}, stated=True)
    """

    settled: Settled
    format: Mapping[str, Any] | None
    """What checkpoints remember; see `reinlm.data.PromptFormat`."""
    stated: bool
    """False in a run whose config.yaml is older than this choice; it stays without it."""


def settle_run(
    config: _ConfigT, policy: Policy, found: Found, held_out: Mapping[str, Found], text: Found | None = None
) -> tuple[_ConfigT, RunPrompts]:
    """The configuration with every `chat: auto` settled.

    The training data follow the settings of the run that a config.yaml was written by, else what the model remembers, else
    the tokenizer. Evaluation sets follow the training data where they say nothing themselves.
    """
    remembered, stated = _begun(config, policy)
    settled = settle(config.data, found, policy.tokenizer, remembered)
    kept = record(settled.config, found, policy.tokenizer)
    tried = kept if stated else remembered
    sets = {
        name: settle(data, held_out[name], policy.tokenizer, tried).config
        for name, data in config.evaluation.data.items()
    }
    changes: dict[str, Any] = {
        "data": settled.config,
        "evaluation": config.evaluation.model_copy(update={"data": sets}),
    }
    if isinstance(config, RLConfig) and config.text is not None and text is not None:
        chosen = settle(config.text.data, text, policy.tokenizer, tried).config
        changes["text"] = config.text.model_copy(update={"data": chosen})
    return config.model_copy(update=changes), RunPrompts(settled, kept, stated)


def _begun(config: RunVerbConfig, policy: Policy) -> tuple[Mapping[str, Any] | None, bool]:
    """What `auto` stands for before the rows are looked at: a `PromptFormat` or None; and whether config.yaml may say it."""
    identity = build_renderer(config.data, policy.tokenizer).identity
    if config.resolved.get("renderer") != identity:
        return policy.prompt_format, True
    if "prompts" not in config.resolved:
        return PLAIN, False
    return config.resolved["prompts"], True


def first_prompt(items: Examples | Judged | Sequence[Task], data: DataConfig, policy: Policy) -> str:
    """The first prompt as the model reads it; of an example the tokens before its first trained one."""
    if isinstance(items, Examples | Judged):
        first = (items.examples if isinstance(items, Judged) else items)[0]
        ids = [int(token) for token in first.token_ids[: int(np.argmax(first.trained))]]
        if len(ids) <= build_renderer(data, policy.tokenizer).front_length:  # a whole text
            ids = [int(token) for token in first.token_ids[:64]]
    else:
        ids = build_renderer(data, policy.tokenizer).prompt(items[0].content, items[0].id)
    return str(policy.tokenizer.decode(ids, skip_special_tokens=False, clean_up_tokenization_spaces=False))


def prompt_line(settled: Settled, found: Found, items: Examples | Judged | Sequence[Task], policy: Policy) -> str:
    """One line for the start of a run: how prompts are rendered, and the first one."""
    return describe(settled, found, first_prompt(items, settled.config, policy))
