"""GSPO: GRPO with one ratio a sequence."""

from reinlm.algorithms.ladder import named
from reinlm.composition import Algorithm, Updates
from reinlm.objectives import Clip, GroupStandardize, SequenceRatio, sequence_mean


@named(
    parent="grpo",
    source="GSPO, arXiv 2507.18071",
    published="2025-07-24",
    equation="J = 1/S Σ_i min( s_i A_i, clip(s_i, 1-ε_low, 1+ε_high) A_i ),   s_i = exp( 1/L_i Σ_t log π_θ/π_old )",
    formula=r"J(\theta) = \frac{1}{S} \sum_i \min\big(s_i A_i,\ \mathrm{clip}(s_i, 1-\varepsilon_{low},"
    r" 1+\varepsilon_{high}) A_i\big), \qquad"
    r" s_i = \exp\Big(\frac{1}{L_i} \sum_t \log\frac{\pi_\theta(y_{i,t})}{\pi_{old}(y_{i,t})}\Big)",
    use="Mixtures of experts, and long answers, where the ratios of single tokens are noisy: reward and ratio both "
    "refer to the whole answer.",
    fails="The clip range is for a mean over many tokens: short answers move further and most of them are clipped at "
    "3e-4. Watch clip_ratio/region_mean; 0.15 of all tokens is usual.",
)
def gspo() -> Algorithm:
    """GRPO with one ratio a sequence, the geometric mean over its tokens, a clip range to match, and no KL.

    GSPO eqs. 5 to 7, clip 3e-4 / 4e-4 and four updates a batch as in its §5.1.
    """
    return Algorithm(
        name="gspo",
        advantage=GroupStandardize(),
        ratio=SequenceRatio(),
        gate=Clip(3e-4, 4e-4),
        kl=None,
        aggregation=sequence_mean,
        updates=Updates(passes=1, minibatches=4),
    )
