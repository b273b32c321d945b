"""Overlap of splits, measured by hashes of all their windows, and the check that validation and test differ."""

import json
from pathlib import Path

import numpy as np

from backstory.data.dataset import Dataset, unknown_tokens
from backstory.storage import disk_cache
from backstory.storage.atomic import write_atomically
from backstory.utils.errors import UserError
from backstory.utils.scores import SplitOverlap
from backstory.utils.small_file import read_small

FORMAT = 2
"""Version of the measurement; overlaps stored by other versions are not used."""
WINDOW, LETTERS = 50, 250
"""Tokens of a window, and of a window of characters or bytes, which holds about as many words."""
AT_ONCE = 1 << 20
"""Windows of the other text that are hashed at once."""
PAIRS = (("valid", "train"), ("test", "train"), ("test", "valid"))
_ODD, _MIX = 0x9E3779B97F4A7C15, 0xBF58476D1CE4E5B9


def overlaps(dataset: Dataset) -> list[SplitOverlap] | None:
    """Return the overlap of the held-out splits with those before them, from the cache if it was measured before.

    None for a synthetic corpus, and for a single text.
    """
    if dataset.source is not None or "train" not in dataset.splits:
        return None

    def measure(folder: Path) -> None:
        records = [vars(overlap(dataset, dataset.splits[a].ids, a, b)) for a, b in PAIRS]
        write_atomically(folder / "overlap.json", json.dumps(records))

    entry = disk_cache.fetch(f"overlap-{FORMAT}-{dataset.fingerprint[:32]}", measure)
    return [SplitOverlap(**one) for one in json.loads(read_small(entry / "overlap.json", inside=entry))]


def overlap(dataset: Dataset, ids: np.ndarray, name: str, split: str) -> SplitOverlap:
    """Return how much of a text, given by its ids (tokens,) in the vocabulary of a corpus, stands in a split of it."""
    usual = LETTERS if dataset.vocabulary.tokenizer.unit in ("character", "byte") else WINDOW
    window = min(usual, len(ids))
    share = shared(ids, dataset.splits[split].ids, window, dataset.vocabulary.unknown)
    return SplitOverlap(name, split, window, share)


def check_splits_differ(dataset: Dataset, allow_equal: bool) -> None:
    """Raise UserError if validation and test are the same text, unless that is allowed."""
    if allow_equal or dataset.source is not None or not {"valid", "test"} <= dataset.splits.keys():
        return
    valid, test = dataset.splits["valid"], dataset.splits["test"]
    # Texts that are half `<unk>` may have the same ids and be different.
    known = 2 * (unknown_tokens(dataset.vocabulary, valid) or 0) < len(valid.ids)
    if known and valid.characters == test.characters and np.array_equal(valid.ids, test.ids):
        raise UserError(
            f"validation and test of {dataset.corpus} are the same text, so test figures would be on text that the model was "
            "chosen on; give another test text, or use --allow-equal-splits"
        )


def shared(ids: np.ndarray, other: np.ndarray, window: int, unknown: int | None = None) -> float:
    """Return the share of all windows of a text (tokens,) that another text (tokens,) contains too.

    Windows that are more than half `unknown` look alike, and count as not contained.
    """
    if len(ids) < window or len(other) < window:
        return 0.0
    ours = _hashes(ids, window)
    windows = len(ours)
    if unknown is not None:
        count = np.concatenate([[0], np.cumsum(ids == unknown)])
        ours = ours[2 * (count[window:] - count[:-window]) <= window]
    if not len(ours):
        return 0.0
    hashes, counts = np.unique(ours, return_counts=True)
    # Most windows of the other text are ruled out by a table of the first bits of the hashes.
    bits = min(26, max(16, int(16 * len(hashes)).bit_length()))
    shift, table = np.uint64(64 - bits), np.zeros(1 << bits, bool)
    table[hashes >> shift] = True
    contained = np.zeros(len(hashes), bool)
    for first in range(0, len(other) - window + 1, AT_ONCE):
        theirs = _hashes(other[first : first + AT_ONCE + window - 1], window)
        theirs = theirs[table[theirs >> shift]]
        candidates = np.minimum(np.searchsorted(hashes, theirs), len(hashes) - 1)
        contained[candidates[hashes[candidates] == theirs]] = True
    return float(counts[contained].sum() / windows)


def _hashes(ids: np.ndarray, window: int) -> np.ndarray:
    """Return the polynomial hash (uint64, modulo 2^64) of every window of a text (tokens,) that has at least one."""
    values = (ids.astype(np.uint64) + np.uint64(1)) * np.uint64(_ODD)
    values = (values ^ (values >> np.uint64(29))) * np.uint64(_MIX)
    values ^= values >> np.uint64(32)
    # Hashes of windows of 1, 2, 4, ... tokens; those in the binary form of `window` follow each other.
    hashes, start, size = np.zeros(len(ids) - window + 1, np.uint64), 0, 1
    while True:
        power = np.uint64(pow(_ODD, size, 1 << 64))
        if window & size:
            hashes = hashes * power + values[start : start + len(hashes)]
            start += size
        if 2 * size > window:
            return hashes
        values, size = values[:-size] * power + values[size:], 2 * size
