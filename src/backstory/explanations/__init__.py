"""Explanations of a model's predictions on a passage, word by word; each gives layers of the reports' text view."""

from backstory.explanations.attention import CASES
from backstory.explanations.compare import compare_readers
from backstory.explanations.explained_text import Explanation, PassageTask
from backstory.explanations.explaining import EXPLANATIONS, Explainer, explain_passage

__all__ = ["CASES", "EXPLANATIONS", "Explainer", "Explanation", "PassageTask", "compare_readers", "explain_passage"]
