"""A learned reward: a decoder's backbone with one or several linear heads, read at the end of an answer or of its steps.

It is stored as a Hugging Face sequence-classification directory with one label, which transformers and TRL load: the mean of
the members and the weighted sum of the criteria are linear, so that they are one head there.
"""

from __future__ import annotations

import copy
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
import torch
from torch import Tensor, nn

from reinlm.batches import TokenBatch
from reinlm.errors import InputError
from reinlm.models.heads import resolve_packing, unwrap
from reinlm.models.loading import (
    CLASSIFIER,
    ModelConfig,
    Policy,
    as_policy,
    classifier_of,
    is_classifier,
    load_classifier,
    load_policy,
)
from reinlm.models.modules import training_mode
from reinlm.models.packed import Packing, micro_batches
from reinlm.models.prefix_sharing import micro_batches_sharing
from reinlm.models.saving import save_policy
from reinlm.models.token_model import VALUES, TokenModel
from reinlm.objectives import Layout
from reinlm.objectives.reward_scores import ensemble_score

if TYPE_CHECKING:
    from jaxtyping import Float, Int

Pooling = Literal["last", "mean"]
Reads = Literal["answer", "steps"]

HEADS = "reward_heads.safetensors"
"""The file beside a reward model of several members or criteria that holds the head of each."""
SETTINGS = "reward_model"
"""The key of config.json that says what the outputs mean."""


@dataclass(frozen=True)
class ReferenceScores:
    """The scores of a reference set of answers, by which a model was normalised and against which drift is measured.

    Example: ten bins of equal shares of 512 answers:
        ReferenceScores(count=512, lowest=-2.9, highest=3.1, edges=(-1.3, …, 1.3), shares=(0.1, …, 0.1))
    """

    count: int
    lowest: float
    highest: float
    edges: tuple[float, ...]
    """Inner edges of the bins, ascending; a score at an edge belongs to the bin above it."""
    shares: tuple[float, ...]
    """Of each bin, one more than edges; they add up to 1."""

    @classmethod
    def of(cls, scores: Float[Tensor, " answers"], bins: int = 10) -> ReferenceScores:
        """Bins that hold equal shares of the scores, fewer where scores are equal."""
        values = scores.double()
        quantiles = torch.quantile(values, torch.arange(1, bins, dtype=torch.float64) / bins)
        edges = torch.unique(quantiles[quantiles > values.min()])
        counts = torch.bincount(torch.bucketize(values, edges, right=True), minlength=len(edges) + 1)
        shares = (counts + 0.5) / (len(values) + 0.5 * len(counts))
        lowest, highest = float(values.min()), float(values.max())
        return cls(len(values), lowest, highest, tuple(edges.tolist()), tuple(shares.tolist()))

    def bins(self, scores: Float[Tensor, " answers"]) -> Int[Tensor, " answers"]:
        """The bin of each score."""
        return torch.bucketize(scores.double(), torch.tensor(self.edges, dtype=torch.float64), right=True)


@dataclass(frozen=True)
class RewardHeads:
    """What the outputs of a reward model mean, and how they become one number.

        reward = mean_k Σ_c weight_c r_kc - spread_penalty · spread_k - shift

    Example: three members, each with a head for two criteria:
        RewardHeads(criteria=("helpful", "harmless"), weights=(1.0, 0.5), members=3, spread_penalty=0.5)
    """

    criteria: tuple[str, ...] = ("reward",)
    weights: tuple[float, ...] = (1.0,)
    members: int = 1
    pooling: Pooling = "last"
    """"last": read at the last token; "mean": the mean over the tokens of the answer."""
    reads: Reads = "answer"
    """"steps": a value at the last token of each step, the logit that the step is right."""
    separator: str = "\n"
    """What ends a step."""
    spread_penalty: float = 0.0
    """How many standard deviations of the members are subtracted from their mean."""
    shift: float = 0.0
    """Subtracted from the score, after the scale that the heads hold."""
    reference: ReferenceScores | None = None
    """The scores of the reference set; None before a model is normalised."""

    def __post_init__(self) -> None:
        if len(self.criteria) != len(self.weights) or not self.criteria:
            raise InputError(f"{len(self.weights)} weights for the criteria {', '.join(self.criteria) or 'none'}")
        if len(set(self.criteria)) < len(self.criteria):
            raise InputError(f"a criterion is named twice: {', '.join(self.criteria)}")

    @property
    def outputs(self) -> int:
        """Heads in all: members · criteria."""
        return self.members * len(self.criteria)

    def to_json(self) -> dict[str, Any]:
        """For config.json."""
        return asdict(self)

    @classmethod
    def from_json(cls, found: Mapping[str, Any]) -> RewardHeads:
        """Of what `to_json` wrote; raises InputError for anything else."""
        try:
            given = dict(found)
            reference = given.pop("reference", None)
            if reference is not None:
                tuples = {name: tuple(reference[name]) for name in ("edges", "shares")}
                given["reference"] = ReferenceScores(**{**reference, **tuples})
            tuples = {name: tuple(given[name]) for name in ("criteria", "weights")}
            return cls(**{**given, **tuples})
        except (TypeError, KeyError) as error:
            raise InputError(f"config.json: {SETTINGS} cannot be read: {error}") from error


@dataclass(frozen=True)
class Scores:
    """Scores of S answers, or of the S steps of several answers."""

    reward: Float[Tensor, " answers"]
    """After spread penalty and shift: what a policy is trained on."""
    spread: Float[Tensor, " answers"]
    """Standard deviation of the members, before any clip; 0 of one member."""
    criteria: Float[Tensor, "answers criteria"]
    """The mean of the members by criterion."""


class RewardModel:
    """A sequence classifier of transformers with the heads that are trained, scored through the one forward pass.

    `head` holds the weights of all members and criteria in float32 (float64 of a float64 model); the classifier's own head
    takes their combination when the model is saved.

    Args:
        policy: a classifier with its tokenizer; `load_reward_model` and `new_reward_model` make one.
        heads: what the outputs mean.
        weight: [members · criteria, hidden] of the heads, a member's criteria together.
        packing: as of `TokenModel`.

    Raises:
        InputError: a model that looks ahead, which cannot be read at the last token.
    """

    def __init__(
        self,
        policy: Policy,
        heads: RewardHeads,
        weight: Float[Tensor, "outputs hidden"],
        *,
        packing: Packing | Literal["auto"] = "auto",
    ) -> None:
        self.policy = policy
        self.heads = heads
        classifier = unwrap(policy.model)
        dtype = torch.float64 if policy.model.dtype == torch.float64 else torch.float32
        self.head = nn.Linear(weight.shape[1], heads.outputs, bias=False, device=policy.device, dtype=dtype)
        with torch.no_grad():
            self.head.weight.copy_(weight)
        self.pad_id: int | None = classifier.config.get_text_config().pad_token_id
        """The token that is not read: a score is that of the last other token, as in transformers."""
        self.model = TokenModel(
            getattr(classifier, classifier.base_model_prefix),
            value_head=self.head,
            packing=resolve_packing(policy.model, packing),
            backbone_only=True,
        )

    @property
    def tokenizer(self) -> Any:
        return self.policy.tokenizer

    def parameters(self) -> Iterator[nn.Parameter]:
        """Backbone, or its adapter, and heads; those that are not trained have no gradient."""
        yield from self.model.lm.parameters()
        yield from self.head.parameters()

    # ------------------------------------------------------------------------------------------ reading

    def batch(
        self,
        sequences: Sequence[Sequence[int]],
        starts: Sequence[int],
        *,
        steps: Sequence[Sequence[int]] | None = None,
        units: Sequence[int] | None = None,
    ) -> TokenBatch:
        """Where the heads are read: "scored" positions are states after a token.

        Args:
            sequences: prompts with their answers.
            starts: index of each answer's first token.
            steps: with `reads="steps"` the indices of the tokens that end a step.
            units: a number by sequence; equal neighbours are one group, which micro-batches do not split.
        """
        if steps is not None:
            places = [[index + 1 for index in ends] for ends in steps]
        else:
            places = [self._read(ids, start) for ids, start in zip(sequences, starts, strict=True)]
        flat = np.concatenate([np.asarray(ids, np.int32) for ids in sequences])
        each = torch.arange(len(sequences))
        groups = each if units is None else torch.unique_consecutive(torch.tensor(list(units)), return_inverse=True)[1]
        counts = torch.tensor([len(found) for found in places])
        layout = Layout(each.repeat_interleave(counts), each, each, groups, int(groups[-1]) + 1)
        positions = torch.tensor([place for found in places for place in found], dtype=torch.long)
        lengths = torch.tensor([len(ids) for ids in sequences])
        return TokenBatch(torch.from_numpy(flat), lengths, positions, layout)

    def _read(self, ids: Sequence[int], start: int) -> list[int]:
        last = len(ids) - 1
        while last > 0 and ids[last] == self.pad_id:
            last -= 1
        first = min(start, last) if self.heads.pooling == "mean" else last
        return list(range(first + 1, last + 2))

    def pooled(self, values: Float[Tensor, "tokens ..."], layout: Layout) -> Float[Tensor, "answers members criteria"]:
        """The outputs of each sequence (of each step, where steps are read) from the values of what was read."""
        shaped = values.reshape(values.shape[0], self.heads.members, len(self.heads.criteria))
        if self.heads.pooling == "last" or self.heads.reads == "steps":
            return shaped
        owner = layout.index("sequence").to(values.device)
        sums = shaped.new_zeros(layout.size("sequence"), *shaped.shape[1:]).index_add(0, owner, shaped)
        return sums / layout.count("sequence").to(values.device)[:, None, None]

    def scores(self, outputs: Float[Tensor, "answers members criteria"]) -> Scores:
        """One number of each answer from its outputs."""
        weights = torch.tensor(self.heads.weights, dtype=outputs.dtype, device=outputs.device)
        score, spread = ensemble_score(outputs, weights, self.heads.spread_penalty)
        return Scores(score - self.heads.shift, spread, outputs.mean(1))

    @torch.no_grad()
    def score(self, batch: TokenBatch, micro_batch_tokens: int = 16384) -> Scores:
        """Scores of a batch of `batch`, without gradient and dropout, on the CPU."""
        ids = np.split(batch.token_ids.numpy(), batch.lengths.cumsum(0)[:-1].numpy())
        if self.model.packing == "share":
            parts = micro_batches_sharing(ids, micro_batch_tokens)
        else:
            parts = micro_batches(batch.lengths.tolist(), micro_batch_tokens, self.model.packing)
        found = torch.zeros(batch.tokens, self.heads.outputs, dtype=self.head.weight.dtype)
        with training_mode(self.model, False):
            for part in map(torch.tensor, parts):
                values = self.model(batch.select(part), VALUES).values
                assert values is not None
                _, places = batch.layout.select(part)
                found[places] = values.to("cpu", found.dtype).reshape(len(places), self.heads.outputs)
        return self.scores(self.pooled(found, batch.layout))

    @property
    def combined(self) -> Float[Tensor, "1 hidden"]:
        """The one head whose score, but for shift and spread penalty, is that of all heads: Σ_c weight_c · mean_k w_kc."""
        members = self.head.weight.detach().reshape(self.heads.members, len(self.heads.criteria), -1)
        weights = torch.tensor(self.heads.weights, dtype=members.dtype, device=members.device)
        return (members * weights[:, None]).sum(1).mean(0)[None]

    def value_head(self) -> tuple[Float[Tensor, "1 hidden"], float]:
        """Weight and bias of a critic's head whose value of a state is the score of the text up to it, without spread penalty.

        A score that is the mean over an answer's tokens is the mean of these values.

        Raises:
            InputError: a model of steps, whose head gives the logit that a step is right.
        """
        if self.heads.reads == "steps":
            raise InputError(
                "a process reward model gives logits of steps, and a critic values of what is still earned"
            )
        return self.combined, -self.heads.shift

    # ------------------------------------------------------------------------------------------ normalising and saving

    @torch.no_grad()
    def normalised(self, scores: Float[Tensor, " answers"]) -> RewardModel:
        """The same model with mean 0 and standard deviation 1 over the scores of a reference set.

        The scale goes into the heads, which have no bias; the shift stands in the settings and changes no comparison.

        Raises:
            InputError: fewer than two scores, or scores that are all alike or not finite.
        """
        values = scores.double() + self.heads.shift
        deviation = float(values.std(correction=0)) if values.numel() > 1 else 0.0
        if not math.isfinite(deviation) or deviation <= 0.0:
            raise InputError(f"the {values.numel()} scores of the reference set have no spread to normalise by")
        reference = ReferenceScores.of((values - values.mean()) / deviation)
        heads = replace(self.heads, shift=float(values.mean()) / deviation, reference=reference)
        weight = self.head.weight / deviation
        return RewardModel(self.policy, heads, weight, packing=self.model.packing)

    @torch.no_grad()
    def save(self, folder: str | Path) -> None:
        """Write a sequence-classification directory with one label that transformers, TRL and `load_reward_model` load.

        The shift, the pooling and the members stand in its config.json under `reward_model`, and are applied by this library;
        transformers reads the mean score at the last token.
        """
        from safetensors.torch import save_file

        classifier = unwrap(self.policy.model)
        classifier_head(classifier).weight.copy_(self.combined)
        setattr(classifier.config, SETTINGS, self.heads.to_json())
        save_policy(_with_padding(self.policy, self.pad_id), folder)
        if self.heads.outputs > 1:
            save_file({"heads": self.head.weight.detach().cpu().contiguous()}, Path(folder) / HEADS)


def classifier_head(classifier: Any) -> nn.Linear:
    """The linear layer that gives a sequence classifier's logits. Raises InputError where it has none, or one with a bias."""
    found = getattr(classifier, "score", None)
    if not isinstance(found, nn.Linear) or found.bias is not None:
        raise InputError(
            f"{type(classifier).__name__} has no linear head `score` without a bias, which a reward model of a decoder has",
            hint="give a reward model that transformers loads as AutoModelForSequenceClassification, with num_labels=1",
        )
    return found


def classifier_policy(source: Any) -> Policy:
    """A sequence classifier to train: of a `ModelConfig`, or of a loaded model with its tokenizer.

    A reward model keeps its head; of a language model the backbone is taken, and the head is new.

    Raises:
        InputError: what `load_classifier` and `load_policy` raise.
    """
    if isinstance(source, ModelConfig):
        trained = is_classifier(source)
        policy = load_classifier(source, trained=trained)
    else:
        given = source[0] if isinstance(source, tuple) and len(source) == 2 else getattr(source, "model", None)
        trained = type(unwrap(given)).__name__.endswith(CLASSIFIER) if isinstance(given, nn.Module) else False
        policy = as_policy(source) if trained else classifier_of(load_policy(source))
    settings = unwrap(policy.model).config
    if not trained:
        settings.get_text_config().pad_token_id = settings.pad_token_id = _spare_token(policy)
    settings.reward_head_trained = trained
    return policy


def new_reward_model(
    source: ModelConfig | Policy,
    heads: RewardHeads = RewardHeads(),
    *,
    seed: int = 0,
    packing: Packing | Literal["auto"] = "auto",
) -> RewardModel:
    """A reward model to train: a language model's backbone with new heads, or a reward model with those that it has.

    New heads are drawn with standard deviation 1 / sqrt(hidden + 1) (Stiennon et al., arXiv 2009.01325), from `seed`.

    Args:
        source: which model, or what `classifier_policy` gave.

    Raises:
        InputError: a model that cannot be loaded, an architecture without a sequence classifier, or a reward model whose
            heads are others than those asked for.
    """
    policy = source if isinstance(source, Policy) else classifier_policy(source)
    classifier = unwrap(policy.model)
    final = classifier_head(classifier)
    if not classifier.config.__dict__.pop("reward_head_trained", False):
        generator = torch.Generator().manual_seed(seed)
        drawn = torch.randn(heads.outputs, final.in_features, generator=generator, dtype=torch.float64)
        return RewardModel(policy, heads, drawn / math.sqrt(final.in_features + 1), packing=packing)
    loaded = _with_its_heads(policy, str(classifier.config._name_or_path), packing)
    for name in ("criteria", "members", "pooling", "reads", "separator"):
        if getattr(loaded.heads, name) != getattr(heads, name):
            raise InputError(
                f"the model is a reward model with {name} {getattr(loaded.heads, name)!r}, not {getattr(heads, name)!r}",
                hint="train on with the same heads, or begin from a language model",
            )
    kept = replace(heads, shift=0.0, reference=None)
    return RewardModel(policy, kept, loaded.head.weight.detach(), packing=packing)


def load_reward_model(config: ModelConfig | str, *, packing: Packing | Literal["auto"] = "auto") -> RewardModel:
    """A reward model from a folder or a name: one that this library saved, or any sequence classifier with one label.

    Raises:
        InputError: what cannot be loaded, a model without a head, or with several labels.
    """
    settings = config if isinstance(config, ModelConfig) else ModelConfig(path=config)
    return _with_its_heads(load_classifier(settings, trained=True), settings.path, packing)


def _with_its_heads(policy: Policy, path: str, packing: Packing | Literal["auto"]) -> RewardModel:
    """A classifier that was loaded from `path`, with the heads that stand there."""
    from safetensors.torch import load_file

    classifier = unwrap(policy.model)
    final = classifier_head(classifier)
    stored = getattr(classifier.config, SETTINGS, None)
    heads = RewardHeads() if stored is None else RewardHeads.from_json(stored)
    if final.out_features != 1:
        raise InputError(
            f"{path} gives {final.out_features} numbers for an answer, and a reward is one",
            hint="give a sequence classifier with num_labels=1",
        )
    file = Path(path).expanduser() / HEADS
    weight = load_file(file)["heads"] if heads.outputs > 1 and file.is_file() else final.weight.detach()
    if weight.shape[0] != heads.outputs:
        raise InputError(f"{path} lacks {HEADS}, which holds the {heads.outputs} heads of this reward model")
    return RewardModel(policy, heads, weight, packing=packing)


def _spare_token(policy: Policy) -> int:
    """A token for padding that ends no answer: transformers reads a score before it. Where there is none, the stop token."""
    tokenizer = policy.tokenizer
    known = (tokenizer.pad_token_id, tokenizer.unk_token_id, tokenizer.bos_token_id)
    if tokenizer.pad_token_id is not None:
        return int(tokenizer.pad_token_id)
    return next((int(token) for token in known if token is not None and token not in policy.stops), policy.stops[0])


def _with_padding(policy: Policy, pad_id: int | None) -> Policy:
    """The same with a tokenizer that pads with `pad_id`."""
    if pad_id is None or policy.tokenizer.pad_token_id == pad_id:
        return policy
    tokenizer = copy.deepcopy(policy.tokenizer)
    tokenizer.pad_token = tokenizer.convert_ids_to_tokens(pad_id)
    return replace(policy, tokenizer=tokenizer, pad_id=pad_id)
