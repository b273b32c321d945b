"""Figures that a paper printed of the experiments on context, to stand beside those of a model."""

from collections.abc import Mapping
from dataclasses import dataclass


@dataclass(frozen=True)
class PublishedValues:
    """Printed figures on one text; `same` if it is the text that they are compared on."""

    corpus: str
    same: bool
    values: tuple[float, ...]

    @property
    def where(self) -> str:
        """The text in words: `ptb`, or `ptb, another text`."""
        return self.corpus if self.same else f"{self.corpus}, another text"


@dataclass(frozen=True)
class Published:
    """Published figures of the experiments, by corpus and name, to compare a model's own with: percent of perplexity,
    tokens, or percent of the tokens."""

    cited: str
    model: str
    """Description of the model."""
    figures: Mapping[str, Mapping[str, float]]

    def beside(self, corpus: str, *names: str) -> PublishedValues | None:
        """Return the figures of these names, on `corpus` if it has all, else on the first text that does, else None."""
        for text in (corpus, *self.figures):
            printed = self.figures.get(text, {})
            if all(name in printed for name in names):
                return PublishedValues(text, text == corpus, tuple(printed[name] for name in names))
        return None
