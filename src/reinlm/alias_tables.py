"""The tables of option names of TRL, verl and Stable-Baselines3: data, read through `reinlm.aliases`.

Complete for the options of TRL 1.16 (GRPOConfig, SFTConfig, what they inherit from transformers' TrainingArguments,
ModelConfig, and the arguments of the trainers), for the keys of verl 0.9's ppo_trainer.yaml and for the arguments of PPO, A2C
and DQN (Stable-Baselines3 2.9) and TRPO (sb3-contrib); earlier names beside them. A name that ends in `.*` means all keys below.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import NamedTuple


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


_CLIP = {"*": "algorithm.gate.clip={}"}

WRITE: Mapping[str, Mapping[str, str]] = {
    "clip": _CLIP,
    "clip_range": _CLIP,
    "cliprange": _CLIP,
    "epsilon": _CLIP,
    "bf16": {"true": "training.autocast=bfloat16"},
    "fp16": {"true": "model.dtype=float16"},
    "loss_type": {
        name: f"--algorithm {name} (from Python algorithm={name!r})"
        for name in ("grpo", "dr_grpo", "dapo", "cispo", "sapo")
    },
    "optim": dict.fromkeys(("adamw_torch", "adamw_torch_fused", "adamw_hf"), "optimizer.name=adamw"),
    "packing": {"true": "training.packing=pack"},
    "padding_free": {"true": "training.packing=pack"},
    "use_peft": {"true": "model.lora.rank=16"},
    "use_cpu": {"true": "model.device=cpu"},
    "reward.weight": {"*": "reward.functions.NAME.weight={}"},
    "reward_weight": {"*": "reward.functions.NAME.weight={}"},
    "scale_rewards": {
        "true": "algorithm.advantage=group_standardize",
        "group": "algorithm.advantage=group_standardize",
        "false": "algorithm.advantage=group_center",
        "none": "algorithm.advantage=group_center",
    },
}
"""Option of another library -> its value in lower case, or * for any -> what to write here, with {} for the value."""

_MEMORY = "results do not depend on it: tokens that are in memory at once"
_ALWAYS = "there is no such option"


def _none(names: str, why: str) -> Iterable[tuple[str, Alias]]:
    """Options without a counterpart, for one reason."""
    return ((name, Alias(None, why)) for name in names.split())


_CLIPS = "algorithm: cispo, gspo, sapo and others are algorithms with a gate of their own"
_ENGINE = "no vLLM or SGLang engine comes with the library; rollout.engine names one of your own"
_ONE_PROCESS = "a run is one process on one device"
_HUB = "nothing is uploaded: checkpoints are Hugging Face directories that `hf upload` takes"
_LOADER = "data are read and tokenised once, before the first step"
_VERSIONS = "a run's precision is training.autocast and model.dtype"

TRL: Mapping[str, Alias] = {
    "model_name_or_path": Alias("model.path"),
    "torch_dtype": Alias("model.dtype"),
    "attn_implementation": Alias("model.attention"),
    "peft_config": Alias("model.lora"),
    "lora_r": Alias("model.lora.rank"),
    "r": Alias("model.lora.rank"),
    "lora_alpha": Alias("model.lora.alpha"),
    "lora_dropout": Alias("model.lora.dropout"),
    "lora_target_modules": Alias("model.lora.target_modules"),
    "gradient_checkpointing": Alias("model.gradient_checkpointing"),
    "bf16": Alias("training.autocast", "float32 weights compute in bfloat16 on CUDA by default"),
    "train_dataset": Alias("data.path"),
    "dataset_name": Alias("data.path"),
    "dataset_text_field": Alias("data.columns"),
    "eval_dataset": Alias("evaluation.data"),
    "callbacks": Alias(None, "callbacks=[…] of reinlm.rl and reinlm.sft, from Python"),
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
    "loss_type": Alias(
        "algorithm.aggregation", "sequence_mean is grpo's, token_mean dapo's, constant_budget dr_grpo's"
    ),
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
    "model": Alias("model.path"),
    "args": Alias(None, "options are sections here: optimizer={...}, rollout={...}, or recipe=FILE.yaml"),
    "processing_class": Alias(
        "model.path", "the tokenizer comes with the model; from Python a pair (model, tokenizer)"
    ),
    "ref_model": Alias("reference.path"),
    "tools": Alias("environment", "tools belong to an environment of several turns"),
    "rollout_func": Alias("environment", "an environment plays the episode; rollout.engine samples"),
    "environment_factory": Alias("environment"),
    "dtype": Alias("model.dtype"),
    "model_revision": Alias("model.revision"),
    "use_peft": Alias("model.lora"),
    "use_cpu": Alias("model.device", "cpu"),
    "trust_remote_code": Alias("model.trust_remote_code"),
    "model_init_kwargs": Alias("model.dtype", "the keys of `model`: dtype, attention, device, revision"),
    "chat_template_kwargs": Alias("data.chat_template_kwargs"),
    "optim_args": Alias("optimizer.options"),
    "lr_scheduler_kwargs": Alias("optimizer.final_fraction", "what is left of the rate at the end"),
    "activation_checkpointing": Alias("model.gradient_checkpointing"),
    "fp16": Alias("model.dtype", "float16, of the weights"),
    "per_device_eval_batch_size": Alias("rollout.max_running", "answers sampled at once; no result depends on it"),
    "num_generations_eval": Alias("evaluation.samples"),
    "eval_on_start": Alias("evaluation.data", "every evaluation set is scored at the start and the end"),
    "save_strategy": Alias("run.save_every", "a number of steps"),
    "project": Alias("run.trackers.wandb.project"),
    "run_name": Alias("run.trackers.wandb.name"),
    "trackio_space_id": Alias("run.trackers.trackio.space_id"),
    "hub_revision": Alias("model.revision"),
    "data_seed": Alias("seed"),
    "seed": Alias("seed"),
    "disable_tqdm": Alias("--quiet", "quiet=True from Python"),
    "num_completions_to_print": Alias("run.rollouts_max"),
    "load_best_model_at_end": Alias("evaluation.patience", "checkpoints/best is kept in any case, beside `last`"),
    "metric_for_best_model": Alias(
        "evaluation.stop_at", "the best checkpoint has the highest accuracy of the first set, or the lowest loss"
    ),
    "entropy_coef": Alias("algorithm.entropy.coefficient"),
    "use_adaptive_entropy": Alias("algorithm.entropy.target"),
    "entropy_target": Alias("algorithm.entropy.target"),
    "entropy_coef_min": Alias("algorithm.entropy.low"),
    "entropy_coef_max": Alias("algorithm.entropy.high"),
    "entropy_coef_delta": Alias("algorithm.entropy.step"),
    "sapo_temperature_pos": Alias("algorithm.gate.soft.positive"),
    "sapo_temperature_neg": Alias("algorithm.gate.soft.negative"),
    "multi_objective_aggregation": Alias("algorithm.advantage", "gdpo normalises each reward by itself"),
    "off_policy_mask_threshold": Alias("algorithm.sequence_mask.threshold"),
    "use_bias_correction_kl": Alias("algorithm.kl.estimator", "k3_unbiased"),
    "vllm_importance_sampling_mode": Alias(
        "algorithm.corrections", "truncated or masked, with level token or sequence"
    ),
    "vllm_importance_sampling_clip_max": Alias("algorithm.corrections.truncated.cap", "high of masked"),
    "vllm_importance_sampling_clip_min": Alias("algorithm.corrections.truncated.floor", "low of masked"),
    "max_tool_calling_iterations": Alias("rollout.max_turns"),
    "padding_free": Alias("training.packing", "pack"),
    "dataset_config": Alias("data.subset"),
    "dataset_split": Alias("data.split"),
    "do_eval": Alias("evaluation.data", "without it nothing is evaluated"),
    **dict(
        _none(
            "eos_token pad_token chat_template_path", "tokens and templates are the tokenizer's: change it and save it"
        )
    ),
    **dict(_none("loss_type_kwargs vespo_k_pos vespo_lambda_pos vespo_k_neg vespo_lambda_neg", _CLIPS)),
    **dict(
        _none(
            "top_entropy_quantile",
            "every token is trained on; algorithm.selection treats tokens of high covariance apart",
        )
    ),
    **dict(
        _none(
            "min_p repetition_penalty generation_kwargs cache_implementation",
            "samples to train on are drawn from the whole distribution",
        )
    ),
    **dict(
        _none(
            "vllm_mode vllm_model_impl vllm_enable_sleep_mode vllm_structured_outputs_regex vllm_server_base_url "
            "vllm_server_host vllm_server_port vllm_server_timeout vllm_group_port vllm_gpu_memory_utilization "
            "vllm_max_model_length "
            "vllm_tensor_parallel_size use_transformers_continuous_batching transformers_continuous_batching_config "
            "use_transformers_paged",
            _ENGINE,
        )
    ),
    **dict(
        _none(
            "ds3_gather_for_generation deepspeed fsdp fsdp_config accelerator_config parallelism_config local_rank "
            "ddp_find_unused_parameters ddp_bucket_cap_mb ddp_broadcast_buffers ddp_static_graph ddp_backend ddp_timeout "
            "average_tokens_across_devices save_on_each_node log_on_each_node",
            _ONE_PROCESS,
        )
    ),
    **dict(
        _none(
            "push_to_hub hub_token hub_private_repo hub_model_id hub_strategy hub_always_push log_completions_hub_repo "
            "trackio_bucket_id trackio_static_space_id",
            _HUB,
        )
    ),
    **dict(
        _none(
            "dataset_num_proc dataset_kwargs dataloader_drop_last dataloader_num_workers dataloader_pin_memory "
            "dataloader_persistent_workers dataloader_prefetch_factor dataloader_multiprocessing_context dataloader_in_order "
            "data_collator pad_to_multiple_of label_names length_column_name train_sampling_strategy formatting_func "
            "include_for_metrics batch_eval_metrics eval_do_concat_batches eval_use_gather_object eval_accumulation_steps "
            "prediction_loss_only ignore_data_skip",
            _LOADER,
        )
    ),
    **dict(_none("shuffle_dataset", "data are shuffled by `seed`, anew in every pass")),
    **dict(_none("truncation_mode", "nothing is cut: data.on_long_prompt stops or skips")),
    **dict(_none("packing_strategy eval_packing", "training.packing=pack lays whole sequences side by side")),
    **dict(_none("assistant_only_loss", f"{_ALWAYS}: of messages the assistant's are trained on, always")),
    **dict(_none("tf32 bf16_full_eval fp16_full_eval cast_lm_head_to_fp32", _VERSIONS)),
    **dict(
        _none(
            "use_liger_kernel liger_kernel_config torch_compile torch_compile_backend torch_compile_mode activation_offloading "
            "torch_empty_cache_steps auto_find_batch_size enable_jit_checkpoint use_cache",
            "memory is bounded by training.micro_batch_tokens and training.logprob_chunk",
        )
    ),
    **dict(
        _none(
            "gradient_checkpointing_kwargs activation_checkpointing_kwargs",
            "model.gradient_checkpointing has no options",
        )
    ),
    **dict(
        _none(
            "logging_strategy logging_first_step logging_nan_inf_filter log_level log_level_replica",
            f"{_ALWAYS}: every step is logged",
        )
    ),
    **dict(
        _none(
            "include_num_input_tokens_seen log_multimodal log_unique_prompts skip_memory_metrics debug compute_metrics "
            "preprocess_logits_for_metrics",
            "metrics.jsonl holds what is measured; a callback logs more",
        )
    ),
    **dict(
        _none("eval_delay greater_is_better", "evaluation.every says when; accuracy counts upwards, loss downwards")
    ),
    **dict(
        _none(
            "save_only_model restore_callback_states_from_checkpoint",
            "a checkpoint holds everything, so that a run can resume",
        )
    ),
    **dict(_none("full_determinism", "runs repeat bit for bit on the CPU: see rollout.order")),
    **dict(
        _none(
            "label_smoothing_factor neftune_noise_alpha router_aux_loss_coef compute_loss_func",
            "no such term; algorithm.terms takes your own",
        )
    ),
    **dict(
        _none(
            "optimizers optimizer_cls_and_kwargs optim_target_modules",
            'an optimizer of your own is a part: part("optimizer", NAME)',
        )
    ),
    **dict(
        _none(
            "load_in_8bit load_in_4bit bnb_4bit_quant_type use_bnb_nested_quant bnb_4bit_quant_storage quantization_config",
            "no quantised training; from Python give a loaded model",
        )
    ),
    **dict(
        _none(
            "lora_target_parameters lora_modules_to_save lora_task_type use_rslora use_dora",
            "model.lora has rank, alpha, dropout and target_modules",
        )
    ),
    **dict(_none("reward_processing_classes", "a reward function loads its own models")),
    **dict(_none("do_train do_predict", "the verb says it: `reinlm rl` trains, `reinlm eval` scores")),
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
        "algorithm.aggregation",
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
    "actor_rollout_ref.actor.optim.optimizer": Alias("optimizer.name"),
    "actor_rollout_ref.actor.optim.betas": Alias("optimizer.betas"),
    "actor_rollout_ref.actor.optim.clip_grad": Alias("optimizer.max_grad_norm"),
    "actor_rollout_ref.actor.optim.min_lr_ratio": Alias("optimizer.final_fraction"),
    "actor_rollout_ref.actor.optim.lr_scheduler_type": Alias("optimizer.schedule"),
    "actor_rollout_ref.actor.optim.total_training_steps": Alias("training.steps"),
    "actor_rollout_ref.actor.optim.override_optimizer_config": Alias("optimizer.options"),
    "actor_rollout_ref.actor.policy_loss.clip_cov_ratio": Alias("algorithm.selection.clip_cov.fraction"),
    "actor_rollout_ref.actor.policy_loss.clip_cov_lb": Alias("algorithm.selection.clip_cov.low"),
    "actor_rollout_ref.actor.policy_loss.clip_cov_ub": Alias("algorithm.selection.clip_cov.high"),
    "actor_rollout_ref.actor.policy_loss.kl_cov_ratio": Alias("algorithm.selection.kl_cov.fraction"),
    "actor_rollout_ref.actor.policy_loss.ppo_kl_coef": Alias("algorithm.selection.kl_cov.coefficient"),
    "actor_rollout_ref.actor.tau_pos": Alias("algorithm.gate.soft.positive"),
    "actor_rollout_ref.actor.tau_neg": Alias("algorithm.gate.soft.negative"),
    "actor_rollout_ref.actor.loss_scale_factor": Alias("algorithm.aggregation.constant_budget.length"),
    "actor_rollout_ref.actor.ppo_micro_batch_size": Alias("training.micro_batch_tokens", "counts tokens"),
    "actor_rollout_ref.actor.entropy_from_logits_chunk_size": Alias("training.logprob_chunk"),
    "actor_rollout_ref.actor.entropy_from_logits_with_chunking": Alias("training.logprob_chunk"),
    "actor_rollout_ref.actor.use_remove_padding": Alias("training.packing", "pack"),
    "actor_rollout_ref.actor.data_loader_seed": Alias("seed"),
    "actor_rollout_ref.ref.model.path": Alias("reference.path"),
    "actor_rollout_ref.rollout.seed": Alias("seed"),
    "actor_rollout_ref.rollout.response_length": Alias("rollout.max_new_tokens"),
    "actor_rollout_ref.rollout.top_k": Alias(
        "evaluation.top_k", "samples to train on are drawn from the whole distribution"
    ),
    "actor_rollout_ref.rollout.top_p": Alias(
        "evaluation.top_p", "samples to train on are drawn from the whole distribution"
    ),
    "actor_rollout_ref.rollout.do_sample": Alias("rollout.temperature", "evaluation.temperature=0 is greedy"),
    "actor_rollout_ref.rollout.max_num_seqs": Alias("rollout.max_running"),
    "actor_rollout_ref.rollout.val_kwargs.top_k": Alias("evaluation.top_k"),
    "actor_rollout_ref.rollout.val_kwargs.top_p": Alias("evaluation.top_p"),
    "actor_rollout_ref.rollout.val_kwargs.do_sample": Alias("evaluation.temperature", "0 is greedy"),
    "actor_rollout_ref.rollout.multi_turn.max_user_turns": Alias("rollout.max_turns"),
    "actor_rollout_ref.rollout.multi_turn.tool_config_path": Alias(
        "environment", "tools belong to an environment of several turns"
    ),
    "actor_rollout_ref.rollout.multi_turn.function_tool_path": Alias(
        "environment", "tools belong to an environment of several turns"
    ),
    "actor_rollout_ref.rollout.agent.default_agent_loop": Alias("environment"),
    "actor_rollout_ref.model.trust_remote_code": Alias("model.trust_remote_code"),
    "actor_rollout_ref.model.target_modules": Alias("model.lora.target_modules"),
    "actor_rollout_ref.model.lora.rank": Alias("model.lora.rank"),
    "actor_rollout_ref.model.lora.alpha": Alias("model.lora.alpha"),
    "actor_rollout_ref.model.lora.dropout": Alias("model.lora.dropout"),
    "actor_rollout_ref.model.lora.target_modules": Alias("model.lora.target_modules"),
    "data.train_max_samples": Alias("data.limit"),
    "data.val_max_samples": Alias("evaluation.data.eval.limit"),
    "data.seed": Alias("seed"),
    "data.truncation": Alias("data.on_long_prompt", "nothing is cut"),
    "data.trust_remote_code": Alias("model.trust_remote_code"),
    "data.apply_chat_template_kwargs": Alias("data.chat_template_kwargs"),
    "data.tool_config_path": Alias("environment"),
    "data.function_tool_path": Alias("environment"),
    "data.gen_batch_size": Alias("rollout.max_attempts", "a batch is filled from that many times its groups"),
    "data.tokenizer": Alias("model.path", "the tokenizer comes with the model"),
    "custom_reward_function.name": Alias("reward", "file.py:function"),
    "reward.custom_reward_function.path": Alias("reward", "file.py:function"),
    "reward.custom_reward_function.name": Alias("reward", "file.py:function"),
    "reward.num_workers": Alias("reward.workers"),
    "reward_model.num_workers": Alias("reward.workers"),
    "reward_model.reward_manager": Alias("reward", "file.py:function"),
    "reward.reward_manager.name": Alias("reward", "file.py:function"),
    "algorithm.filter_groups.metric": Alias("algorithm.filters.mixed_outcomes.reward"),
    "algorithm.rollout_correction.rollout_is": Alias(
        "algorithm.corrections", "truncated, with level token or sequence"
    ),
    "algorithm.rollout_correction.rollout_is_threshold": Alias("algorithm.corrections.truncated.cap"),
    "algorithm.rollout_correction.rollout_rs": Alias("algorithm.corrections", "masked, geometric or k3_filter"),
    "algorithm.rollout_correction.rollout_rs_threshold": Alias("algorithm.corrections.masked.high"),
    "algorithm.rollout_correction.rollout_is_batch_normalize": Alias("algorithm.corrections", "self_normalized"),
    "critic.optim.weight_decay": Alias("critic.optimizer.weight_decay"),
    "critic.optim.betas": Alias("critic.optimizer.betas"),
    "critic.optim.lr_warmup_steps": Alias("critic.optimizer.warmup_steps"),
    "critic.optim.lr_warmup_steps_ratio": Alias("critic.optimizer.warmup_steps", "in updates"),
    "critic.optim.lr_scheduler_type": Alias("critic.optimizer.schedule"),
    "critic.optim.min_lr_ratio": Alias("critic.optimizer.final_fraction"),
    "critic.optim.clip_grad": Alias("critic.optimizer.max_grad_norm"),
    "critic.optim.optimizer": Alias("critic.optimizer.name"),
    "critic.grad_clip": Alias("critic.optimizer.max_grad_norm"),
    "critic.enable": Alias("algorithm", "an algorithm with a critic, such as ppo"),
    "critic.ppo_epochs": Alias("training.passes"),
    "critic.ppo_mini_batch_size": Alias("training.minibatches", "how many, not how large"),
    "critic.ppo_micro_batch_size_per_gpu": Alias("training.micro_batch_tokens", "counts tokens"),
    "critic.ppo_micro_batch_size": Alias("training.micro_batch_tokens", "counts tokens"),
    "critic.ppo_max_token_len_per_gpu": Alias("training.micro_batch_tokens"),
    "trainer.experiment_name": Alias("run.trackers.wandb.name"),
    "trainer.resume_from_path": Alias("--resume", "with --output FOLDER"),
    "trainer.max_actor_ckpt_to_keep": Alias("run.keep_last"),
    "trainer.max_critic_ckpt_to_keep": Alias("run.keep_last"),
    "trainer.device": Alias("model.device"),
    "trainer.rollout_data_dir": Alias("run.rollouts_every", "answers are in rollouts/ of the run folder"),
    "trainer.log_val_generations": Alias("evaluation.data", "samples.json holds answers of the first set"),
    "distillation.enabled": Alias("algorithm", "distill, with teacher.path"),
    "distillation.teacher_models.teacher_model.model_path": Alias("teacher.path"),
    "data.shuffle": Alias(None, "data are shuffled by `seed`, anew in every pass"),
    "data.*": Alias(None, "data are read and tokenised once, before the first step"),
    "actor_rollout_ref.actor.optim.*": Alias(
        None, "optimizer has learning_rate, schedule, warmup_steps, final_fraction, betas, epsilon and weight_decay"
    ),
    "actor_rollout_ref.actor.*": Alias(
        None,
        "memory is bounded by training.micro_batch_tokens and training.logprob_chunk; a run is one process on one device",
    ),
    "actor_rollout_ref.ref.*": Alias(None, "the reference is scored in the batches of training.micro_batch_tokens"),
    "actor_rollout_ref.rollout.multi_turn.*": Alias(None, "an environment says what its turns hold"),
    "actor_rollout_ref.rollout.*": Alias(
        None, "no vLLM or SGLang engine comes with the library; rollout.engine names one of your own"
    ),
    "actor_rollout_ref.model.*": Alias(
        None, "model has path, dtype, device, attention, lora, gradient_checkpointing, trust_remote_code and revision"
    ),
    "actor_rollout_ref.*": Alias(None, "a run is one process on one device"),
    "critic.*": Alias(None, "critic has backbone, path, warmup_steps and optimizer"),
    "reward_model.*": Alias(None, "a reward function loads its own model"),
    "reward.*": Alias(None, "reward has functions, time_limit, call, on_reward_error and workers"),
    "sandbox_fusion.*": Alias(None, "reward functions run in processes of their own"),
    "algorithm.rollout_correction.*": Alias(
        None, "algorithm.corrections has truncated, masked, geometric, k3_filter and self_normalized"
    ),
    "algorithm.pf_ppo.*": Alias(None, "no such algorithm"),
    "algorithm.use_pf_ppo": Alias(None, "no such algorithm"),
    "algorithm.filter_groups.*": Alias(None, "rollout.max_attempts bounds the sampling of dropped groups"),
    "distillation.*": Alias(None, "algorithm=distill has teacher.path"),
    "trainer.val_before_train": Alias(None, "every evaluation set is scored at the start and the end"),
    "trainer.val_only": Alias(None, "`reinlm eval` scores a model"),
    "trainer.balance_batch": Alias(None, "micro-batches are always made by tokens"),
    "trainer.*": Alias(None, "a run is one process on one device"),
    "model_engine": Alias(None, "a run is one process on one device"),
    "transfer_queue.*": Alias(None, "a run is one process on one device"),
    "skip.*": Alias(None, "a run is one process on one device"),
    "ray_kwargs.*": Alias(None, "a run is one process on one device"),
    "global_profiler.*": Alias(None, "metrics.jsonl has the seconds of each phase (time/…)"),
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
    "policy": Alias(None, "the networks are layers of `hidden` units", "hidden"),
    "env": Alias("environment", classical="--env"),
    "learning_rate": Alias("optimizer.learning_rate", classical="learning_rate"),
    "max_grad_norm": Alias("optimizer.max_grad_norm", classical="max_grad_norm"),
    "learning_starts": Alias(None, classical="learning_starts"),
    "seed": Alias("seed", classical="--seed"),
    "progress_bar": Alias("--quiet", "quiet=True from Python", "--quiet"),
    **dict(_none("callback", "callbacks=[…] of reinlm.rl and reinlm.sft; a classical agent has learn(log=…)")),
    **dict(_none("use_rms_prop rms_prop_eps", "A2C has RMSprop with ε = 1e-5, the others Adam")),
    **dict(_none("use_sde sde_sample_freq", "actions are drawn from the policy's own distribution at every step")),
    **dict(
        _none(
            "rollout_buffer_class rollout_buffer_kwargs replay_buffer_class replay_buffer_kwargs optimize_memory_usage",
            "the buffers are the library's own; capacity and max_bytes bound that of dqn",
        )
    ),
    **dict(_none("stats_window_size log_interval tb_log_name", "about a hundred lines of metrics are logged in a run")),
    **dict(_none("reset_num_timesteps", "a second learn() goes on from the steps made")),
    **dict(_none("sub_sampling_factor", "every step of a batch counts")),
    **dict(_none("device", "classical agents learn on the CPU; for language models it is model.device")),
    **dict(_none("_init_setup_model", "an agent is built when it is made")),
}
"""Arguments of the constructors of PPO, A2C, DQN and TRPO, and of `learn`."""

OTHER: Mapping[str, Alias] = {
    "config": Alias(None, "options are sections here: optimizer={...}, rollout={...}, or recipe=FILE.yaml"),
    "tokenizer": Alias("model.path", "the tokenizer comes with the model; from Python a pair (model, tokenizer)"),
    "model_name": Alias("model.path"),
    "model_id": Alias("model.path"),
    "lr": Alias("optimizer.learning_rate"),
    "max_new_tokens": Alias("rollout.max_new_tokens"),
    "max_tokens": Alias("rollout.max_new_tokens", "of an answer; of an example of sft it is max_tokens"),
    "dataset": Alias("data.path"),
    "eval_data": Alias("evaluation.data"),
    "reward_fn": Alias("reward"),
    "reward_function": Alias("reward"),
    "rewards": Alias("reward"),
    "algo": Alias("algorithm"),
    "clip": Alias("algorithm.gate.clip.low", "and algorithm.gate.clip.high"),
    "kl": Alias("algorithm.kl"),
    **dict.fromkeys(
        ("reward.weights", "reward.weight", "reward_weight"),
        Alias("reward.functions", "each reward has its own weight: {name: NAME, weight: 0.5}"),
    ),
    **dict.fromkeys(("max_retries", "num_retries"), Alias("reward.retries")),
    "timeout": Alias("reward.time_limit"),
    "rollout.timeout": Alias("rollout.episode_time_limit"),
    **dict.fromkeys(("on_error", "on_failure"), Alias("reward.on_reward_error")),
}
"""Names that are common without being those of one library."""

ALIASES: Mapping[str, Mapping[str, Alias]] = {"TRL": TRL, "verl": VERL, "Stable-Baselines3": SB3, "": OTHER}
"""By library; under "" what belongs to none."""
