"""An additional loss on data-set text in every update: negative log-likelihood, or KL to the reference."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Literal

from pydantic import Field, field_validator

from reinlm.batches import TokenBatch, example_batch
from reinlm.config import Config
from reinlm.data import DataConfig, Examples, RowOrder
from reinlm.models import Anchor, Outputs, Want
from reinlm.objectives import Loss, Metrics
from reinlm.training.learner import Learner, LossFunction, MicroBatch

if TYPE_CHECKING:
    from reinlm.models.token_model import Direction


class TextConfig(Config):
    """A loss of data-set text that is added to every update of the policy.

        sft: c · -1/N Σ_t log π_θ(y_t)        kl: c · 1/N Σ_t KL(π_θ ‖ π_ref) at the states of the text

    N are the scored tokens of the update's text. InstructGPT's pretraining mix is the first, arXiv 2203.02155 eq. 2.
    """

    data: DataConfig
    """Rows with prompt+completion, messages or text."""
    loss: Literal["sft", "kl"] = "sft"
    """Negative log-likelihood of the text, or the KL to the reference at its states."""
    coefficient: float = Field(0.1, gt=0)
    """c: the weight beside the loss of the sampled answers."""
    batch_size: int = Field(32, ge=1)
    """Examples in an update."""
    direction: Literal["reverse", "forward"] = "reverse"
    """Of the KL: reverse is KL(π_θ ‖ π_ref)."""

    @field_validator("data", mode="before")
    @classmethod
    def _path(cls, value: Any) -> Any:
        return value if isinstance(value, Mapping | Config) else {"path": value}


class TextLoss:
    """Adds the gradient of some examples to an update; what moves is the place in the data.

    Args:
        anchors: with the "reference" that a KL is measured from.
    """

    def __init__(
        self, config: TextConfig, examples: Examples, learner: Learner, anchors: Mapping[str, Anchor], seed: int
    ):
        self.config = config
        self.examples = examples
        self.learner = learner
        self.anchors = anchors
        self.order = RowOrder(len(examples), seed=seed)

    def backward(self) -> float:
        """Add the next examples' gradient; the loss per token, before its coefficient."""
        rows = self.examples.take(self.order.take(min(self.config.batch_size, len(self.examples))))
        batch: TokenBatch = example_batch(rows.token_ids, rows.trained, rows.offsets)
        kl = self.config.loss == "kl"
        direction: Direction = self.config.direction
        want = Want(full_kl={"reference": direction} if kl else {})
        found = self.learner.forward_backward(
            batch, self._loss(batch.tokens, kl), want=want, anchors=self.anchors if kl else None
        )
        return found.loss / self.config.coefficient

    def _loss(self, tokens: int, kl: bool) -> LossFunction:
        scale = self.config.coefficient / tokens

        def loss(outputs: Outputs, part: MicroBatch) -> Loss:
            losses = outputs.full_kl["reference"] if kl else -outputs.scored
            return Loss(scale * losses.sum(), Metrics({}))

        return loss

    def state_dict(self) -> dict[str, Any]:
        return {"order": self.order.state_dict()}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        self.order.load_state_dict(state["order"])
