"""The explanations by name: each reads a passage and fills layers of the text view."""

from collections.abc import Callable
from dataclasses import dataclass

from backstory.config import check_name
from backstory.explanations.cache import cache
from backstory.explanations.subject import Explained, Progress, Subject
from backstory.explanations.surprisal import surprisal


@dataclass(frozen=True)
class Explanation:
    """An explanation by what it shows and the function that makes it."""

    description: str
    run: Callable[[Subject, Progress], Explained]


def check_explanation(name: str) -> None:
    """Raise UserError unless there is an explanation of that name."""
    check_name(name, EXPLANATIONS, "explanation", "backstory ls explanations")


EXPLANATIONS = {
    "surprisal": Explanation("how surprising each word is, what was expected instead, and who expects more", surprisal),
    "cache": Explanation("where a neural cache looks at each word, what it expects there, and whether it helps", cache),
}
