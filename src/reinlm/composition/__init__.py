"""`Algorithm` and the choices that it is composed of: parsing from recipes, checks, filters, shapers, metrics."""

from reinlm.composition import metrics as metrics  # importing the composition declares its metrics
from reinlm.composition.algorithm import Algorithm, AlgorithmState, Objective
from reinlm.composition.choices import algorithm_spec, compose, merge_changes, spell_changes, updates_in
from reinlm.composition.composition import Updates
from reinlm.composition.filters import GroupFilter, MixedOutcomes, with_first_reward
from reinlm.composition.shapers import MissingEnd, Shaper, SoftOverlong, shaped
from reinlm.renamed import renamed

__all__ = [
    "Algorithm",
    "AlgorithmState",
    "GroupFilter",
    "MissingEnd",
    "MixedOutcomes",
    "Objective",
    "Shaper",
    "SoftOverlong",
    "Updates",
    "algorithm_spec",
    "compose",
    "merge_changes",
    "shaped",
    "spell_changes",
    "updates_in",
    "with_first_reward",
]

renamed(__name__, {"describe": "reinlm.composition:algorithm_spec"})
