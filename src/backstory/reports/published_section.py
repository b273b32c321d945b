"""What a paper printed of the experiments on context, to stand beside a model's own figures; a report is given it."""

from collections.abc import Mapping
from dataclasses import dataclass


@dataclass(frozen=True)
class Beside:
    """Figures of one text: whose name, and whether it is the text that they are set beside."""

    corpus: str
    same: bool
    values: tuple[float, ...]

    @property
    def where(self) -> str:
        """The text in words: `ptb`, or `ptb, another text`."""
        return self.corpus if self.same else f"{self.corpus}, another text"


@dataclass(frozen=True)
class Published:
    """Printed figures by corpus and by name: percent of perplexity, tokens, or percent of the tokens."""

    cited: str
    model: str
    """The model they are of, in words."""
    figures: Mapping[str, Mapping[str, float]]

    def beside(self, corpus: str, *names: str) -> Beside | None:
        """The figures of these names: those of `corpus` if it has them all, else of the first text that has; None without."""
        for text in (corpus, *self.figures):
            found = self.figures.get(text, {})
            if all(name in found for name in names):
                return Beside(text, text == corpus, tuple(found[name] for name in names))
        return None
