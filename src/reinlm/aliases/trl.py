"""TRL's option names, complete for version 1.16.

GRPOConfig, SFTConfig, what they inherit from transformers' TrainingArguments, ModelConfig, and the arguments of the trainers;
earlier names beside them. A name that ends in `.*` means all keys below.
"""

from __future__ import annotations

from collections.abc import Mapping

from reinlm.aliases.alias import ALWAYS, MEMORY, Alias, none_of

_CLIPS = "algorithm: cispo, gspo, sapo and others are algorithms with a gate of their own"
_SERVER = "options of vLLM's server stand after two dashes: `reinlm vllm-serve MODEL -- --tensor-parallel-size 2`"
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
    "shuffle_dataset": Alias("data.shuffle"),
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
    "use_vllm": Alias("rollout.engine", "vllm, or vllm_server"),
    "vllm_mode": Alias("rollout.engine", "colocate is vllm, server is vllm_server"),
    "vllm_gpu_memory_utilization": Alias("rollout.engine.vllm.gpu_memory_utilization"),
    "vllm_enable_sleep_mode": Alias("rollout.engine.vllm.enable_sleep_mode"),
    "vllm_server_base_url": Alias("rollout.engine.vllm_server.url"),
    "vllm_server_timeout": Alias("rollout.engine.vllm_server.startup_timeout"),
    "vllm_server_host": Alias("rollout.engine.vllm_server.url", "http://HOST:PORT", same_value=False),
    "vllm_server_port": Alias("rollout.engine.vllm_server.url", "http://HOST:PORT", same_value=False),
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
    "missing_eos_penalty": Alias("algorithm.shapers.missing_end.penalty", "of online dpo pairs.missing_end_penalty"),
    "vllm_importance_sampling_cap": Alias("algorithm.corrections.truncated.cap"),
    "vllm_importance_sampling_correction": Alias("algorithm.corrections"),
    "num_iterations": Alias("training.passes"),
    "num_ppo_epochs": Alias("training.passes"),
    "num_mini_batches": Alias("training.minibatches"),
    "steps_per_generation": Alias(
        "training.minibatches", "counts updates of a batch, not micro-batches", same_value=False
    ),
    "per_device_train_batch_size": Alias(
        "training.micro_batch_tokens",
        f"{MEMORY}; a step has rollout.batch_size answers, or training.batch_size examples",
        same_value=False,
    ),
    "gradient_accumulation_steps": Alias("training.micro_batch_tokens", MEMORY, same_value=False),
    "sync_ref_model": Alias("training.reference_refresh"),
    "ref_model_sync_steps": Alias("training.reference_refresh.every"),
    "ref_model_mixup_alpha": Alias("training.reference_refresh.mix"),
    "packing": Alias("training.packing"),
    "max_length": Alias("max_tokens", "of an example of sft; longer ones are errors or skipped, never cut"),
    "max_seq_length": Alias("max_tokens", "of an example of sft; longer ones are errors or skipped, never cut"),
    "completion_only_loss": Alias(None, f"{ALWAYS}: prompt+completion trains on completions, text on everything"),
    "num_train_epochs": Alias("training.epochs"),
    "max_steps": Alias("training.steps"),
    "learning_rate": Alias("optimizer.learning_rate", classical="learning_rate"),
    "optim": Alias("optimizer.name"),
    "lr_scheduler_type": Alias("optimizer.schedule"),
    "warmup_steps": Alias("optimizer.warmup_steps"),
    "warmup_ratio": Alias("optimizer.warmup_steps", "in updates", same_value=False),
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
    "logging_steps": Alias(None, f"{ALWAYS}: every step is logged"),
    "resume_from_checkpoint": Alias("--resume", "resume=True from Python"),
    "disable_dropout": Alias(None, f"{ALWAYS}: reinforcement learning has no dropout"),
    "remove_unused_columns": Alias(None, f"{ALWAYS}: every column reaches the reward functions by name"),
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
        none_of(
            "eos_token pad_token chat_template_path", "tokens and templates are the tokenizer's: change it and save it"
        )
    ),
    **dict(none_of("loss_type_kwargs vespo_k_pos vespo_lambda_pos vespo_k_neg vespo_lambda_neg", _CLIPS)),
    **dict(
        none_of(
            "top_entropy_quantile",
            "every token is trained on; algorithm.selection treats tokens of high covariance apart",
        )
    ),
    **dict(
        none_of(
            "min_p repetition_penalty generation_kwargs cache_implementation",
            "samples to train on are drawn from the whole distribution",
        )
    ),
    **dict(
        none_of(
            "vllm_model_impl vllm_tensor_parallel_size",
            _SERVER,
        )
    ),
    "vllm_max_model_length": Alias(None, "vLLM's context is the model's"),
    "vllm_group_port": Alias(None, "weights go to the server through its address: rollout.engine.vllm_server.url"),
    **dict(none_of("vllm_structured_outputs_regex", "samples to train on are drawn from the whole distribution")),
    **dict(
        none_of(
            "use_transformers_continuous_batching transformers_continuous_batching_config use_transformers_paged",
            "the engine in_process batches continuously by itself",
        )
    ),
    **dict(
        none_of(
            "ds3_gather_for_generation deepspeed fsdp fsdp_config accelerator_config parallelism_config local_rank "
            "ddp_find_unused_parameters ddp_bucket_cap_mb ddp_broadcast_buffers ddp_static_graph ddp_backend ddp_timeout "
            "average_tokens_across_devices save_on_each_node log_on_each_node",
            _ONE_PROCESS,
        )
    ),
    **dict(
        none_of(
            "push_to_hub hub_token hub_private_repo hub_model_id hub_strategy hub_always_push log_completions_hub_repo "
            "trackio_bucket_id trackio_static_space_id",
            _HUB,
        )
    ),
    **dict(
        none_of(
            "dataset_num_proc dataset_kwargs dataloader_drop_last dataloader_num_workers dataloader_pin_memory "
            "dataloader_persistent_workers dataloader_prefetch_factor dataloader_multiprocessing_context dataloader_in_order "
            "data_collator pad_to_multiple_of label_names length_column_name train_sampling_strategy formatting_func "
            "include_for_metrics batch_eval_metrics eval_do_concat_batches eval_use_gather_object eval_accumulation_steps "
            "prediction_loss_only ignore_data_skip",
            _LOADER,
        )
    ),
    **dict(none_of("truncation_mode", "nothing is cut: data.on_long_prompt stops or skips")),
    **dict(none_of("packing_strategy eval_packing", "training.packing=pack lays whole sequences side by side")),
    **dict(none_of("assistant_only_loss", f"{ALWAYS}: of messages the assistant's are trained on, always")),
    **dict(none_of("tf32 bf16_full_eval fp16_full_eval cast_lm_head_to_fp32", _VERSIONS)),
    **dict(
        none_of(
            "use_liger_kernel liger_kernel_config torch_compile torch_compile_backend torch_compile_mode activation_offloading "
            "torch_empty_cache_steps auto_find_batch_size enable_jit_checkpoint use_cache",
            "memory is bounded by training.micro_batch_tokens and training.logprob_chunk",
        )
    ),
    **dict(
        none_of(
            "gradient_checkpointing_kwargs activation_checkpointing_kwargs",
            "model.gradient_checkpointing has no options",
        )
    ),
    **dict(
        none_of(
            "logging_strategy logging_first_step logging_nan_inf_filter log_level log_level_replica",
            f"{ALWAYS}: every step is logged",
        )
    ),
    **dict(
        none_of(
            "include_num_input_tokens_seen log_multimodal log_unique_prompts skip_memory_metrics debug compute_metrics "
            "preprocess_logits_for_metrics",
            "metrics.jsonl holds what is measured; a callback logs more",
        )
    ),
    **dict(
        none_of("eval_delay greater_is_better", "evaluation.every says when; accuracy counts upwards, loss downwards")
    ),
    **dict(
        none_of(
            "save_only_model restore_callback_states_from_checkpoint",
            "a checkpoint holds everything, so that a run can resume",
        )
    ),
    **dict(none_of("full_determinism", "runs repeat bit for bit on the CPU: see rollout.order")),
    **dict(
        none_of(
            "label_smoothing_factor neftune_noise_alpha router_aux_loss_coef compute_loss_func",
            "no such term; algorithm.terms takes your own",
        )
    ),
    **dict(
        none_of(
            "optimizers optimizer_cls_and_kwargs optim_target_modules",
            'an optimizer of your own is a part: part("optimizer", NAME)',
        )
    ),
    **dict(
        none_of(
            "load_in_8bit load_in_4bit bnb_4bit_quant_type use_bnb_nested_quant bnb_4bit_quant_storage quantization_config",
            "no quantised training; from Python give a loaded model",
        )
    ),
    **dict(
        none_of(
            "lora_target_parameters lora_modules_to_save lora_task_type use_rslora use_dora",
            "model.lora has rank, alpha, dropout and target_modules",
        )
    ),
    **dict(none_of("reward_processing_classes", "a reward function loads its own models")),
    **dict(none_of("do_train do_predict", "the verb says it: `reinlm rl` trains, `reinlm eval` scores")),
}
"""Options of GRPOConfig, PPOConfig, SFTConfig and ModelConfig, and arguments of their trainers."""
