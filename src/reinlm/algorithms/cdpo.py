"""cDPO: DPO where a share of the labels is wrong."""

from reinlm.algorithms.preference import preference
from reinlm.composition.preference import PreferenceAlgorithm
from reinlm.objectives import ConservativeDPO


@preference(
    parent="dpo",
    source="cDPO, E. Mitchell, A note on DPO with noisy preferences (2023)",
    published="2023-11-25",
    equation="L = - (1-ε) log σ( β h ) - ε log σ( -β h )",
    formula=r"L(\theta) = -(1-\varepsilon)\log\sigma(\beta h) - \varepsilon\log\sigma(-\beta h)",
    use="Judgements of which a known share is wrong: the difference has a finite target, β h = log((1-ε)/ε).",
    fails="An ε above the true share of wrong labels keeps the margins too small: watch rewards/margins.",
)
def cdpo() -> PreferenceAlgorithm:
    """DPO with smoothed labels.

    β = 0.1, ε = 0.1.
    """
    return PreferenceAlgorithm(name="cdpo", loss=ConservativeDPO(beta=0.1, label_smoothing=0.1))
