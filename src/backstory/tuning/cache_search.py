"""Choose a neural cache's settings: one reading with the inner reader scores every window, theta, weight and confidence."""

import itertools
import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field

import numpy as np
import torch
from torch import Tensor

from backstory.config import UserError, validate
from backstory.config.readers import CacheSettings
from backstory.evaluation.reading_loop import read
from backstory.models import Prediction
from backstory.readers.base import Reader
from backstory.readers.blocks import Block
from backstory.readers.cache_memory import Pairs
from backstory.readers.neural_cache import head_input, in_window


@dataclass(frozen=True)
class CacheGrid:
    """The values that are tried, each with each other."""

    windows: tuple[int, ...] = (100, 200, 500, 1000, 2000, 5000, 10000)
    """Those beyond the text's length are left out: they see no more than the first of them."""
    thetas: tuple[float, ...] = (0.1, 0.3, 0.5, 0.7, 1.0, 1.5, 2.0, 3.0)
    weights: tuple[float, ...] = (0.02, 0.05, 0.1, 0.15, 0.2, 0.3, 0.5)
    confidences: tuple[float, ...] = (0.0,)


@dataclass(frozen=True)
class Tried:
    """Settings and the mean negative log-probability per token that a reading with them has."""

    window: int
    theta: float
    weight: float
    confidence: float
    nats: float

    @property
    def settings(self) -> CacheSettings:
        return CacheSettings(self.window, self.theta, self.weight, self.confidence)


@dataclass(frozen=True)
class Tuned:
    """What tuning found."""

    inner_nats: float
    """Of the inner reader alone, per token."""
    tokens: int
    tried: tuple[Tried, ...]
    """All that was tried, in the order of the grid."""

    @property
    def best(self) -> Tried:
        """The one with the least nats; of equals, the first."""
        return min(self.tried, key=lambda tried: tried.nats)


@dataclass
class _Scores:
    """What mixing needs of one window and theta at every token, block by block."""

    log_prob: list[Tensor] = field(default_factory=list)
    """The cache's log-probability of the target."""
    confidence: list[Tensor] = field(default_factory=list)


def tune_cache(
    inner: Reader,
    ids: np.ndarray,
    first: int,
    grid: CacheGrid | None = None,
    progress: Callable[[int, int], None] | None = None,
) -> Tuned:
    """Read a stream of ids (N,) once, in one row, with the inner reader, and try every cache of the grid on top of it.

    The products of states are computed once for all of the grid, so that it takes about as long as one reading with the
    largest window and one more pass over its products for each theta. `first` is fed before the first token; `progress` is
    told (tokens read, tokens in all). Raises UserError for a grid that is empty or out of range.
    """
    grid = grid or CacheGrid()
    _check(grid)
    windows = _useful(grid.windows, len(ids))
    pairs, inner_scores, done = Pairs(windows[-1]), [], 0
    scores = {(window, theta): _Scores() for window in windows for theta in grid.thetas}

    def each(block: Block, prediction: Prediction, log_prob: Tensor) -> None:
        nonlocal done
        hidden = head_input(prediction)
        products, words = in_window(hidden, *pairs.offer(hidden, block.tokens), windows[-1])
        pairs.keep(block.targets)
        inner_scores.append(log_prob[0].double().cpu())
        matches = words[0] == block.targets[0, :, None]
        missing = products[0] == -torch.inf
        for theta in grid.thetas:
            at_theta = (products[0] * theta).masked_fill_(missing, -torch.inf)  # not nan where theta is 0
            for window, found in zip(windows, _by_window(at_theta, matches, windows), strict=True):
                scores[window, theta].log_prob.append(found[0].double().cpu())
                scores[window, theta].confidence.append(found[1].double().cpu())
        done += block.targets.shape[1]
        if progress is not None:
            progress(done, len(ids))

    reading = read(inner, ids, first, each=each)
    plain = torch.cat(inner_scores)
    tried = []
    for window, theta in itertools.product(windows, grid.thetas):
        log_prob, confidence = (torch.cat(values) for values in vars(scores[window, theta]).values())
        for weight, least in itertools.product(grid.weights, grid.confidences):
            tried.append(Tried(window, theta, weight, least, _mixed(plain, log_prob, confidence, weight, least)))
    return Tuned(reading.nats, reading.tokens, tuple(tried))


def _check(grid: CacheGrid) -> None:
    if not all(vars(grid).values()):
        raise UserError("the grid is empty; give it a window, a theta, a weight and a confidence")
    for settings in itertools.product(*vars(grid).values()):
        validate(CacheSettings(*settings), "the grid")


def _useful(windows: tuple[int, ...], tokens: int) -> list[int]:
    """The windows in rising order, up to the first that holds the whole text."""
    ordered = sorted(set(windows))
    longest = next((i for i, window in enumerate(ordered) if window >= tokens), len(ordered))
    return ordered[: longest + 1]


def _by_window(scores: Tensor, matches: Tensor, windows: list[int]) -> Iterator[tuple[Tensor, Tensor]]:
    """For each window, the log-probability of the target and the mass of the likeliest pair, each (T,).

    Scores (T, N), the oldest pair first; matches (T, N): the pair's word is the target. Each window adds the pairs between
    the next smaller one and itself.
    """
    steps, width = scores.shape
    nothing = scores.new_full((steps,), -torch.inf)
    total, gold, largest, inside = nothing, nothing, nothing, 0
    gold_scores = scores.masked_fill(~matches, -torch.inf)
    for window in windows:
        ring = slice(max(0, width - window), max(0, width - inside))
        if ring.start < ring.stop:
            total = torch.logaddexp(total, scores[:, ring].logsumexp(1))
            gold = torch.logaddexp(gold, gold_scores[:, ring].logsumexp(1))
            largest = torch.maximum(largest, scores[:, ring].amax(1))
        inside = window
        empty = total == -torch.inf
        yield (gold - total).masked_fill(empty, -torch.inf), (largest - total).exp().masked_fill(empty, 0.0)


def _mixed(inner: Tensor, cache: Tensor, confidence: Tensor, weight: float, least: float) -> float:
    """Mean nats of the mixture; the cache is shut off where it is empty or not confident."""
    heard = (confidence > 0) & (confidence >= least)
    log_weight = math.log(weight) if weight else -math.inf
    mixture = torch.logaddexp(inner + math.log1p(-weight), cache + log_weight)
    return -torch.where(heard, mixture, inner).mean().item()
