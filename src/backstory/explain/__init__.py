"""What a model makes of a passage, word by word: explanations, each a few layers of the reports' text view."""

from backstory.explain.explanations import EXPLANATIONS, Explanation, check_explanation
from backstory.explain.laboratory import Place, explain_run

__all__ = ["EXPLANATIONS", "Explanation", "Place", "check_explanation", "explain_run"]
