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
STEPS = 16
"""Steps of a block that are audited, from its start, but for the first of the places, where all are: an audit reads what
it looks at some sixteen times, and is to cost little."""
PROBES = 4
"""Positions of a block whose whole distribution is compared bit for bit."""
POSITIONS, WORDS = 16, 5
"""Positions of a block whose distribution is summed up, and words looked up in each, the target first."""


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

    def saved(self) -> dict[str, Any]:
        """Where the audit stands, as plain values."""
        return {"random": self._random.bit_generator.state, "next": self._next_block, "report": asdict(self.report)}

    def load(self, saved: dict[str, Any]) -> None:
        """Go on from what `saved` said of an audit of the same stream, places and seed."""
        self._random.bit_generator.state = saved["random"]
        self._next_block, self.report = saved["next"], AuditReport(**saved["report"])

    def before(self, reader: Reader, block: Block) -> None:
        """Audit this block if it is one of the chosen."""
        if block.index != self._next_block:
            self._fail("one_pass", f"block {block.index} was read when block {self._next_block} was due")
        self._next_block = block.index + 1
        if block.index not in self._chosen:
            return
        self.report.places += 1
        if self.report.places > 1:
            block = Block(block.tokens[:, :STEPS], block.targets[:, :STEPS], block.scored[:, :STEPS], block.index)
        snapshot, copy = reader.snapshot(), reader.fork()

        def fresh() -> Reader:
            copy.restore(snapshot)
            return copy

        # A cut strictly inside the block, so that there are tokens on both sides of it wherever the block has two.
        cut = int(self._random.integers(1, max(2, block.tokens.shape[1])))
        with torch.no_grad():
            for check in (self._causal, self._distribution, self._scored_before_update, self._blocks):
                check(fresh, block, cut)
            self._fork_apart(reader, fresh(), block)

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

    def _causal(self, fresh: Callable[[], Reader], block: Block, cut: int) -> None:
        """Tokens from `cut` on, and those of other rows, must not change a bit of the predictions before it."""
        types = fresh().model.vocabulary_size
        plain = self._look(fresh().predict(block.tokens), block, cut)
        again = self._look(fresh().predict(block.tokens), block, cut)
        if not _equal(plain, again):
            self._fail("one_pass", "restoring a snapshot does not bring the same predictions back")
        changed = block.tokens.clone()
        changed[:, cut:] = self._other(changed[:, cut:], types)
        if not _equal(plain, self._look(fresh().predict(changed), block, cut)):
            self._fail("causal", "predictions depend on later tokens of the block")
        rows = block.tokens.shape[0]
        if rows > 1:
            # Some rows and then all the others, so that of two rows that differ here each is once the one that changes.
            some = torch.from_numpy(self._random.permutation(rows) < rows // 2).to(changed.device)
            for kept in (some, ~some):
                changed = torch.where(kept[:, None], block.tokens, self._other(block.tokens, types))
                scores = fresh().predict(changed).log_prob(block.targets)
                if not torch.equal(plain[0][kept], scores[kept, :cut]):
                    self._fail("causal", "a row's predictions depend on the other rows of the batch")

    def _distribution(self, fresh: Callable[[], Reader], block: Block, cut: int) -> None:
        """At random positions all V probabilities sum to one, and `log_prob` quotes them, for target and others."""
        prediction, types = fresh().predict(block.tokens), fresh().model.vocabulary_size
        tolerance, device = _tolerance(fresh()), block.tokens.device
        rows, times = (torch.from_numpy(self._random.integers(0, n, POSITIONS)).to(device) for n in block.tokens.shape)
        words = torch.from_numpy(self._random.integers(0, types, (POSITIONS, WORDS))).to(device)
        words[:, 0] = block.targets[rows, times]
        table = prediction.select(rows, times).log_probs().double()[:, 0]
        sums = table.exp().sum(1)
        if not ((sums - 1).abs() <= 1e-4).all():
            worst = sums[(sums - 1).abs().nan_to_num(torch.inf).argmax()].item()
            self._fail("distribution", f"probabilities sum to {worst:.6g}, not 1")
        each = rows.repeat_interleave(WORDS), times.repeat_interleave(WORDS)
        quoted = prediction.select(*each).log_prob(words.view(-1, 1)).double().view(words.shape)
        scored = prediction.log_prob(block.targets)[rows, times].double()
        listed = table.gather(1, words)
        if not _close(quoted.exp(), listed.exp(), tolerance) or not _close(scored.exp(), listed[:, 0].exp(), tolerance):
            self._fail("distribution", "the scored probability is not the one in the distribution that sums to one")

    def _scored_before_update(self, fresh: Callable[[], Reader], block: Block, cut: int) -> None:
        """Wrong targets from `cut` on, scored and observed, must not change the scores before it."""
        types = fresh().model.vocabulary_size
        plain = fresh().predict(block.tokens).log_prob(block.targets)
        wrong = block.targets.clone()
        wrong[:, cut:] = self._other(wrong[:, cut:], types)
        reader = fresh()
        prediction = reader.predict(block.tokens)
        if not torch.equal(plain[:, :cut], prediction.log_prob(wrong)[:, :cut]):
            self._fail("scored_before_update", "scores depend on targets that come later")
        if not torch.equal(plain, prediction.log_prob(block.targets)):
            self._fail("scored_before_update", "scoring changes the prediction: it learned from the targets")
        if not torch.equal(plain, reader.predict(block.tokens).log_prob(block.targets)):
            self._fail("scored_before_update", "scoring changes the reader: it learned before it observed")
        reader.observe(wrong)
        if not torch.equal(plain, fresh().predict(block.tokens).log_prob(block.targets)):
            self._fail("scored_before_update", "what was observed reaches back behind a snapshot")

    def _blocks(self, fresh: Callable[[], Reader], block: Block, cut: int) -> None:
        """The block read in two pieces scores as it does whole, if the reader says so."""
        if not fresh().capabilities.block_invariant or block.tokens.shape[1] == 1:
            return
        whole = fresh().predict(block.tokens).log_prob(block.targets)
        reader, pieces = fresh(), []
        for part in (slice(None, cut), slice(cut, None)):
            pieces.append(reader.predict(block.tokens[:, part]).log_prob(block.targets[:, part]))
            reader.observe(block.targets[:, part])
        if not _close(torch.cat(pieces, 1).exp(), whole.exp(), _tolerance(fresh())):
            self._fail("one_pass", "scores depend on how the text is cut into blocks, which this reader denies")

    def _fork_apart(self, reader: Reader, fork: Reader, block: Block) -> None:
        """What a fork reads must leave the reader that it came from where it was."""
        plain = fork.predict(block.tokens).log_prob(block.targets)
        fork.observe(block.targets)
        if not torch.equal(plain, reader.predict(block.tokens).log_prob(block.targets)):
            self._fail("one_pass", "what a fork reads changes the reader that it came from")


def _tolerance(reader: Reader) -> float:
    """How far the same probability may differ between two ways of computing it, relatively."""
    return 1e-3 if reader.precision.dtype in (torch.float32, torch.float64) else 0.05


def _equal(a: tuple[Tensor, Tensor], b: tuple[Tensor, Tensor]) -> bool:
    return torch.equal(a[0], b[0]) and torch.equal(a[1], b[1])


def _close(a: Tensor, b: Tensor, tolerance: float) -> bool:
    """Probabilities within the tolerance, relative or absolute."""
    return bool(torch.isclose(a, b, rtol=tolerance, atol=1e-9).all())
