"""How much of one text stands in another, and from what share on that is said."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from backstory.config.errors import plural

NOTABLE = 0.01
"""Above this share an overlap is said. The corpora in use stay below: most has Penn Treebank's validation text, with 0.7%."""


@dataclass(frozen=True)
class SplitOverlap:
    """The share of one text's passages (all stretches of `window` tokens) that another text holds too."""

    split: str
    other: str
    window: int
    share: float

    @staticmethod
    def of(figures: Mapping[str, Any]) -> "Sequence[SplitOverlap]":
        """Read them from the figures of a result; none where they were not measured."""
        records = figures.get("overlap") or []
        return [SplitOverlap(one["split"], one["in"], one["window"], one["share"]) for one in records]

    def figures(self) -> dict[str, Any]:
        """Return what a result says of it."""
        return {"split": self.split, "in": self.other, "window": self.window, "share": self.share}

    def warning(self, unit: str) -> str | None:
        """Return the sentence on an overlap that matters: `12.3% of test's passages of 50 words stand in train too`."""
        if self.share <= NOTABLE:
            return None
        owner = "the text" if self.split == "text" else self.split
        return f"{self.share:.1%} of {owner}'s passages of {self.window} {plural(unit)} stand in {self.other} too"


def overlap_warnings(figures: Mapping[str, Any]) -> list[str]:
    """Return the sentences on the overlaps that matter in a result."""
    unit = figures["unit"].removeprefix("answer ")
    return [warning for one in SplitOverlap.of(figures) if (warning := one.warning(unit))]
