"""Audit a reader: causal, a full distribution, scored before it learns, one pass, and scores as reported.

It looks at random blocks of the stream that is being read. A copy of the reader is made from outside, without a call that the
reader could notice, and decodes some of the block's targets from the tokens before them; then the reader itself reads the
block, and the scores that it reports must be those.
"""

import copy
import secrets
from dataclasses import asdict, dataclass, field
from typing import Any

import numpy as np
import torch
from torch import Tensor

from backstory.evaluation.audited_block import PIECE, AuditedBlock, Tolerance, start_digest
from backstory.readers.base import Block, Reader
from backstory.results.common import AuditRecord
from backstory.utils.arguments import checked

CHECKS = ("causal", "distribution", "scored_before_update", "one_pass", "as_reported")
FEWEST_PLACES, PLACES, MOST_PLACES = 2, 8, 64
"""Default numbers of audited blocks: for several rows, for one row, and for one row in short blocks."""
PER_CUT = 300
"""Steps of the stream per cut, so that the audit's share of the time does not depend on the length of a reading."""
FEWEST_CUTS, MOST_CUTS = 16, 64
"""Limits of the cuts of a place."""
REREADING_CUTS = 4
"""Cuts of a place, unless a number is given, if the model reads everything before a piece again."""


def system_seed() -> int:
    """Return a seed of 128 bits from the operating system."""
    return secrets.randbits(128)


@checked(block=1, batch_size=1)
def usual_places(block: int, batch_size: int = 1) -> int:
    """Return the number of audited blocks: 8, or enough for 512 tokens up to 64; with several rows fewer, at least 2."""
    return max(FEWEST_PLACES, max(PLACES, min(MOST_PLACES, 512 // block)) // batch_size)


@dataclass
class AuditReport:
    """Outcome and extent of an audit."""

    places: int = 0
    """Blocks that were audited."""
    cuts: int = 0
    """Cuts that were tried: steps of a row whose scores were compared with what is known before the cut."""
    steps: int = 0
    """Steps of the audited blocks."""
    seed: str = ""
    """Seed of the places and cuts, in decimal digits, because some programs cannot read so large a number from JSON."""
    checks: dict[str, bool] = field(default_factory=lambda: dict.fromkeys(CHECKS, True))
    failures: list[str] = field(default_factory=list)

    @property
    def passed(self) -> bool:
        return self.places > 0 and all(self.checks.values())

    def record(self) -> AuditRecord:
        """Return the record for results."""
        return AuditRecord(
            passed=self.passed,
            places=self.places,
            cuts=self.cuts,
            steps=self.steps,
            seed=self.seed,
            checks=dict(self.checks),
            failures=tuple(self.failures),
        )


@dataclass
class Gain:
    """Sum over all places of the reported scores' excess over those of the audit."""

    tokens: int = 0
    nats: float = 0.0

    def add(self, differences: Tensor) -> None:
        self.tokens, self.nats = self.tokens + len(differences), self.nats + differences.sum().item()

    def exceeds(self, tolerance: Tolerance) -> bool:
        return not self.nats <= tolerance.mean * self.tokens + tolerance.slack


class Audit:
    """Audits the reader at random blocks of a stream while it is read, on copies of the reader.

    Pass it to `read` as the observer; it audits `places` of the stream's `total_blocks` blocks. The stream's own reader
    is never restored or called.
    """

    @checked(total_blocks=1, places=1, seed=(0, 2**256), cuts=1)
    def __init__(
        self, total_blocks: int, places: int = PLACES, seed: int | None = None, cuts: int | None = None
    ) -> None:
        """`seed` is drawn from the operating system by default; a place has by default as many `cuts` as the stream allows."""
        self._blocks, self._places, self._cuts = total_blocks, min(places, total_blocks), cuts
        self._draw(system_seed() if seed is None else seed)
        self._next_block = self._size = 0
        self._first_scores: tuple[list[list[int]], str] | None = None
        self._block: AuditedBlock | None = None
        self._gains = Gain(), Gain()

    def _draw(self, seed: int) -> None:
        self._random = np.random.default_rng(seed)
        self._audited_blocks = set(self._random.choice(self._blocks, self._places, replace=False).tolist())
        self.report = AuditReport(seed=str(seed))

    def state_dict(self) -> dict[str, Any]:
        """Return the audit's progress, in plain values."""
        return {
            "random": self._random.bit_generator.state,
            "next": self._next_block,
            "report": asdict(self.report),
            "size": self._size,
            "start": self._first_scores,
            "gains": [asdict(gain) for gain in self._gains],
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Restore the progress of an audit of the same stream and places, with its seed."""
        report = AuditReport(**state["report"])
        self._draw(int(report.seed or 0))  # earlier versions drew by seed 0
        self._random.bit_generator.state = state["random"]
        self._next_block, self.report = state["next"], report
        self._size, start = state.get("size", 0), state.get("start")
        self._first_scores = None if start is None else (start[0], start[1])
        decoded, listed = state.get("gains", [{}, {}])
        self._gains = Gain(**decoded), Gain(**listed)

    @torch.no_grad()
    def before(self, reader: Reader, block: Block) -> None:
        """Let a copy of the reader read this block, if the block is audited."""
        if block.index != self._next_block:
            self._fail("one_pass", f"block {block.index} was read when block {self._next_block} was due")
        self._next_block = block.index + 1
        if self._first_scores is None and block.index == 0:
            probe = block.tokens[:, :PIECE]
            self._first_scores = probe.tolist(), start_digest(copied(reader), probe)
        self._size = self._size or block.tokens.shape[1]
        self._block = None
        if block.index not in self._audited_blocks:
            return
        self._block = AuditedBlock(copied(reader), block, self._random, self._cuts_of(reader), self._fail)
        self.report.places += 1
        self.report.cuts += self._block.cuts
        self.report.steps += block.tokens.shape[1]

    @torch.no_grad()
    def after(self, block: Block, log_prob: Tensor) -> None:
        """Compare the scores (B, T) that are reported of the block with those of the copy."""
        if self._block is None:
            return
        audited, self._block = self._block, None
        for gain, differences, tolerance in zip(self._gains, audited.compare(log_prob), audited.limits(), strict=True):
            gain.add(differences)
            if gain.exceeds(tolerance):
                self._fail("as_reported", "the reported scores are better than the probabilities that the audit finds")
        if self._first_scores is not None:
            tokens, digest = self._first_scores
            if audited.starts_again(torch.tensor(tokens, device=block.tokens.device)) != digest:
                self._fail("one_pass", "a reader that starts again does not forget what it has read")

    def _cuts_of(self, reader: Reader) -> int:
        if self._cuts is not None:
            return self._cuts
        if reader.model.capabilities.rereads:
            return REREADING_CUTS
        steps = self._blocks * self._size
        return min(MOST_CUTS, max(FEWEST_CUTS, steps // (PER_CUT * self._places)))

    def _fail(self, check: str, message: str) -> None:
        self.report.checks[check] = False
        if message not in self.report.failures:
            self.report.failures.append(message)


def copied(reader: Reader) -> Reader:
    """Copy a reader over the same model without calling it, so that it cannot notice."""
    model = reader.model
    shared = {id(part): part for part in (model, *model.parameters(), *model.buffers())}
    return copy.deepcopy(reader, shared)
