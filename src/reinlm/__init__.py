"""reinlm: improve language models by reinforcement learning.

    import reinlm
    reinlm.sft("path/to/model", "train.jsonl", output="runs/sft")
    reinlm.rl("runs/sft/checkpoints/last", "gsm8k_train.jsonl", reward="math", algorithm="dapo", output="runs/rl")
    reinlm.evaluate("runs/rl/checkpoints/last", "gsm8k_test.jsonl", reward="math", evaluation={"samples": 8}).metrics

Nothing heavy is imported before it is used.
"""

from __future__ import annotations

import importlib
import sys
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:  # for type checkers, editors and the reference; at run time `__getattr__` imports what is used
    from reinlm.algorithms import Algorithm, algorithm
    from reinlm.api import (
        DPOTrainer,
        RewardTrainer,
        RFTTrainer,
        RLTrainer,
        SFTTrainer,
        bench,
        compare,
        create_model,
        dpo,
        evaluate,
        explain,
        generate,
        reward,
        rft,
        rl,
        sft,
    )
    from reinlm.errors import InputError, RunError
    from reinlm.loop import Callback, EarlyStopping
    from reinlm.metrics import Metric, declare_metrics
    from reinlm.models import load_policy, save_policy
    from reinlm.rewards import StepRewards

__version__ = "0.1.0"

_WHERE = {
    "sft": "reinlm.api",
    "rl": "reinlm.api",
    "dpo": "reinlm.api",
    "reward": "reinlm.api",
    "rft": "reinlm.api",
    "compare": "reinlm.api",
    "evaluate": "reinlm.api",
    "bench": "reinlm.api",
    "generate": "reinlm.api",
    "explain": "reinlm.api",
    "create_model": "reinlm.api",
    "SFTTrainer": "reinlm.api",
    "RLTrainer": "reinlm.api",
    "DPOTrainer": "reinlm.api",
    "RewardTrainer": "reinlm.api",
    "RFTTrainer": "reinlm.api",
    "algorithm": "reinlm.algorithms",
    "Algorithm": "reinlm.algorithms",
    "StepRewards": "reinlm.rewards",
    "load_policy": "reinlm.models",
    "save_policy": "reinlm.models",
    "Callback": "reinlm.loop",
    "EarlyStopping": "reinlm.loop",
    "Metric": "reinlm.metrics",
    "declare_metrics": "reinlm.metrics",
    "InputError": "reinlm.errors",
    "RunError": "reinlm.errors",
}

__all__ = [
    "Algorithm",
    "Callback",
    "DPOTrainer",
    "EarlyStopping",
    "InputError",
    "Metric",
    "RFTTrainer",
    "RLTrainer",
    "RewardTrainer",
    "RunError",
    "SFTTrainer",
    "StepRewards",
    "__version__",
    "algorithm",
    "bench",
    "compare",
    "create_model",
    "declare_metrics",
    "dpo",
    "evaluate",
    "explain",
    "generate",
    "load_policy",
    "reward",
    "rft",
    "rl",
    "save_policy",
    "sft",
]


def __getattr__(name: str) -> Any:
    if name not in _WHERE:
        from reinlm.aliases.absent import name_instead

        if (instead := name_instead(name) or _of_control(name)) is None:
            raise AttributeError(f"module 'reinlm' has no attribute {name!r}")
        text = f"reinlm has no {name}: {instead}"
        # `from reinlm import NAME` replaces the text of an AttributeError; `hasattr` needs one
        imported = sys._getframe(1).f_code.co_name == "_handle_fromlist"
        raise ImportError(text, name="reinlm") if imported else AttributeError(text)
    return getattr(importlib.import_module(_WHERE[name]), name)


def _of_control(name: str) -> str | None:
    """What to use in place of a class of `reinlm.classical`; None for any other name."""
    known = name[:1].isupper() and name in importlib.import_module("reinlm.classical").__all__
    return f"use reinlm.classical.{name} for control, or reinlm.rl for a language model" if known else None


def __dir__() -> list[str]:
    return sorted(__all__)
