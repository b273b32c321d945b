"""What a model makes of a passage, word by word: explanations, each a few layers of the reports' text view."""

from backstory.explanations.cases import CASES
from backstory.explanations.compare import Detail, Stretch, compare_readers
from backstory.explanations.explainers import EXPLANATIONS, Explanation, check_explanation
from backstory.explanations.explaining import Place, explain_run

__all__ = [
    "CASES",
    "EXPLANATIONS",
    "Detail",
    "Explanation",
    "Place",
    "Stretch",
    "check_explanation",
    "compare_readers",
    "explain_run",
]
