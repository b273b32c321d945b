"""The audit of a reader: causal, a full distribution, scored before it learns, one pass; tested on the real object."""

from collections.abc import Callable
from dataclasses import asdict, dataclass, field
from typing import Any

import numpy as np
import torch
from torch import Tensor

from backstory.models import Prediction
from backstory.reading.reader import Reader
from backstory.reading.stream import Block

CHECKS = ("causal", "distribution", "scored_before_update", "one_pass")
PROBES = 4
"""Positions of a block whose whole distribution is looked at."""


@dataclass
class AuditReport:
    """What the audit found."""

    places: int = 0
    checks: dict[str, bool] = field(default_factory=lambda: dict.fromkeys(CHECKS, True))
    failures: list[str] = field(default_factory=list)

    @property
    def passed(self) -> bool:
        return self.places > 0 and all(self.checks.values())

    def as_dict(self) -> dict[str, Any]:
        """As results record it."""
        return {"passed": self.passed, **asdict(self)}


class Audit:
    """Audits the reader at random blocks of a stream that is being read, on forks of it.

    Give it to `read` as the observer; `places` of the stream's `total_blocks` blocks are looked at. The stream's own
    reader is never restored.
    """

    def __init__(self, total_blocks: int, places: int = 8, seed: int = 0) -> None:
        self._random = np.random.default_rng(seed)
        self._chosen = set(self._random.choice(total_blocks, min(places, total_blocks), replace=False).tolist())
        self._next_block = 0
        self.report = AuditReport()

    def before(self, reader: Reader, block: Block) -> None:
        """Audit this block if it is one of the chosen."""
        if block.index != self._next_block:
            self._fail("one_pass", f"block {block.index} was read when block {self._next_block} was due")
        self._next_block = block.index + 1
        if block.index not in self._chosen:
            return
        self.report.places += 1
        snapshot, copy = reader.snapshot(), reader.fork()

        def fresh() -> Reader:
            copy.restore(snapshot)
            return copy

        time = int(self._random.integers(block.tokens.shape[1]))
        for check in (self._causal, self._distribution, self._scored_before_update, self._blocks):
            check(fresh, block, time)

    def _fail(self, check: str, message: str) -> None:
        self.report.checks[check] = False
        if message not in self.report.failures:
            self.report.failures.append(message)

    def _other(self, ids: Tensor, types: int) -> Tensor:
        """Every id replaced by a different one."""
        step = torch.from_numpy(self._random.integers(1, max(2, types), tuple(ids.shape))).to(ids.device)
        return (ids + step) % types

    def _look(self, prediction: Prediction, block: Block, end: int) -> tuple[Tensor, Tensor]:
        """Log-probabilities of the targets before `end`, and whole distributions at a few of those positions."""
        times = torch.linspace(0, end - 1, min(PROBES, end), device=block.tokens.device).long()
        rows = torch.arange(len(times), device=times.device) % block.tokens.shape[0]
        return prediction.log_prob(block.targets)[:, :end], prediction.select(rows, times).log_probs()

    def _causal(self, fresh: Callable[[], Reader], block: Block, time: int) -> None:
        """Tokens after `time`, in any row, must not change a bit of the predictions up to it."""
        types = fresh().model.vocabulary_size
        plain = self._look(fresh().predict(block.tokens), block, time + 1)
        again = self._look(fresh().predict(block.tokens), block, time + 1)
        if not _equal(plain, again):
            self._fail("one_pass", "restoring a snapshot does not bring the same predictions back")
        changed = block.tokens.clone()
        changed[:, time + 1 :] = self._other(changed[:, time + 1 :], types)
        if not _equal(plain, self._look(fresh().predict(changed), block, time + 1)):
            self._fail("causal", "predictions depend on later tokens of the block")
        if block.tokens.shape[0] > 1:
            changed = block.tokens.clone()
            changed[1:] = self._other(changed[1:], types)
            if not torch.equal(plain[0][0], fresh().predict(changed).log_prob(block.targets)[0, : time + 1]):
                self._fail("causal", "a row's predictions depend on the other rows of the batch")

    def _distribution(self, fresh: Callable[[], Reader], block: Block, time: int) -> None:
        """All V probabilities at the probed positions sum to one, and `log_prob` quotes them, for target and others alike."""
        prediction = fresh().predict(block.tokens)
        tolerance = _tolerance(fresh())
        row = int(self._random.integers(block.tokens.shape[0]))
        words = torch.from_numpy(self._random.integers(0, fresh().model.vocabulary_size, 64)).to(block.tokens.device)
        words[0] = block.targets[row, time]
        rows, times = torch.full_like(words, row), torch.full_like(words, time)
        table = prediction.select(rows[:1], times[:1]).log_probs().double()[0, 0]
        if not torch.isfinite(table.exp()).all() or abs(table.exp().sum().item() - 1) > 1e-4:
            self._fail("distribution", f"probabilities sum to {table.exp().sum().item():.6g}, not 1")
        quoted = prediction.select(rows, times).log_prob(words[:, None])[:, 0].double()
        scored = prediction.log_prob(block.targets)[row, time].double()
        if not _close(quoted.exp(), table[words].exp(), tolerance) or not _close(scored.exp(), table[words[0]].exp(), tolerance):
            self._fail("distribution", "the scored probability is not the one in the distribution that sums to one")

    def _scored_before_update(self, fresh: Callable[[], Reader], block: Block, time: int) -> None:
        """Wrong targets from `time` on, scored and observed, must not change the scores before it."""
        types = fresh().model.vocabulary_size
        reader = fresh()
        plain = reader.predict(block.tokens).log_prob(block.targets)
        wrong = block.targets.clone()
        wrong[:, time:] = self._other(wrong[:, time:], types)
        reader = fresh()
        prediction = reader.predict(block.tokens)
        if not torch.equal(plain[:, :time], prediction.log_prob(wrong)[:, :time]):
            self._fail("scored_before_update", "scores depend on targets that come later")
        if not torch.equal(plain, prediction.log_prob(block.targets)):
            self._fail("scored_before_update", "scoring changes the prediction: it learned from the targets it was to score")
        reader.observe(wrong)
        if not torch.equal(plain, fresh().predict(block.tokens).log_prob(block.targets)):
            self._fail("scored_before_update", "what was observed reaches back behind a snapshot")

    def _blocks(self, fresh: Callable[[], Reader], block: Block, time: int) -> None:
        """The block read in two pieces scores as it does whole, if the reader says so."""
        if not fresh().capabilities.block_invariant or not 0 < time < block.tokens.shape[1]:
            return
        whole = fresh().predict(block.tokens).log_prob(block.targets)
        reader, pieces = fresh(), []
        for part in (slice(None, time), slice(time, None)):
            pieces.append(reader.predict(block.tokens[:, part]).log_prob(block.targets[:, part]))
            reader.observe(block.targets[:, part])
        if not _close(torch.cat(pieces, 1).exp(), whole.exp(), _tolerance(fresh())):
            self._fail("one_pass", "scores depend on how the text is cut into blocks, which this reader denies")


def _tolerance(reader: Reader) -> float:
    """How far the same probability may differ between two ways of computing it, relatively."""
    return 1e-3 if reader.precision.dtype in (torch.float32, torch.float64) else 0.05


def _equal(a: tuple[Tensor, Tensor], b: tuple[Tensor, Tensor]) -> bool:
    return torch.equal(a[0], b[0]) and torch.equal(a[1], b[1])


def _close(a: Tensor, b: Tensor, tolerance: float) -> bool:
    """Probabilities within the tolerance, relative or absolute."""
    return bool(torch.isclose(a, b, rtol=tolerance, atol=1e-9).all())

