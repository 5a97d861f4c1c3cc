"""Dr. GRPO: GRPO without its two biases."""

from reinlm.algorithms.ladder import named
from reinlm.composition import Algorithm, Updates
from reinlm.objectives import Clip, ConstantBudget, GroupCenter, TokenRatio


@named(
    parent="grpo",
    source="Understanding R1-Zero-like training, arXiv 2503.20783",
    published="2025-03-26",
    equation="J = 1/(B L_max) Σ_i Σ_t min( r A_i, clip(r, 1-ε, 1+ε) A_i ),   A_i = R_i - mean of the group",
    formula=r"J(\theta) = \frac{1}{B\, L_{max}} \sum_i \sum_t \min\big(r_{i,t} A_i,\ \mathrm{clip}(r_{i,t},"
    r" 1-\varepsilon, 1+\varepsilon) A_i\big),"
    r" \qquad A_i = R_i - \mathrm{mean}_g(R)",
    use="Answers that grow longer without growing better under GRPO.",
    fails="The loss scales with the budget: set constant_budget to the longest answer allowed, or the learning rate "
    "means something else. Long answers weigh more than under a sequence mean.",
)
def dr_grpo() -> Algorithm:
    """GRPO with the plain difference from the group's mean, tokens summed over a constant budget, and no KL.

    The budget is 3000 tokens, the limit of the paper's runs; 8 answers a prompt, and 8 updates of 128 answers a batch, as in
    its code.
    """
    return Algorithm(
        name="dr_grpo",
        advantage=GroupCenter(),
        ratio=TokenRatio(),
        gate=Clip(0.2, 0.2),
        kl=None,
        aggregation=ConstantBudget(3000),
        updates=Updates(passes=1, minibatches=8),
    )
