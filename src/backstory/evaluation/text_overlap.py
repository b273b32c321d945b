"""What a text that is read has in common with those that the model was trained and chosen on."""

from pathlib import Path

from backstory.config import UserError
from backstory.config.split_overlap import SplitOverlap
from backstory.data.overlap import check_splits_differ, overlap, overlaps
from backstory.evaluation.opening import Opened

BEFORE = ("train", "valid")
"""The splits that a model is trained on, and that its weights and the settings of its readers are chosen on."""


def overlap_of(opened: Opened, data_dir: Path | None, allow_equal: bool) -> list[SplitOverlap] | None:
    """Return how much of an opened split or text stands in the splits that the model knows.

    None where that cannot be measured: of what is drawn, of a model that was trained elsewhere, and of a text of one's own
    where the training corpus is not there. Raises UserError for a test split that is the validation split.
    """
    dataset, name = opened.dataset, opened.split.name
    if name == "test":
        check_splits_differ(dataset, allow_equal)
    if opened.run.results is None:
        return None
    if (measured := overlaps(dataset)) is not None:
        return [one for one in measured if one.split == name]
    if dataset.source is not None:
        return None
    try:
        known = opened.run.dataset(None, data_dir)
    except UserError:  # it has moved, or changed since
        return None
    return None if known.source is not None else [overlap(known, opened.split.ids, name, of) for of in BEFORE]
