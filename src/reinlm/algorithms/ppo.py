"""PPO: the clipped update, with a critic as the baseline."""

from reinlm.algorithms.ladder import named
from reinlm.composition import Algorithm, Updates
from reinlm.objectives import GAE, KL, Clip, Critic, TokenRatio, Whitened, token_mean


@named(
    parent="reinforce",
    source="PPO, arXiv 1707.06347; for language models arXiv 1909.08593",
    published="2017-07",
    equation="J = 1/N Σ_t min( r_t Â_t, clip(r_t, 1-ε, 1+ε) Â_t ),   Â_t = Σ_k (γλ)^k δ_{t+k}",
    formula=r"J(\theta) = \frac{1}{N} \sum_t \min\big(r_t \hat A_t,\ \mathrm{clip}(r_t, 1-\varepsilon,"
    r" 1+\varepsilon)\, \hat A_t\big),"
    r" \qquad \hat A_t = \sum_k (\gamma\lambda)^k \delta_{t+k}",
    use="Rewards along the way, few answers a prompt, or credit assignment within an answer: the critic gives each "
    "token its own baseline.",
    fails="An untrained critic is a noisy baseline: warm it up and watch explained_variance. It costs a second model.",
)
def ppo() -> Algorithm:
    """REINFORCE against a critic: generalised advantages, clipped ratios, several updates a batch.

    γ = 1 and λ = 0.95, clip 0.2 for policy and values, advantages whitened over the batch, and 0.05 · (log π_old - log π_ref)
    subtracted from the reward of every token. The reward scores a truncated answer as it is, so nothing is bootstrapped.
    Four passes over a batch, as in the code of arXiv 1909.08593.
    """
    return Algorithm(
        name="ppo",
        advantage=Whitened(GAE(gamma=1.0, gae_lambda=0.95, bootstrap_truncated=False)),
        ratio=TokenRatio(),
        gate=Clip(0.2, 0.2),
        kl=KL(estimator="k1", coefficient=0.05, placement="token_reward"),
        aggregation=token_mean,
        critic=Critic(clip=0.2, coefficient=0.5),
        updates=Updates(passes=4, minibatches=1),
    )
