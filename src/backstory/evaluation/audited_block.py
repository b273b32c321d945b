"""Checks of the audit at one block of a stream, on copies of the reader that reads it."""

import hashlib
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from backstory.models import Prediction
from backstory.readers.base import Block, Reader

PIECE = 8
"""Number of steps for checks that do not depend on the position in the block."""
POSITIONS, WORDS = 24, 3
"""Numbers of positions whose distribution is summed, and of words looked up in each, the target first."""
SMALLEST = -69.0
"""Log-probabilities below this (1e-30) count as equal."""

SUM_TOLERANCE = 1e-4
"""Tolerance for the sum of a distribution's probabilities."""

Fail = Callable[[str, str], None]
"""Takes the name of a check and a message."""


@dataclass(frozen=True)
class Tolerance:
    """Limits in nats for two computations of the same scores."""

    each: float
    """Limit of one score."""
    median: float
    """Limit for the median score of a place, which reveals a constant factor even if single scores are rounded coarsely."""
    mean: float
    """Limit for the mean excess of the reported scores over all places."""
    slack: float
    """Added to `mean` times the tokens, for rounding."""


FLOAT32 = Tolerance(each=1e-3, median=5e-4, mean=1e-4, slack=1e-3)
BFLOAT16_DECODED = Tolerance(each=0.25, median=0.1, mean=2e-3, slack=0.5)
"""Products of different shapes: a logit between 16 and 32 may be rounded to the next number, an eighth away."""
BFLOAT16_LISTED = Tolerance(each=0.25, median=5e-4, mean=5e-4, slack=0.25)
"""The same hidden states: almost all logits are rounded alike, and everything after them is in float32."""


@dataclass(frozen=True)
class Audited:
    """Scores of some targets as a copy computed them, which the reading is then compared with."""

    scores: Tensor
    """(n,) log-probabilities."""
    rows: Tensor
    """(n,): the row of each target."""
    times: Tensor
    """(n,): its step in the block."""

    def differences(self, reported: Tensor, scored: Tensor) -> Tensor:
        """Return reported scores (R, T) less these, in float64, where the text has a token (R, T)."""
        return apart(reported[self.rows, self.times], self.scores)[scored[self.rows, self.times]]


def within(differences: Tensor, tolerance: Tolerance) -> bool:
    """Return True if each difference and their median are small; False if one is not a number."""
    if not len(differences):
        return True
    each = bool((differences.abs() <= tolerance.each).all())
    return each and abs(differences.median().item()) <= tolerance.median


def apart(a: Tensor, b: Tensor) -> Tensor:
    """Return the difference of log-probabilities in float64, of which very small ones count as equal."""
    return a.double().clamp_min(SMALLEST) - b.double().clamp_min(SMALLEST)


class AuditedBlock:
    """Checks of one block, made before the reader sees it, from a copy of the reader; `compare` follows its score."""

    def __init__(self, reader: Reader, block: Block, random: np.random.Generator, cuts: int, fail: Fail) -> None:
        """`reader`, at the start of the block, is used up; at most `cuts` positions are decoded."""
        self.block, self._random, self._fail = block, random, fail
        self._types, self._context = reader.model.vocabulary_size, reader.precision.context
        narrow = torch.finfo(reader.precision.dtype).bits < 32
        self._decoding = BFLOAT16_DECODED if narrow else FLOAT32
        self._listing = BFLOAT16_LISTED if narrow else FLOAT32
        self._shares_products = any(model.capabilities.shares_products for model in reader.models())
        self._copy = reader.fork()
        self._snapshot = self._copy.snapshot()
        # First, because no copy has seen the block yet, so none can know its later tokens.
        self.decoded = self._decode(reader, cuts)
        self._alter()
        self.listed = self._list()
        self._unchanged_rows = self._change_rows()
        self._check_protocol()

    @property
    def cuts(self) -> int:
        """Number of cuts of the block that were tried."""
        return len(self.decoded.times.unique()) + 1

    def starts_again(self, probe: Tensor) -> str:
        """Return the digest of the scores of a probe (R, T) by a reader that starts again after a piece of this block."""
        tokens, targets = self._piece()
        reader = self._restored()
        reader.predict(tokens)
        reader.observe(targets)
        return start_digest(reader, probe)

    def compare(self, reported: Tensor) -> tuple[Tensor, Tensor]:
        """Compare with the log-probabilities (R, T) that the reading reports.

        Returns their excess over the decoded and the listed scores; empty if they are too far apart.
        """
        decoded, listed = (scores.differences(reported, self.block.scored) for scores in (self.decoded, self.listed))
        close = within(decoded, self._decoding) and within(listed, self._listing)
        altered = self._same(self._altered, reported[:, : self._cut])
        rows = all(self._same(scores, reported[kept]) for kept, scores in self._unchanged_rows)
        if close and altered and rows:
            return decoded, listed
        for check, message in self._explanations(reported) or [("as_reported", NOT_DECODED)]:
            self._fail(check, message)
        return decoded[:0], listed[:0]

    def limits(self) -> tuple[Tolerance, Tolerance]:
        """Return the tolerances of decoded and of listed scores."""
        return self._decoding, self._listing

    # --- scores of the copy ---

    def _restored(self) -> Reader:
        """Return the copy of the reader, at the start of the block."""
        self._copy.restore(self._snapshot)
        return self._copy

    def _score(self, prediction: Prediction, targets: Tensor) -> Tensor:
        with self._context(targets.device):
            return prediction.log_prob(targets)

    def _table(self, prediction: Prediction, rows: Tensor, times: Tensor) -> Tensor:
        """Return the distributions (n, V) at some positions, and check that each sums to one."""
        with self._context(rows.device):
            table = prediction.select(rows, times).log_probs()[:, 0]
        table = table.to(torch.promote_types(table.dtype, torch.float32))
        sums = table.exp().sum(1, dtype=torch.float64)
        if not ((sums - 1).abs() <= SUM_TOLERANCE).all():
            worst = sums[(sums - 1).abs().nan_to_num(torch.inf).argmax()].item()
            self._fail("distribution", f"probabilities sum to {worst:.6g}, not 1")
        return table

    def _decode(self, reader: Reader, cuts: int) -> Audited:
        """Score some targets from earlier tokens alone, before any later token or target is shown.

        A reader whose scores do not depend on the blocks reads the block in pieces that end there. Any other reader
        predicts it up to each target anew.
        """
        tokens, targets = self.block.tokens, self.block.targets
        rows, steps = tokens.shape
        ends = np.sort(self._random.choice(steps, min(steps, cuts), replace=False)) + 1
        every, begin, scores = torch.arange(rows, device=tokens.device), 0, []
        for end in ends.tolist():
            prediction = reader.predict(tokens[:, begin:end])
            table = self._table(prediction, every, torch.full_like(every, end - begin - 1))
            scores.append(table.gather(1, targets[:, end - 1, None])[:, 0])
            if reader.capabilities.block_invariant:
                reader.observe(targets[:, begin:end])
                begin = end
        times = torch.from_numpy(ends - 1).to(tokens.device).repeat_interleave(rows)
        return Audited(torch.cat(scores), every.repeat(len(ends)), times)

    def _alter(self) -> None:
        """Score the targets before a random cut, with every later token and target replaced."""
        tokens, targets = self.block.tokens, self.block.targets
        # Strictly inside the block, so that there are tokens on both sides of it wherever the block has two.
        self._cut = int(self._random.integers(1, max(2, tokens.shape[1])))
        self._other_tokens, self._other_targets = self._after(tokens, self._cut), self._after(targets, self._cut)
        self._altered = self._score(self._restored().predict(self._other_tokens), self._other_targets)[:, : self._cut]

    def _list(self) -> Audited:
        """Look targets and random words up in distributions at random positions of the block."""
        tokens, targets = self.block.tokens, self.block.targets
        prediction, count = self._restored().predict(tokens), min(POSITIONS, tokens.numel())
        positions = torch.from_numpy(self._random.choice(tokens.numel(), count, replace=False)).to(tokens.device)
        rows, times = positions // tokens.shape[1], positions % tokens.shape[1]
        words = torch.from_numpy(self._random.integers(0, self._types, (count, WORDS))).to(tokens.device)
        words[:, 0] = targets[rows, times]
        listed = self._table(prediction, rows, times).gather(1, words)
        each = rows.repeat_interleave(WORDS), times.repeat_interleave(WORDS)
        quoted = self._score(prediction.select(*each), words.view(-1, 1)).view(words.shape)
        if not within(apart(quoted, listed).flatten(), self._listing):
            self._fail("distribution", "a word's probability is not the one in the distribution that sums to one")
        return Audited(listed[:, 0], rows, times)

    def _change_rows(self) -> list[tuple[Tensor, Tensor]]:
        """Score and observe the block with other tokens and targets in some rows, then in all the others.

        Returns the unchanged rows of each pass with their scores. Their next predictions must be unaffected.
        """
        tokens, targets = self.block.tokens, self.block.targets
        if len(tokens) == 1:
            return []
        probe = self._piece()
        plain, scored = self._read_on(tokens, targets, probe)[1], []
        # Of two rows that differ here, each changes once.
        some = torch.from_numpy(self._random.permutation(len(tokens)) < len(tokens) // 2).to(tokens.device)
        for unchanged in (some, ~some):
            changed, wrong = (torch.where(unchanged[:, None], ids, self._after(ids, 0)) for ids in (tokens, targets))
            scores, following = self._read_on(changed, wrong, probe)
            scored.append((unchanged, scores[unchanged]))
            if not self._same(plain[unchanged], following[unchanged]):
                self._fail("causal", DEPENDENT_ROWS)
        return scored

    def _read_on(self, tokens: Tensor, targets: Tensor, probe: tuple[Tensor, Tensor]) -> tuple[Tensor, Tensor]:
        """Return the scores of a block's own targets, and of a probe that follows it."""
        reader = self._restored()
        scores = self._score(reader.predict(tokens), self.block.targets)
        reader.observe(targets)
        return scores, self._score(reader.predict(probe[0]), probe[1])

    def _check_protocol(self) -> None:
        """Check that only `observe` changes a reader, and that snapshots and forks contain all of its state."""
        tokens, targets = self._piece()
        cut = int(self._random.integers(1, max(2, tokens.shape[1])))
        plain = self._score(self._restored().predict(tokens), targets)
        reader = self._restored()
        prediction = reader.predict(tokens)
        if not torch.equal(plain, self._score(prediction, targets)):
            self._fail("one_pass", "restoring a snapshot does not bring the same predictions back")
        if not torch.equal(plain[:, :cut], self._score(prediction, self._after(targets, cut))[:, :cut]):
            self._fail("scored_before_update", LATER_TARGETS)
        if not torch.equal(plain, self._score(prediction, targets)):
            self._fail("scored_before_update", "scoring changes the prediction: it learned from the targets")
        if not torch.equal(plain, self._score(reader.predict(tokens), targets)):
            self._fail("scored_before_update", "scoring changes the reader: it learned before it observed")
        reader.observe(targets)
        reader = self._restored()
        if not torch.equal(plain, self._score(reader.predict(tokens), targets)):
            self._fail("scored_before_update", "what was observed reaches back behind a snapshot")
        reader = self._restored()
        fork = reader.fork()
        fork.predict(tokens)
        fork.observe(targets)
        if not torch.equal(plain, self._score(reader.predict(tokens), targets)):
            self._fail("one_pass", "what a fork reads changes the reader that it came from")

    # --- why scores differ ---

    def _explanations(self, reported: Tensor) -> list[tuple[str, str]]:
        """Return the checks that fail and why, if the reported scores are not those of the copies."""
        tokens, targets, cut = self.block.tokens, self.block.targets, self._cut
        plain, failed = self._score(self._restored().predict(tokens), targets), []
        if not torch.equal(plain, reported):
            failed.append(("as_reported", "the reported scores are not those that a copy of the reader finds"))
        if not self._same(self._altered, plain[:, :cut]):
            by_targets = self._score(self._restored().predict(tokens), self._other_targets)[:, :cut]
            late = not torch.equal(by_targets, plain[:, :cut])
            failed.append(("scored_before_update", LATER_TARGETS) if late else ("causal", LATER_TOKENS))
        if not all(self._same(scores, plain[rows]) for rows, scores in self._unchanged_rows):
            failed.append(("causal", DEPENDENT_ROWS))
        if not within(self.listed.differences(plain, self.block.scored), self._listing):
            failed.append(("distribution", UNLISTED))
        differences = apart(plain[self.decoded.rows, self.decoded.times], self.decoded.scores)
        wrong = ~(differences.abs() <= self._decoding.each) & self.block.scored[self.decoded.rows, self.decoded.times]
        ends = self.decoded.times[wrong].unique() + 1
        return failed + [self._explained(plain[:, end - 1], end) for end in ends.tolist()]

    def _explained(self, plain: Tensor, end: int) -> tuple[str, str]:
        """Return the check that fails if decoding gives the targets of a step other scores (R,)."""
        targets, every = self.block.targets[:, end - 1, None], torch.arange(len(plain), device=plain.device)
        tables = (
            self._table(self._restored().predict(tokens), every, torch.full_like(every, end - 1))
            for tokens in (self.block.tokens, self.block.tokens[:, :end])
        )
        listed, causal = (table.gather(1, targets)[:, 0] for table in tables)
        if not (apart(plain, listed).abs() <= self._listing.each).all():
            return "distribution", UNLISTED
        if not (apart(plain, causal).abs() <= self._decoding.each).all():
            return "causal", LATER_TOKENS
        return "one_pass", DEPENDENT_CUTS + (WINDOW_HINT if self._copy.model.capabilities.slides else "")

    # --- small helpers ---

    def _same(self, scores: Tensor, reported: Tensor) -> bool:
        """Return True for the same scores of one text, with other tokens after it or in other rows.

        They are equal to the last bit unless tokens share products. Then they are as far apart as those of products of other
        shapes at most, which is the limit of `decoded` too: no dependence that it allows can gain more than one that is
        hidden from the decoding.
        """
        if torch.equal(scores, reported):
            return True
        return self._shares_products and within(apart(reported, scores).flatten(), self._decoding)

    def _piece(self) -> tuple[Tensor, Tensor]:
        return self.block.tokens[:, :PIECE], self.block.targets[:, :PIECE]

    def _after(self, ids: Tensor, cut: int) -> Tensor:
        """Replace the ids (R, T) from a cut on."""
        return replaced(ids, self._types, self._random, cut)


DEPENDENT_CUTS = "scores depend on how the text is cut into blocks, which this reader denies"
WINDOW_HINT = "; if the model attends within a sliding window, --window of at most its length avoids that"
DEPENDENT_ROWS = "a row's predictions depend on the other rows of the batch"
LATER_TARGETS = "scores depend on targets that come later"
LATER_TOKENS = "predictions depend on later tokens of the block"
NOT_DECODED = "the reported scores are not those that are found from the tokens before"
UNLISTED = "the scored probability is not the one in the distribution that sums to one"


def replaced(ids: Tensor, types: int, random: np.random.Generator, cut: int) -> Tensor:
    """Replace every id (R, T) from a cut on by a different one."""
    later = ids[:, cut:]
    step = torch.from_numpy(random.integers(1, max(2, types), tuple(later.shape))).to(ids.device)
    return torch.cat([ids[:, :cut], (later + step) % types], 1)


def start_digest(reader: Reader, probe: Tensor) -> str:
    """Start the reader again, and return the digest of its scores of a probe (R, T)."""
    reader.start(len(probe))
    prediction = reader.predict(probe)
    with reader.precision.context(probe.device):
        scores = prediction.log_prob(probe)
    return hashlib.sha256(scores.double().cpu().numpy().tobytes()).hexdigest()
