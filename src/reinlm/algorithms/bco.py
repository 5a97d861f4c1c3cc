"""BCO: a binary classifier of good and bad answers."""

from reinlm.algorithms.preference import preference
from reinlm.composition.preference import PreferenceAlgorithm
from reinlm.objectives import BCO


@preference(
    parent="kto",
    source="BCO, arXiv 2404.04656",
    published="2024-04-06",
    equation="L = - log σ( βa - δ ) if desirable, - log σ( δ - βa ) if not,   δ = ½ ( E⁺[βa] + E⁻[βa] )",
    formula=r"L(\theta) = -\log\sigma\big(\pm(\beta a - \delta)\big), \qquad \delta ="
    r" \tfrac12\big(\mathbb{E}^+[\beta a] + \mathbb{E}^-[\beta a]\big)",
    use="Thumbs up and down, where KTO's baseline is too noisy.",
    fails="δ follows the run so far, so it lags behind a policy that moves fast.",
)
def bco() -> PreferenceAlgorithm:
    """Logistic regression of the label on the log-ratio, about a running midpoint.

    β = 0.01. δ is the midpoint of the mean rewards of both classes over all steps so far, a constant.
    """
    return PreferenceAlgorithm(name="bco", loss=BCO(beta=0.01))
