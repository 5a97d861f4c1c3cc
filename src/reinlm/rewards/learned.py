"""The reward `model`: a learned reward model scores answers by their tokens, or by their text where tokenizers differ."""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, Literal

from pydantic import Field, model_validator

from reinlm.config import Config, ModelPath
from reinlm.errors import InputError
from reinlm.parts import part
from reinlm.rewards.builtin import answer_text
from reinlm.rewards.values import TrainerState

if TYPE_CHECKING:
    from reinlm.models import RewardModel


@part("reward", "model")
class ModelReward(Config):
    """The score of a reward model: of `reinlm reward`, or any sequence classifier of a decoder with one label.

        score -> (score - mean) / deviation of all training scores so far, with `normalize`  ->  within [-clip, clip]

    Example:
        {"model": {"path": "runs/rm/checkpoints/best", "clip": 5.0}}
    """

    path: ModelPath
    """A folder, a run, or a name on the Hub."""
    device: str = Field(default="auto", pattern=r"^(auto|cpu|mps|cuda(:\\d+)?)$")
    """"auto": CUDA where there is one, else the CPU."""
    dtype: Literal["auto", "float32", "bfloat16", "float16"] = "auto"
    """dtype of the weights. "auto": bfloat16 on CUDA, float32 elsewhere."""
    normalize: bool = False
    """Divide by the running standard deviation of the scores in training, after their running mean is subtracted."""
    clip: float | None = Field(default=None, gt=0, allow_inf_nan=False)
    """The largest size of a score, after normalising; null: none."""
    steps: Literal["last", "min", "mean", "product"] = "min"
    """How a process reward model's probabilities of the steps become one number."""
    offload: bool = False
    """Keep the weights in main memory between calls."""
    process: Literal["trainer", "own"] = "trainer"
    """own: in a worker process, which keeps no running statistics."""
    micro_batch_tokens: int = Field(default=16384, ge=1)
    """Tokens that go through the model at once."""
    window: int = Field(default=512, ge=1)
    """The last training scores that drift is measured over."""

    @model_validator(mode="after")
    def _own_keeps_nothing(self) -> ModelReward:
        if self.process == "own" and self.normalize:
            raise ValueError("normalize keeps running statistics in checkpoints: take process=trainer")
        if self.process == "own" and self.changed("window"):
            raise ValueError(f"window {self.window} has no effect with process=own, which measures no drift")
        return self

    @property
    def runs_here(self) -> bool:
        """Whether it stays in the trainer's process."""
        return self.process == "trainer"

    def build(self) -> LearnedReward | StatelessReward:
        """Load the model."""
        from reinlm.models import ModelConfig, load_reward_model
        from reinlm.models.loading import model_device

        if self.offload and model_device(ModelConfig(path=self.path, device=self.device)).type == "cpu":
            raise InputError("offload has no effect on the CPU", hint="leave offload out")
        model = load_reward_model(ModelConfig(path=self.path, device=self.device, dtype=self.dtype))
        if self.changed("steps") and model.heads.reads != "steps":
            raise InputError(
                f"steps {self.steps} has no effect: {self.path} scores whole answers", hint="leave steps out"
            )
        return LearnedReward(self, model) if self.process == "trainer" else StatelessReward(self, model)


class StatelessReward:
    """A reward model as a reward function that keeps nothing between calls."""

    def __init__(self, config: ModelReward, model: RewardModel) -> None:
        self.config = config
        self.model = model
        self._home = model.policy.device

    def __call__(
        self, prompts: Sequence[Any], completions: Sequence[Any], token_ids: Sequence[Any], log_metric: Any
    ) -> list[float]:
        """A number for each answer."""
        return self._clipped(self._scores(prompts, completions, token_ids, log_metric), log_metric)

    def _clipped(self, scores: list[float], log_metric: Any) -> list[float]:
        limit = self.config.clip
        if limit is None:
            return scores
        log_metric("clipped", sum(abs(score) > limit for score in scores) / len(scores))
        return [min(max(score, -limit), limit) for score in scores]

    def _scores(
        self, prompts: Sequence[Any], completions: Sequence[Any], token_ids: Sequence[Any], log_metric: Any
    ) -> list[float]:
        whole = [self._tokens(*given) for given in zip(prompts, completions, token_ids, strict=True)]
        read = [self._within_context(*one) for one in whole]
        if cut := sum(len(one[0]) > len(other[0]) for one, other in zip(whole, read, strict=True)):
            log_metric("cut", cut / len(read))
        ids, starts = [ids for ids, _ in read], [start for _, start in read]
        steps = None
        if self.model.heads.reads == "steps":
            steps = [self._step_ends(one, start) for one, start in read]
        if self.config.offload:
            self._move(self._home)
        found = self.model.score(self.model.batch(ids, starts, steps=steps), self.config.micro_batch_tokens)
        if self.config.offload:
            self._move("cpu")
        if steps is not None:
            return self._of_steps(found.reward, [len(ends) for ends in steps])
        if self.model.heads.members > 1:
            log_metric("spread", float(found.spread.mean()))
        scores: list[float] = found.reward.tolist()
        return scores

    def _move(self, device: Any) -> None:
        self.model.policy.model.to(device)
        self.model.head.to(device)

    def _of_steps(self, logits: Any, counts: Sequence[int]) -> list[float]:
        """One number of each answer from the chance that each of its steps is right."""
        chances = logits.sigmoid().split(list(counts))
        how = self.config.steps
        take = {
            "last": lambda x: x[-1],
            "min": lambda x: x.min(),
            "mean": lambda x: x.mean(),
            "product": lambda x: x.prod(),
        }
        return [float(take[how](part)) for part in chances]

    def _step_ends(self, ids: Sequence[int], start: int) -> list[int]:
        """The tokens whose text holds the separator, and the last one."""
        tokenizer, separator = self.model.tokenizer, self.model.heads.separator
        last = len(ids) - 1
        ends = [
            place
            for place in range(start, last)
            if separator in tokenizer.decode([ids[place]], skip_special_tokens=True)
        ]
        return [*ends, last]

    def _tokens(self, prompt: Any, completion: Any, given: Mapping[str, Any]) -> tuple[list[int], int]:
        """Prompt and answer as the reward model reads them, and where the answer begins."""
        ids, start = list(given["ids"]), int(given["start"])
        return (ids, start) if self._same_text(ids, start, prompt, completion) else self._rendered(prompt, completion)

    def _within_context(self, ids: list[int], start: int) -> tuple[list[int], int]:
        """The same without the beginning of a prompt that is too long. Raises InputError for an answer that is."""
        limit = self.model.policy.context_length
        cut = 0 if limit is None else max(len(ids) - limit, 0)
        if cut > start:
            raise InputError(
                f"an answer of {len(ids) - start} tokens is longer than the context of the reward model, {limit}",
                hint="lower rollout.max_new_tokens, or take a reward model with a longer context",
            )
        return ids[cut:], start - cut

    def _same_text(self, ids: Sequence[int], start: int, prompt: Any, completion: Any) -> bool:
        """Whether the policy's tokens say to this model's tokenizer what they said: then they are read as they are."""
        tokenizer = self.model.tokenizer
        if max(ids) >= len(tokenizer):
            return False
        before, after = (tokenizer.decode(part, skip_special_tokens=True) for part in (ids[:start], ids[start:]))
        return answer_text(prompt).strip() in before and after.strip() == answer_text(completion).strip()

    def _rendered(self, prompt: Any, completion: Any) -> tuple[list[int], int]:
        tokenizer = self.model.tokenizer
        text = answer_text(completion)
        if tokenizer.chat_template is not None:
            messages = [{"role": "user", "content": prompt}] if isinstance(prompt, str) else list(prompt)
            whole = tokenizer.apply_chat_template([*messages, {"role": "assistant", "content": text}], tokenize=False)
            front = tokenizer.apply_chat_template(messages, tokenize=False, add_generation_prompt=True)
            ids = tokenizer(whole, add_special_tokens=False)["input_ids"]
            return ids, min(len(tokenizer(front, add_special_tokens=False)["input_ids"]), len(ids) - 1)
        before = prompt if isinstance(prompt, str) else "\n".join(str(message["content"]) for message in prompt)
        first = tokenizer(before)["input_ids"]
        return [*first, *tokenizer(text, add_special_tokens=False)["input_ids"], tokenizer.eos_token_id], len(first)


class LearnedReward(StatelessReward):
    """A reward model in the trainer's process, with running statistics and measures of drift that checkpoints hold."""

    def __init__(self, config: ModelReward, model: RewardModel) -> None:
        from reinlm.objectives.reward_scores import RunningMoments

        super().__init__(config, model)
        self.moments = RunningMoments()
        self.recent: deque[float] = deque(maxlen=config.window)

    def __call__(  # type: ignore[override]
        self,
        prompts: Sequence[Any],
        completions: Sequence[Any],
        token_ids: Sequence[Any],
        trainer_state: TrainerState,
        log_metric: Any,
    ) -> list[float]:
        """A number for each answer; those of evaluations change no statistic."""
        import torch

        scores = self._scores(prompts, completions, token_ids, log_metric)
        if not trainer_state.evaluating:
            self.recent.extend(scores)
            if self.config.normalize:
                self.moments.add(torch.tensor(scores))
        self._log_drift(log_metric)
        if self.config.normalize:
            scores = self.moments.normalised(torch.tensor(scores)).tolist()
        return self._clipped(scores, log_metric)

    def _log_drift(self, log_metric: Any) -> None:
        """How far the last scores have moved from those of the reference set."""
        import torch

        from reinlm.objectives.reward_scores import population_stability_index

        reference = self.model.heads.reference
        if reference is None or not self.recent:
            return
        values = torch.tensor(list(self.recent))
        counts = torch.bincount(reference.bins(values), minlength=len(reference.shares))
        log_metric("psi", float(population_stability_index(counts, torch.tensor(reference.shares))))
        outside = (values < reference.lowest) | (values > reference.highest)
        log_metric("outside", float(outside.double().mean()))

    def state_dict(self) -> dict[str, Any]:
        return {
            "count": self.moments.count,
            "mean": self.moments.mean,
            "squares": self.moments.squares,
            "recent": list(self.recent),
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.moments.count, self.moments.mean = int(state["count"]), float(state["mean"])
        self.moments.squares = float(state["squares"])
        self.recent.clear()
        self.recent.extend(state["recent"])
