"""Option names of TRL, verl and Stable-Baselines3, and the corresponding names here.

The error for an unknown key gives our name if the key is in these tables (`reinlm.config`); docs/coming_from.md lists them.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from typing import Any, NamedTuple


class Alias(NamedTuple):
    """The equivalent of an option of another library.

    Example: TRL's `num_iterations` is `training.passes`:
        Alias("training.passes")
    """

    ours: str | None
    """Key of a recipe of `rl` or `sft`, or a flag; None without an equivalent."""
    note: str = ""
    """What differs, or why there is no equivalent."""
    classical: str | None = None
    """Setting or flag of `reinlm classical`."""


_MEMORY = "results do not depend on it: tokens that are in memory at once"
_ALWAYS = "there is no such option"

TRL: Mapping[str, Alias] = {
    "model_name_or_path": Alias("model.path"),
    "torch_dtype": Alias("model.dtype"),
    "attn_implementation": Alias("model.attention"),
    "peft_config": Alias("model.lora"),
    "lora_r": Alias("model.lora.rank"),
    "lora_alpha": Alias("model.lora.alpha"),
    "lora_dropout": Alias("model.lora.dropout"),
    "lora_target_modules": Alias("model.lora.target_modules"),
    "gradient_checkpointing": Alias("model.gradient_checkpointing"),
    "bf16": Alias("training.autocast", "float32 weights compute in bfloat16 on CUDA by default"),
    "train_dataset": Alias("data.path"),
    "dataset_name": Alias("data.path"),
    "dataset_text_field": Alias("data.columns"),
    "eval_dataset": Alias("evaluation.data"),
    "eval_steps": Alias("evaluation.every"),
    "eval_strategy": Alias("evaluation.every", "a number of steps"),
    "reward_funcs": Alias("reward"),
    "reward_weights": Alias("reward.functions", "each reward has its own: {name: math, weight: 0.5}"),
    "num_generations": Alias("rollout.group_size"),
    "generation_batch_size": Alias("rollout.batch_size"),
    "max_completion_length": Alias("rollout.max_new_tokens"),
    "response_length": Alias("rollout.max_new_tokens"),
    "max_prompt_length": Alias("data.on_long_prompt", "the limit is the model's context, and no prompt is cut"),
    "temperature": Alias("rollout.temperature"),
    "top_p": Alias("evaluation.top_p", "samples to train on are drawn from the whole distribution"),
    "top_k": Alias("evaluation.top_k", "samples to train on are drawn from the whole distribution"),
    "use_vllm": Alias("rollout.engine"),
    "beta": Alias("algorithm.kl.coefficient"),
    "kl_coef": Alias("algorithm.kl.coefficient"),
    "kl_estimator": Alias("algorithm.kl.estimator"),
    "epsilon": Alias("algorithm.gate.clip.low", "of the ratio's clip; Adam's is optimizer.epsilon"),
    "epsilon_high": Alias("algorithm.gate.clip.high"),
    "delta": Alias("algorithm.gate.clip.dual"),
    "cliprange": Alias("algorithm.gate.clip.low", "and algorithm.gate.clip.high"),
    "cliprange_value": Alias("algorithm.critic.clip"),
    "vf_coef": Alias("algorithm.critic.coefficient", classical="value_coefficient"),
    "lam": Alias("algorithm.advantage.gae.gae_lambda"),
    "loss_type": Alias("algorithm.weights", "sequence_mean is grpo's, token_mean dapo's, constant_budget dr_grpo's"),
    "scale_rewards": Alias("algorithm.advantage", "group_standardize divides by the deviation, group_center does not"),
    "importance_sampling_level": Alias("algorithm.ratio", "token or sequence"),
    "mask_truncated_completions": Alias("algorithm.overlong", "filter_after_baseline"),
    "missing_eos_penalty": Alias("algorithm.shapers.missing_end.penalty"),
    "vllm_importance_sampling_cap": Alias("algorithm.corrections.truncated.cap"),
    "vllm_importance_sampling_correction": Alias("algorithm.corrections"),
    "num_iterations": Alias("training.passes"),
    "num_ppo_epochs": Alias("training.passes"),
    "num_mini_batches": Alias("training.minibatches"),
    "steps_per_generation": Alias("training.minibatches", "counts updates of a batch, not micro-batches"),
    "per_device_train_batch_size": Alias(
        "training.micro_batch_tokens",
        f"{_MEMORY}; a step has rollout.batch_size answers, or training.batch_size examples",
    ),
    "gradient_accumulation_steps": Alias("training.micro_batch_tokens", _MEMORY),
    "sync_ref_model": Alias("training.reference_refresh"),
    "ref_model_sync_steps": Alias("training.reference_refresh.every"),
    "ref_model_mixup_alpha": Alias("training.reference_refresh.mix"),
    "packing": Alias("training.packing"),
    "max_length": Alias("max_tokens", "of an example of sft; longer ones are errors or skipped, never cut"),
    "max_seq_length": Alias("max_tokens", "of an example of sft; longer ones are errors or skipped, never cut"),
    "completion_only_loss": Alias(None, f"{_ALWAYS}: prompt+completion trains on completions, text on everything"),
    "num_train_epochs": Alias("training.epochs"),
    "max_steps": Alias("training.steps"),
    "learning_rate": Alias("optimizer.learning_rate", classical="learning_rate"),
    "optim": Alias("optimizer.name"),
    "lr_scheduler_type": Alias("optimizer.schedule"),
    "warmup_steps": Alias("optimizer.warmup_steps"),
    "warmup_ratio": Alias("optimizer.warmup_steps", "in updates"),
    "weight_decay": Alias("optimizer.weight_decay"),
    "max_grad_norm": Alias("optimizer.max_grad_norm", classical="max_grad_norm"),
    "adam_beta1": Alias("optimizer.betas"),
    "adam_beta2": Alias("optimizer.betas"),
    "adam_epsilon": Alias("optimizer.epsilon"),
    "output_dir": Alias("run.output"),
    "save_steps": Alias("run.save_every"),
    "save_total_limit": Alias("run.keep_last"),
    "report_to": Alias("run.trackers"),
    "log_completions": Alias("run.rollouts_every"),
    "logging_steps": Alias(None, f"{_ALWAYS}: every step is logged"),
    "resume_from_checkpoint": Alias("--resume", "resume=True from Python"),
    "disable_dropout": Alias(None, f"{_ALWAYS}: reinforcement learning has no dropout"),
    "remove_unused_columns": Alias(None, f"{_ALWAYS}: every column reaches the reward functions by name"),
}
"""Options of GRPOConfig, PPOConfig, SFTConfig and ModelConfig, and arguments of their trainers."""

VERL: Mapping[str, Alias] = {
    "data.train_files": Alias("data.path"),
    "data.val_files": Alias("evaluation.data"),
    "data.prompt_key": Alias("data.columns"),
    "data.train_batch_size": Alias("rollout.batch_size", "counts answers: prompts times rollout.group_size"),
    "data.max_prompt_length": Alias("data.on_long_prompt", "the limit is the model's context, and no prompt is cut"),
    "data.max_response_length": Alias("rollout.max_new_tokens"),
    "data.filter_overlong_prompts": Alias("data.on_long_prompt", "skip"),
    "actor_rollout_ref.model.path": Alias("model.path"),
    "actor_rollout_ref.model.enable_gradient_checkpointing": Alias("model.gradient_checkpointing"),
    "actor_rollout_ref.model.lora_rank": Alias("model.lora.rank"),
    "actor_rollout_ref.model.lora_alpha": Alias("model.lora.alpha"),
    "actor_rollout_ref.model.use_remove_padding": Alias("training.packing", "pack"),
    "actor_rollout_ref.rollout.name": Alias("rollout.engine"),
    "actor_rollout_ref.rollout.n": Alias("rollout.group_size"),
    "actor_rollout_ref.rollout.temperature": Alias("rollout.temperature"),
    "actor_rollout_ref.rollout.val_kwargs.n": Alias("evaluation.samples"),
    "actor_rollout_ref.rollout.val_kwargs.temperature": Alias("evaluation.temperature"),
    "actor_rollout_ref.rollout.multi_turn.enable": Alias("environment"),
    "actor_rollout_ref.rollout.multi_turn.max_assistant_turns": Alias("rollout.max_turns"),
    "actor_rollout_ref.actor.ppo_mini_batch_size": Alias("training.minibatches", "how many, not how large"),
    "actor_rollout_ref.actor.ppo_epochs": Alias("training.passes"),
    "actor_rollout_ref.actor.ppo_micro_batch_size_per_gpu": Alias("training.micro_batch_tokens", _MEMORY),
    "actor_rollout_ref.actor.ppo_max_token_len_per_gpu": Alias("training.micro_batch_tokens", _MEMORY),
    "actor_rollout_ref.actor.use_dynamic_bsz": Alias(None, f"{_ALWAYS}: micro-batches are always made by tokens"),
    "actor_rollout_ref.actor.clip_ratio": Alias("algorithm.gate.clip.low", "and algorithm.gate.clip.high"),
    "actor_rollout_ref.actor.clip_ratio_low": Alias("algorithm.gate.clip.low"),
    "actor_rollout_ref.actor.clip_ratio_high": Alias("algorithm.gate.clip.high"),
    "actor_rollout_ref.actor.clip_ratio_c": Alias("algorithm.gate.clip.dual"),
    "actor_rollout_ref.actor.loss_agg_mode": Alias(
        "algorithm.weights",
        "token-mean is token_mean, seq-mean-token-mean sequence_mean, seq-mean-token-sum sequence_sum",
    ),
    "actor_rollout_ref.actor.entropy_coeff": Alias("algorithm.entropy.coefficient"),
    "actor_rollout_ref.actor.use_kl_loss": Alias("algorithm.kl.placement", "loss; algorithm.kl is null for no KL"),
    "actor_rollout_ref.actor.kl_loss_coef": Alias("algorithm.kl.coefficient"),
    "actor_rollout_ref.actor.kl_loss_type": Alias("algorithm.kl.estimator", "low_var_kl is k3, kl is k1, mse is k2"),
    "actor_rollout_ref.actor.policy_loss.loss_mode": Alias("algorithm", "gspo, gmpo, cispo: each is an algorithm"),
    "actor_rollout_ref.actor.grad_clip": Alias("optimizer.max_grad_norm"),
    "actor_rollout_ref.actor.optim.lr": Alias("optimizer.learning_rate"),
    "actor_rollout_ref.actor.optim.lr_warmup_steps": Alias("optimizer.warmup_steps"),
    "actor_rollout_ref.actor.optim.lr_warmup_steps_ratio": Alias("optimizer.warmup_steps", "in updates"),
    "actor_rollout_ref.actor.optim.warmup_style": Alias("optimizer.schedule"),
    "actor_rollout_ref.actor.optim.weight_decay": Alias("optimizer.weight_decay"),
    "algorithm.adv_estimator": Alias(
        "algorithm", "grpo, rloo, ppo: each is an algorithm; algorithm.advantage changes it"
    ),
    "algorithm.gamma": Alias("algorithm.advantage.gae.gamma"),
    "algorithm.lam": Alias("algorithm.advantage.gae.gae_lambda"),
    "algorithm.norm_adv_by_std_in_grpo": Alias(
        "algorithm.advantage", "group_standardize divides by the deviation, group_center does not"
    ),
    "algorithm.use_kl_in_reward": Alias("algorithm.kl.placement", "token_reward"),
    "algorithm.kl_penalty": Alias("algorithm.kl.estimator", "low_var_kl is k3, kl is k1, mse is k2"),
    "algorithm.kl_ctrl.type": Alias("algorithm.kl.controller"),
    "algorithm.kl_ctrl.kl_coef": Alias("algorithm.kl.coefficient"),
    "algorithm.kl_ctrl.target_kl": Alias("algorithm.kl.controller.ziegler.target"),
    "algorithm.kl_ctrl.horizon": Alias("algorithm.kl.controller.ziegler.horizon"),
    "algorithm.filter_groups.enable": Alias("algorithm.filters", "mixed_outcomes"),
    "algorithm.filter_groups.max_num_gen_batches": Alias("rollout.max_attempts"),
    "critic.optim.lr": Alias("critic.optimizer.learning_rate"),
    "critic.model.path": Alias("critic.path"),
    "critic.cliprange_value": Alias("algorithm.critic.clip"),
    "custom_reward_function.path": Alias("reward", "file.py:function"),
    "reward_model.reward_kwargs.overlong_buffer_cfg": Alias("algorithm.shapers.soft_overlong"),
    "trainer.critic_warmup": Alias("critic.warmup_steps"),
    "trainer.total_epochs": Alias("training.epochs"),
    "trainer.total_training_steps": Alias("training.steps"),
    "trainer.save_freq": Alias("run.save_every"),
    "trainer.test_freq": Alias("evaluation.every"),
    "trainer.logger": Alias("run.trackers"),
    "trainer.project_name": Alias("run.trackers", "{wandb: {project: NAME}}"),
    "trainer.default_local_dir": Alias("run.output"),
    "trainer.resume_mode": Alias("--resume", "resume=True from Python"),
}
"""Keys of ppo_trainer.yaml."""

SB3: Mapping[str, Alias] = {
    "total_timesteps": Alias(None, classical="--steps"),
    "n_envs": Alias(None, classical="environments"),
    "n_steps": Alias(None, classical="rollout_steps"),
    "batch_size": Alias(None, classical="minibatch_size"),
    "n_epochs": Alias("training.passes", classical="epochs"),
    "gamma": Alias("algorithm.advantage.gae.gamma", classical="discount"),
    "gae_lambda": Alias("algorithm.advantage.gae.gae_lambda", classical="smoothing"),
    "clip_range": Alias("algorithm.gate.clip.low", "and algorithm.gate.clip.high", "clip"),
    "clip_range_vf": Alias("algorithm.critic.clip", classical="value_clip"),
    "normalize_advantage": Alias("algorithm.advantage.whitened", classical="normalize_advantages"),
    "ent_coef": Alias("algorithm.entropy.coefficient", classical="entropy_coefficient"),
    "vf_coef": Alias("algorithm.critic.coefficient", classical="value_coefficient"),
    "target_kl": Alias("training.target_kl", classical="target_kl"),
    "policy_kwargs": Alias(None, classical="hidden"),
    "net_arch": Alias(None, classical="hidden"),
    "buffer_size": Alias(None, classical="capacity"),
    "train_freq": Alias(None, classical="train_every"),
    "gradient_steps": Alias(None, classical="updates"),
    "target_update_interval": Alias(None, classical="target_every"),
    "tau": Alias(None, classical="mix"),
    "exploration_fraction": Alias(None, classical="epsilon_share"),
    "exploration_initial_eps": Alias(None, classical="epsilon_start"),
    "exploration_final_eps": Alias(None, classical="epsilon_end"),
    "cg_max_steps": Alias(None, classical="cg_iterations"),
    "cg_damping": Alias(None, classical="damping"),
    "line_search_shrinking_factor": Alias(None, classical="shrink"),
    "line_search_max_iter": Alias(None, classical="backtracks"),
    "n_critic_updates": Alias(None, classical="critic_epochs"),
    "tensorboard_log": Alias("run.trackers", classical="--tensorboard"),
    "verbose": Alias("--quiet", "quiet=True from Python", "--quiet"),
}
"""Arguments of the constructors of PPO, A2C, DQN and TRPO, and of `learn`."""

ALIASES: Mapping[str, Mapping[str, Alias]] = {"TRL": TRL, "verl": VERL, "Stable-Baselines3": SB3}
"""By library."""


def aliases_of(key: str, *, classical: bool = False) -> tuple[str, ...]:
    """The options of other libraries that lead to one of our keys.

    Args:
        classical: of `reinlm classical` instead of the verbs of language models.
    """
    options = ((name, one) for table in ALIASES.values() for name, one in table.items())
    return tuple(dict.fromkeys(name for name, one in options if (one.classical if classical else one.ours) == key))


def alias_hint(
    path: Sequence[str], value: Any = None, *, known: Collection[str] | None = None, classical: bool = False
) -> str | None:
    """A hint with our name for an option of another library; None for a key that is in no table.

    Example:
        >>> alias_hint(["rollout", "num_generations"])
        "TRL's num_generations is rollout.group_size"

    Args:
        path: the parts of the key as given.
        value: the value given to it; of a mapping the inner keys are looked up.
        known: sections, and keys as SECTION.KEY, that the hint may name; a section without listed keys allows all of its
            keys. None: everything.
        classical: give the name of `reinlm classical`.
    """
    for library, name, alias in _matches(list(_leaves(tuple(path), value))):
        ours = alias.classical if classical else alias.ours
        if ours is None and alias.note and not classical:
            return f"{library}'s {name}: {alias.note}"
        if ours is not None and (known is None or _may_be_named(ours, known)):
            note = f"; {alias.note}" if alias.note and not classical else ""
            return f"{library}'s {name} is {ours}{note}"
    return None


def _may_be_named(ours: str, known: Collection[str]) -> bool:
    section, _, rest = ours.partition(".")
    inside = [name for name in known if name.startswith(f"{section}.")]
    here = not rest or not inside or f"{section}.{rest.partition('.')[0]}" in inside
    return ours.startswith("--") or (section in known and here)


def _leaves(path: tuple[str, ...], value: Any) -> Iterator[tuple[str, ...]]:
    yield path
    if isinstance(value, Mapping):
        for key, inner in value.items():
            yield from _leaves((*path, str(key)), inner)


def _matches(paths: Sequence[tuple[str, ...]]) -> Iterator[tuple[str, str, Alias]]:
    """Options whose name is one of the paths, then those whose last part is that of the first path."""
    options = [(library, name, alias) for library, table in ALIASES.items() for name, alias in table.items()]
    for path in paths:
        yield from (option for option in options if option[1] == ".".join(path))
    yield from (option for option in options if option[1].split(".")[-1] == paths[0][-1])
