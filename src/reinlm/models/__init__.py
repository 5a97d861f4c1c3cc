"""Models: loading and saving them with their stop tokens, tiny ones from scratch, and log-probabilities in chunks."""

from reinlm.models.critic import ValueModel
from reinlm.models.loading import LoraConfig, ModelConfig, Policy, load_policy, load_tokenizer
from reinlm.models.modules import disable_dropout
from reinlm.models.reference import Reference
from reinlm.models.saving import restore_policy, save_policy
from reinlm.models.score import Scores, micro_batches, score
from reinlm.models.tiny import character_tokenizer, tiny_model, train_tokenizer

__all__ = [
    "LoraConfig",
    "ModelConfig",
    "Policy",
    "Reference",
    "Scores",
    "ValueModel",
    "character_tokenizer",
    "disable_dropout",
    "load_policy",
    "load_tokenizer",
    "micro_batches",
    "restore_policy",
    "save_policy",
    "score",
    "tiny_model",
    "train_tokenizer",
]
