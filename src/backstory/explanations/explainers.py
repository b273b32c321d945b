"""The explanations by name: most read a passage and fill layers of the text view."""

from collections.abc import Callable
from dataclasses import dataclass

from backstory.config import check_name
from backstory.evaluation.opening import EvalSetup
from backstory.explanations.buffer import buffer, check_buffer
from backstory.explanations.cache_attention import cache
from backstory.explanations.explanation import Explained, Progress, Subject
from backstory.explanations.memory_reads import check_memory, memory
from backstory.explanations.surprisal import surprisal


@dataclass(frozen=True)
class Explanation:
    """An explanation by what it shows and the function that makes it."""

    description: str
    run: Callable[[Subject, Progress], Explained] | None
    """Of a passage; None for the one that goes over a whole stretch of text (`compare_readers`)."""
    needs: str = ""
    """A reader that it is made with: it goes around the one that is asked for."""
    check: Callable[[EvalSetup], None] = lambda opened: None
    """Raises UserError for a run or a reader that it cannot be made of."""


def check_explanation(name: str) -> None:
    """Raise UserError unless there is an explanation of that name."""
    check_name(name, EXPLANATIONS, "explanation", "backstory ls explanations")


EXPLANATIONS = {
    "surprisal": Explanation("how surprising each word is, what was expected instead, and who expects more", surprisal),
    "reading": Explanation("what one reader gains on others along a sequence of articles, and where it loses", None),
    "buffer": Explanation(
        "which words before it a model's span buffer attends to, what it expects there, and whether it helps",
        buffer,
        check=check_buffer,
    ),
    "memory": Explanation(
        "which words the heads of an external memory read at each word, and how they find their slots",
        memory,
        check=check_memory,
    ),
    "cache": Explanation(
        "where a neural cache looks at each word, what it expects there, and whether it helps", cache, "cache"
    ),
}
