"""PPO-penalty: a divergence from the old policy in place of the clip."""

from reinlm.algorithms.ladder import named
from reinlm.composition import Algorithm, Updates
from reinlm.objectives import GAE, KL, Critic, NoGate, SchulmanRule, TokenRatio, Whitened, token_mean


@named(
    parent="ppo",
    source="PPO, arXiv 1707.06347 §4",
    published="2017-07-20",
    equation="J = 1/N Σ_t r_t Â_t - β KL[π_old ‖ π_θ];   β ← β/2 where KL < target/1.5, 2β where KL > 1.5 target",
    formula=r"J(\theta) = \frac{1}{N} \sum_t r_t \hat A_t - \beta\, \mathrm{KL}[\pi_{old} \,\|\, \pi_\theta], \qquad"
    r" \beta \leftarrow \begin{cases} \beta / 2 & d < d_{targ} / 1.5 \\ 2\beta & d > 1.5\, d_{targ} \end{cases}",
    use="Where the size of an update is to be set in nats. The coefficient adapts; kl/old_coefficient shows it.",
    fails="The coefficient moves once a batch, so a learning rate far too high overshoots the target for some "
    "batches: watch kl/old.",
)
def ppo_penalty() -> Algorithm:
    """PPO without a clip: a penalty of β times the divergence from the old policy, where β follows Schulman's rule.

    The paper's targets are 0.003 to 0.03 nats (a token, here); measured by k3 on the batch after its last update.
    """
    return Algorithm(
        name="ppo_penalty",
        advantage=Whitened(GAE(gamma=1.0, gae_lambda=0.95, bootstrap_truncated=False)),
        ratio=TokenRatio(),
        gate=NoGate(),
        kl=(
            KL(estimator="k1", coefficient=0.05, placement="token_reward"),
            KL(estimator="k3", coefficient=1.0, anchor="old", controller=SchulmanRule(target=0.01)),
        ),
        aggregation=token_mean,
        critic=Critic(clip=0.2, coefficient=0.5),
        updates=Updates(passes=4, minibatches=1),
    )
