"""The arguments of Stable-Baselines3 2.9's PPO, A2C and DQN, and of sb3-contrib's TRPO."""

from __future__ import annotations

from collections.abc import Mapping

from reinlm.aliases.alias import Alias, none_of

SB3: Mapping[str, Alias] = {
    "total_timesteps": Alias("training.steps", "a step is a batch of answers", "--steps"),
    "n_envs": Alias(None, classical="environments"),
    "n_steps": Alias(None, "an answer is an episode, and a step has rollout.batch_size of them", "rollout_steps"),
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
    "policy_kwargs": Alias(None, "a language model has its shape already", "hidden"),
    "eval_freq": Alias("evaluation.every", classical="eval_freq"),
    "n_eval_episodes": Alias("evaluation.data", "each of its prompts is answered", "n_eval_episodes"),
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
    **dict(none_of("callback", "callbacks=[…] of reinlm.rl and reinlm.sft; a classical agent has learn(log=…)")),
    **dict(none_of("use_rms_prop rms_prop_eps", "A2C has RMSprop with ε = 1e-5, the others Adam")),
    **dict(none_of("use_sde sde_sample_freq", "actions are drawn from the policy's own distribution at every step")),
    **dict(
        none_of(
            "rollout_buffer_class rollout_buffer_kwargs replay_buffer_class replay_buffer_kwargs optimize_memory_usage",
            "the buffers are the library's own; capacity and max_bytes bound that of dqn",
        )
    ),
    **dict(
        none_of("stats_window_size log_interval tb_log_name", "about a hundred lines of metrics are logged in a run")
    ),
    **dict(none_of("reset_num_timesteps", "a second learn() goes on from the steps made")),
    **dict(none_of("sub_sampling_factor", "every step of a batch counts")),
    **dict(none_of("device", "classical agents learn on the CPU; for language models it is model.device")),
    **dict(none_of("_init_setup_model", "an agent is built when it is made")),
}
"""Arguments of the constructors of PPO, A2C, DQN and TRPO, and of `learn`."""
