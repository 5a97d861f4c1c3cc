"""The loss on held-out text: per token, of demonstrations in SFT's evaluation and of any text in `reinlm eval`."""

from __future__ import annotations

import math
from typing import Any

from pydantic import Field, field_validator

from reinlm.batches import example_batch
from reinlm.config import Config
from reinlm.data import DataConfig, Examples, load_examples
from reinlm.data.frames import named_sets
from reinlm.data.loading import Found
from reinlm.data.prompts import settle
from reinlm.errors import RunError
from reinlm.models import Policy, TokenModel, Want
from reinlm.training.computing import Computing
from reinlm.training.learner import Learner

TEXT_LOSS, TEXT_PERPLEXITY, TEXT_TOKENS = "text/loss", "text/perplexity", "text/tokens"


class HeldOutTextConfig(Config):
    """Text that training never sees, for the loss on it: what alignment cost."""

    data: dict[str, DataConfig] = Field(default_factory=dict)
    """Rows with text, prompt+completion or messages: a single path is the text `text`, several texts have names,
    `{wiki: wiki.jsonl, code: code.jsonl}`."""

    @field_validator("data", mode="before")
    @classmethod
    def _named(cls, value: Any) -> Any:
        return named_sets(value, "text")


def held_out_loss(learner: Learner, examples: Examples) -> dict[str, float]:
    """Means over the trained tokens of examples: mean_token_accuracy, loss (nats), entropy (nats)."""
    batch = example_batch(examples.token_ids, examples.trained, examples.offsets)
    found = learner.forward(batch, Want(entropy=True))
    assert found.entropy is not None
    assert found.likeliest is not None
    return {
        "mean_token_accuracy": float(found.likeliest.double().mean()),
        "loss": -float(found.scored.double().mean()),
        "entropy": float(found.entropy.double().mean()),
    }


def text_key(name: str) -> str:
    """The key of a text in the settings, by its name."""
    return "text.data" if name == "text" else f"text.data.{name}"


def read_text(policy: Policy, data: DataConfig, found: Found, name: str) -> Examples:
    """The examples of held-out text for a model, with prompts as its training rendered them; none longer than its context."""
    chosen = settle(data, found, policy.tokenizer, policy.prompt_format).config
    limit, key = policy.context_length, text_key(name)
    return load_examples(chosen, policy.tokenizer, max_tokens=limit, found=found, key=key)


def text_metrics(policy: Policy, examples: Examples, name: str) -> dict[str, float]:
    """The loss of a model on held-out text, every token with the same weight.

        text/loss = -1/N Σ_t log π(y_t)  [nats per token]        text/perplexity = exp(text/loss)

    with `text/entropy` (nats per token), `text/mean_token_accuracy` (share of tokens that are the model's first choice) and
    `text/tokens` (N: tokens of completions, or of whole texts but the first of each, which has no context).

    Args:
        name: the text's, for the error.

    Raises:
        RunError: a loss that is not finite, as of weights that are not.
    """
    with Computing.chosen(policy.model).in_force():
        found = held_out_loss(Learner(TokenModel(policy.model)), examples)
    loss = found["loss"]
    if not math.isfinite(loss):
        raise RunError(f"text {name}: the loss per token is {loss}", hint="look at the weights of the model")
    return {
        TEXT_LOSS: loss,
        TEXT_PERPLEXITY: math.exp(loss) if loss < 700.0 else math.inf,
        "text/entropy": found["entropy"],
        "text/mean_token_accuracy": found["mean_token_accuracy"],
        TEXT_TOKENS: float(examples.trained.sum()),
    }
