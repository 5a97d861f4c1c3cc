"""Models: loading and saving them with their stop tokens, tiny ones from scratch, and the one forward pass."""

from reinlm.models.build import same_model
from reinlm.models.critic import ValueModel
from reinlm.models.following import FollowingModel
from reinlm.models.loading import ModelConfig, Policy, load_policy, load_tokenizer
from reinlm.models.lora import LoraConfig
from reinlm.models.modules import disable_dropout, training_mode
from reinlm.models.packed import Packing, micro_batches
from reinlm.models.prefix_sharing import micro_batches_sharing
from reinlm.models.reference import Reference
from reinlm.models.reward_model import RewardHeads, RewardModel, load_reward_model, new_reward_model
from reinlm.models.saving import restore_policy, save_policy
from reinlm.models.score import score
from reinlm.models.tiny import character_tokenizer, tiny_model, train_tokenizer
from reinlm.models.token_model import VALUES, Anchor, Outputs, TokenModel, Want
from reinlm.renamed import renamed

__all__ = [
    "VALUES",
    "Anchor",
    "FollowingModel",
    "LoraConfig",
    "ModelConfig",
    "Outputs",
    "Packing",
    "Policy",
    "Reference",
    "RewardHeads",
    "RewardModel",
    "TokenModel",
    "ValueModel",
    "Want",
    "character_tokenizer",
    "disable_dropout",
    "load_policy",
    "load_reward_model",
    "load_tokenizer",
    "micro_batches",
    "micro_batches_sharing",
    "new_reward_model",
    "restore_policy",
    "same_model",
    "save_policy",
    "score",
    "tiny_model",
    "train_tokenizer",
    "training_mode",
]

renamed(__name__, {"Scores": "reinlm.models:Outputs"})
