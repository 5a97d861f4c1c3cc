"""REINFORCE++: PPO without its critic."""

from reinlm.algorithms.ladder import named
from reinlm.composition import Algorithm, Updates
from reinlm.objectives import KL, Clip, Returns, TokenRatio, Whitened, token_mean


@named(
    parent="ppo",
    source="REINFORCE++, arXiv 2501.03262",
    published="2025-01",
    equation="Â_t = (G_t - mean G) / std G,   G_t = R_t + G_{t+1},   R_t = [t=T] R - β log π_old/π_ref",
    formula=r"\hat A_t = \frac{G_t - \mathrm{mean}(G)}{\mathrm{std}(G)}, \qquad G_t = R_t + G_{t+1}, \qquad"
    r" R_t = 1[t = T]\, R - \beta \log\frac{\pi_{old}(y_t)}{\pi_{ref}(y_t)}",
    use="Single answers to many prompts: the baseline is the batch, so a group may have one answer.",
    fails="One baseline for easy and hard prompts alike: all answers to an easy prompt get positive advantages. With groups of "
    "answers the whitened group mean is better: advantage={whitened: group_center}, with the KL in the loss.",
)
def reinforce_pp() -> Algorithm:
    """PPO with returns whitened over the batch in place of a critic, and a weaker KL in the reward.

    β = 0.001 as in the paper's later version, clip 0.2, γ = 1. Four passes as for PPO are a choice of this
    library.
    """
    return Algorithm(
        name="reinforce_pp",
        advantage=Whitened(Returns(gamma=1.0)),
        ratio=TokenRatio(),
        gate=Clip(0.2, 0.2),
        kl=KL(estimator="k1", coefficient=0.001, placement="token_reward"),
        aggregation=token_mean,
        updates=Updates(passes=4, minibatches=1),
    )
