"""The trainers from Python, which make a run step by step; the verbs of `reinlm.api` run them to their end."""

from __future__ import annotations

from typing import Any, Unpack

from reinlm.algorithms import Algorithm, PreferenceAlgorithm, preference_algorithm_spec
from reinlm.api.arguments import arguments
from reinlm.api.keywords import DPOKeywords, RewardKeywords, RFTKeywords, RLKeywords, SFTKeywords
from reinlm.api.settings import composed_over, configuration, run_settings, session_options
from reinlm.errors import InputError
from reinlm.importing import refuse_while_importing
from reinlm.runs.progress import silenced
from reinlm.training.config import RLConfig, SFTConfig
from reinlm.training.dpo_config import DPOConfig
from reinlm.training.dpo_session import DPOSession
from reinlm.training.rejection.config import RFTConfig
from reinlm.training.rejection.session import RFTSession
from reinlm.training.reward_config import RewardModelConfig
from reinlm.training.reward_session import RewardSession
from reinlm.training.sessions import RLSession, SFTSession


class SFTTrainer(SFTSession):
    """Supervised fine-tuning, ready to run: `train()`, or `step()` by step; `evaluate()`, `save()`.

    Args:
        model: a Hugging Face folder or name, a loaded model, a pair (model, tokenizer), or a run: its folder, its result or
            the result's policy.
        data: a file, a data set's name or object, a frame of pandas or polars, or a list of rows with prompt+completion,
            messages or text.
        keywords: see `SFTKeywords`; any key of `SFTConfig` by its section.

    Raises:
        InputError: anything that cannot be used, named.

    Example:
        trainer = reinlm.SFTTrainer("PATH_OR_NAME", "train.jsonl", optimizer={"learning_rate": 1e-4})
        trainer.train()
    """

    def __init__(self, model: Any = None, data: Any = None, **keywords: Unpack[SFTKeywords]) -> None:
        refuse_while_importing("reinlm.SFTTrainer")
        loaded, sections, options = arguments(self.kind, model, data, keywords)
        with run_settings(self.kind, sections, options) as tree, silenced(quiet=options.get("quiet", False)):
            super().__init__(
                configuration(SFTConfig, tree, loaded, resume=options.get("resume")),
                model=loaded,
                sources=tree.sources,
                **session_options(options),
            )


class RLTrainer(RLSession):
    """Reinforcement learning, ready to run: `train()`, or `step()` by step; `evaluate()`, `save()`.

    Args:
        model: as in `SFTTrainer`.
        data: likewise, with `prompt` or `messages`, and further columns that the reward functions read.
        keywords: see `RLKeywords`; any key of `RLConfig` by its section.

    Raises:
        InputError: anything that cannot be used, named.

    Example:
        with reinlm.RLTrainer("PATH_OR_NAME", "train.jsonl", reward="math", algorithm="dapo") as trainer:
            while not trainer.over:
                print(trainer.step()["reward"])
    """

    def __init__(self, model: Any = None, data: Any = None, **keywords: Unpack[RLKeywords]) -> None:
        refuse_while_importing("reinlm.RLTrainer")
        loaded, sections, options = arguments(self.kind, model, data, keywords)
        given = sections.get("algorithm")
        if isinstance(given, type):
            raise InputError(
                f"algorithm: the class {given.__name__} is none", hint='give a name, or reinlm.algorithm("grpo")'
            )
        composed = given if isinstance(given, Algorithm) else None
        if composed is not None:
            del sections["algorithm"]
        with run_settings(self.kind, sections, options) as tree, silenced(quiet=options.get("quiet", False)):
            if composed is not None:
                tree = composed_over(tree, composed)
            config = configuration(RLConfig, tree, loaded, resume=options.get("resume"))
            super().__init__(
                config,
                algorithm=composed,
                model=loaded,
                sources=tree.sources,
                **session_options(options),
            )


class DPOTrainer(DPOSession):
    """Learning from judged answers, ready to run: `train()`, or `step()` by step; `evaluate()`, `save()`.

    Args:
        model: as in `SFTTrainer`.
        data: likewise, with prompt+chosen+rejected, prompt+answers, or prompt+completion+label; see `reinlm.data.load_judged`.
        keywords: see `DPOKeywords`; any key of `DPOConfig` by its section.

    Raises:
        InputError: anything that cannot be used, named.

    Example:
        trainer = reinlm.DPOTrainer("PATH_OR_NAME", "pairs.jsonl", algorithm="ipo", eval_data="test.jsonl")
        trainer.train()
    """

    def __init__(self, model: Any = None, data: Any = None, **keywords: Unpack[DPOKeywords]) -> None:
        refuse_while_importing("reinlm.DPOTrainer")
        loaded, sections, options = arguments(self.kind, model, data, keywords)
        given = sections.get("algorithm")
        composed = given if isinstance(given, PreferenceAlgorithm) else None
        if composed is not None:
            sections["algorithm"] = preference_algorithm_spec(composed)
        with run_settings(self.kind, sections, options) as tree, silenced(quiet=options.get("quiet", False)):
            super().__init__(
                configuration(DPOConfig, tree, loaded, resume=options.get("resume")),
                algorithm=composed,
                model=loaded,
                sources=tree.sources,
                **session_options(options),
            )


class RewardTrainer(RewardSession):
    """A reward model of judged answers, ready to be trained: `train()`, or `step()` by step; `evaluate()`, `save()`.

    Args:
        model: as in `SFTTrainer`: the language model whose backbone is taken; also a reward model to train on.
        data: likewise, with prompt+chosen+rejected, prompt+answers, prompt+completion with label or ratings, or
            prompt+completions+labels (steps); see `reinlm.data.load_judged`.
        keywords: see `RewardKeywords`; any key of `RewardModelConfig` by its section.

    Raises:
        InputError: anything that cannot be used, named.

    Example:
        trainer = reinlm.RewardTrainer("PATH_OR_NAME", "pairs.jsonl", eval_data="test.jsonl", head={"members": 4})
        trainer.train()
    """

    def __init__(self, model: Any = None, data: Any = None, **keywords: Unpack[RewardKeywords]) -> None:
        refuse_while_importing("reinlm.RewardTrainer")
        loaded, sections, options = arguments(self.kind, model, data, keywords)
        with run_settings(self.kind, sections, options) as tree, silenced(quiet=options.get("quiet", False)):
            super().__init__(
                configuration(RewardModelConfig, tree, loaded, resume=options.get("resume")),
                model=loaded,
                sources=tree.sources,
                **session_options(options),
            )


class RFTTrainer(RFTSession):
    """Rejection sampling, ready to run: sample, keep, imitate; `train()`, or `step()` by step; `evaluate()`, `save()`.

    Args:
        model, data: as in `RLTrainer`.
        keywords: see `RFTKeywords`; any key of `RFTConfig` by its section.

    Raises:
        InputError: anything that cannot be used, named.

    Example:
        reinlm.RFTTrainer("PATH_OR_NAME", "train.jsonl", reward="math", method="rest_em").train()
    """

    def __init__(self, model: Any = None, data: Any = None, **keywords: Unpack[RFTKeywords]) -> None:
        refuse_while_importing("reinlm.RFTTrainer")
        loaded, sections, options = arguments(self.kind, model, data, keywords)
        with run_settings(self.kind, sections, options) as tree, silenced(quiet=options.get("quiet", False)):
            super().__init__(
                configuration(RFTConfig, tree, loaded, resume=options.get("resume")),
                model=loaded,
                sources=tree.sources,
                **session_options(options),
            )
