"""Referee an external predictor: score it on a text, and audit how the score is made.

Three instances of the predictor read the text. The first is scored. The second decodes: before the first is shown a
block, it predicts random tokens of the block from those before them, and only then reads on. The third is made after the
reading, and replays the text up to a random place.
"""

import dataclasses
import math
import operator
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
from functools import partial
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from backstory.config.referee_options import RefereeOptions
from backstory.evaluation import audit as audits
from backstory.evaluation.audit import AuditReport, Gain
from backstory.evaluation.audited_block import DEPENDENT_ROWS, SUM_TOLERANCE, Tolerance, apart, replaced
from backstory.evaluation.evaluation import check_batch
from backstory.evaluation.predictor_process import ProcessPredictor
from backstory.evaluation.predictors import Instance, factory_of
from backstory.evaluation.refereed_text import RefereedText
from backstory.evaluation.violations import Violations, earliest
from backstory.readers.base import BLOCK, Block, block_count, blocks
from backstory.results.common import ProvenanceRecord
from backstory.results.referee_record import MISSED_SHARE, RefereeFigures
from backstory.results.result_file import Result, write_result
from backstory.results.validation import LONGEST_NAME
from backstory.storage.provenance import check_place
from backstory.utils.arguments import described
from backstory.utils.errors import UserError
from backstory.utils.scores import bits, perplexity
from backstory.utils.terminal import ProgressCallback

CLAIM_TOLERANCE = 5e-4
"""Relative difference that a claimed score may have; counts must be equal."""


def referee(
    predictor: Any,
    text: RefereedText,
    options: RefereeOptions,
    *,
    process: str | None = None,
    name: str | None = None,
    progress: ProgressCallback | None = None,
) -> Result[RefereeFigures]:
    """Score a predictor, a factory of them, or a process on a text, and audit it; write the result to `options.out`.

    Raises UserError for what cannot be refereed, and before the reading for a result that cannot be written.
    """
    claims, rows, types = options.claims(), options.batch_size, text.types
    check_batch(rows, len(text.ids))
    if text.bytes is None and (claimed := [name for name in claims if "byte" in name]):
        raise UserError(
            f"the referee cannot count the bytes of {text.name}; leave the claim {claimed[0]} out, or give a text"
        )
    if options.out is not None:
        check_place(options.out, RefereeFigures.kind)
    if process is not None:
        if types is None:
            raise UserError("a process needs the number of types; give types=")
        make: Callable[[], Any] = partial(ProcessPredictor, process, types, rows, options.timeout)
    else:
        make = factory_of(predictor, rows)
    settings = dataclasses.asdict(options) | {"out": None, "seed": None}
    origin = ProvenanceRecord.begun(settings, "cpu", "float64", "how the referee computes", text.description())
    began = time.perf_counter()
    with ExitStack() as stack:
        reading = _Refereeing(make, text, options, stack)
        reading.read(progress or (lambda done, total: None))
        reading.replay()
        figures = reading.figures(claims)
    origin = dataclasses.replace(origin, seconds=round(time.perf_counter() - began, 1))
    called = name or process or getattr(predictor, "__name__", type(predictor).__name__)
    return write_result(options.out, called[:LONGEST_NAME], figures, origin)


class _Decoded(NamedTuple):
    """Predictions of an instance that was shown a block only up to some column."""

    scores: Tensor
    """(B, columns): log-probabilities of the targets up to there."""
    last: Tensor
    """(B, V): the distribution at the column."""


def _scores(table: Tensor, targets: Tensor) -> Tensor:
    """Return the log-probabilities (B, T) of targets (B, T) in a table (B, T, V)."""
    return table.gather(2, targets[..., None])[..., 0]


class _Refereeing:
    """State of one audit: instances, scores and findings."""

    def __init__(self, make: Callable[[], Any], text: RefereedText, options: RefereeOptions, stack: ExitStack) -> None:
        self._make, self._text, self._options, self._stack = make, text, options, stack
        seed = audits.system_seed() if options.seed is None else options.seed
        self._random = np.random.default_rng(seed)
        self.report = AuditReport(seed=str(seed))
        self._main, self._shadow = self._instance(text.types), self._instance(text.types)
        if self._main.predictor is self._shadow.predictor:
            raise UserError("the factory made the same object twice; it must make a new one at each call")
        self._block = options.block or self._own_block()
        self._violations = Violations(self.report, self._block)
        self._rows = options.batch_size
        self._length = math.ceil(len(text.ids) / self._rows)
        self._tolerance = Tolerance(
            each=options.tolerance, median=options.tolerance / 2, mean=options.tolerance / 10, slack=options.tolerance
        )
        self._gain = Gain()
        self._decoded = self._replayed = 0
        self._scores = torch.zeros(self._rows, self._length, dtype=torch.float64)
        """Log-probabilities of the targets as they were scored."""
        self._scored = torch.zeros(self._rows, self._length, dtype=torch.bool)

    def _own_block(self) -> int:
        """Return the block that the predictor has, or the usual one. Raises UserError for one that is no number of tokens."""
        own = self._main.attribute("block")
        if own is None:
            return BLOCK
        try:
            block = operator.index(own)
        except TypeError:
            block = 0
        if block < 1:
            raise UserError(
                f"the predictor's block is {described(own)}; it must be a whole number of tokens, 1 or more"
            )
        return block

    # --- the reading ---

    def read(self, progress: ProgressCallback) -> None:
        """Score the text with the first instance while the second decodes, one block after the other."""
        cuts = self._drawn_cuts()
        for block in self._blocks(self._text.ids):
            begin, steps = block.index * self._block, block.tokens.shape[1]
            columns = cuts[(cuts >= begin) & (cuts < begin + steps)] - begin
            # The second instance goes first, when no instance has seen the block, so none can know its later tokens.
            decoded = [self._decode(block, column) for column in columns.tolist()]
            altered, cut = self._altered(block, columns)
            table = self._main.predict(block.tokens)
            self._score(block, table)
            self._main.observe(block.targets)
            self._check_unchanged(block, table)
            again = decoded[-1].last[:, None] if steps == 1 and decoded else self._shadow.predict(block.tokens)
            self._check_repeated(block, table, again)
            self._check_decoded(block, table, again, columns, decoded)
            self._check_altered(block, again, altered, cut)
            self._shadow.observe(block.targets)
            if len(columns):
                self.report.places += 1
                self.report.cuts += len(columns)
                self.report.steps += steps
            progress(int(self._scored.sum()), len(self._text.ids))

    def replay(self) -> None:
        """Let instances that are made after the reading replay the text up to a random block.

        One replays it unchanged. With several rows, others replay all of it with half of the rows changed, so that
        every two rows are in different halves once.
        """
        for instance in (self._main, self._shadow):  # they may be large
            instance.close()
        total = block_count(len(self._text.ids), self._rows, self._block)
        last = total if self._options.every_token else int(self._random.integers(1, total + 1))
        everything = torch.ones(self._rows, dtype=torch.bool)
        self._replay(last, everything)
        if self._rows > 1 and self.report.checks["one_pass"]:
            numbers = torch.from_numpy(self._random.permutation(self._rows))
            for bit in range((self._rows - 1).bit_length()):
                some = (numbers >> bit & 1).bool()
                for same_rows in (some, ~some):
                    self._replay(total, same_rows)

    def _replay(self, last: int, same_rows: Tensor) -> None:
        instance = self._instance(self._main.types)
        for block in self._blocks(self._text.ids):
            if block.index == last:
                break
            if not same_rows.all():
                changed, wrong = (torch.where(same_rows[:, None], ids, self._after(ids, 0)) for ids in block[:2])
                block = block._replace(tokens=changed, targets=wrong)
            scores = _scores(instance.predict(block.tokens), block.targets)
            begin, steps = block.index * self._block, block.tokens.shape[1]
            expected = self._scores[:, begin : begin + steps]
            wrong = self._differ(scores, expected) & block.scored & same_rows[:, None]
            condition, why = (
                ("one_pass", "an instance made after the reading, fed the same tokens, predicts otherwise")
                if same_rows.all()
                else ("causal", DEPENDENT_ROWS)
            )
            self._violations.compare(condition, why, block, wrong, scores, expected)
            instance.observe(block.targets)
            if same_rows.all():
                self._replayed += int(block.scored.sum())
        instance.close()

    def _score(self, block: Block, table: Tensor) -> None:
        begin, steps = block.index * self._block, block.tokens.shape[1]
        self._check_types(block, table)
        self._scores[:, begin : begin + steps] = _scores(table, block.targets)
        self._scored[:, begin : begin + steps] = block.scored
        self._check_distributions(block, table)

    @staticmethod
    def _check_types(block: Block, table: Tensor) -> None:
        """Raise UserError for a target that has no place in the table."""
        if (largest := int(block.targets.max())) >= table.shape[2]:
            raise UserError(
                f"the text holds the token {largest:,}, and predict gives {table.shape[2]:,} types; give every type"
            )

    # --- checks of a block ---

    def _check_distributions(self, block: Block, table: Tensor) -> None:
        """Check every distribution of the block: numbers, none zero, that sum to one."""
        sums = table.exp().sum(2)
        for faulty, why in (
            (table.isnan().any(2), "the log-probability of type {type} is not a number"),
            (
                (table == -math.inf).any(2),
                "type {type} has no probability (log-probability -inf), which every type needs",
            ),
        ):
            wrong = faulty & block.scored
            if wrong.any():
                row, time = earliest(wrong)
                values = table[row, time]
                kind = int((values.isnan() | (values == -math.inf)).nonzero()[0])
                self._violations.add("distribution", why.format(type=kind), block, wrong)
        wrong = ~((sums - 1).abs() <= SUM_TOLERANCE) & ~table.isnan().any(2) & block.scored
        if wrong.any():
            total = sums[earliest(wrong)].item()
            evidence = f"the probabilities of all {table.shape[2]:,} types sum to {total:.6g}, not 1"
            self._violations.add("distribution", evidence, block, wrong, total, 1.0)

    def _check_unchanged(self, block: Block, table: Tensor) -> None:
        """Check that the table that was returned has not become a better one once the targets were observed."""
        now = self._main.reread()
        if torch.equal(now, table):
            return
        before, after = (_scores(t, block.targets)[block.scored] for t in (table, now))
        gain = apart(after, before).mean().item()
        if gain > self._tolerance.mean:
            evidence = f"the scores of the block improve by {gain:.4g} nats a token when its targets are observed"
            self._violations.add("scored_before_update", evidence, block, block.scored, gain, 0.0)

    def _check_repeated(self, block: Block, table: Tensor, again: Tensor) -> None:
        """Check that the second instance, fed the same tokens, predicts the same at every token of the block."""
        ours, theirs = (_scores(t, block.targets) for t in (table, again))
        wrong = (self._differ(ours, theirs) | self._far(table, again)) & block.scored
        why = "a second instance, fed the same tokens, predicts otherwise"
        self._violations.compare("one_pass", why, block, wrong, ours, theirs)

    def _decode(self, block: Block, column: int) -> "_Decoded":
        """Let the second instance predict the block up to a column alone."""
        table = self._shadow.predict(block.tokens[:, : column + 1])
        self._check_types(block, table)
        return _Decoded(_scores(table, block.targets[:, : column + 1]), table[:, -1].clone())

    def _check_decoded(
        self, block: Block, table: Tensor, again: Tensor, columns: np.ndarray, decoded: "Sequence[_Decoded]"
    ) -> None:
        """Check that tokens which were decoded without those after them have the same distributions."""
        wrong = torch.zeros_like(block.scored)
        ours, reported = (_scores(t, block.targets) for t in (again, table))
        alone = ours.clone()
        for column, short in zip(columns.tolist(), decoded, strict=True):
            before = short.scores
            here = self._differ(ours[:, : column + 1], before)
            here[:, -1] |= self._far(again[:, column], short.last)
            here &= block.scored[:, : column + 1]
            alone[:, : column + 1] = torch.where(here, before, alone[:, : column + 1])
            wrong[:, : column + 1] |= here
            scored = block.scored[:, column]
            self._gain.add(apart(reported[:, column], before[:, -1])[scored].nan_to_num())
            self._decoded += int(scored.sum())
        why = "the prediction is another when the later tokens of the block are not shown"
        self._violations.compare("causal", why, block, wrong, ours, alone)
        if self._gain.exceeds(self._tolerance):
            mean = self._gain.nats / self._gain.tokens
            evidence = f"tokens score {mean:.4g} nats better on average than when they are decoded"
            self._violations.add("causal", evidence, actual=mean, expected=0.0)

    def _altered(self, block: Block, columns: np.ndarray) -> tuple[Tensor | None, int]:
        """Let the second instance predict the block with other tokens after one of its cuts; return the table and the cut."""
        later = columns[columns < block.tokens.shape[1] - 1]
        if not len(later) or self._options.every_token:
            return None, 0
        cut = int(self._random.choice(later)) + 1
        return self._shadow.predict(self._after(block.tokens, cut)), cut

    def _check_altered(self, block: Block, again: Tensor, altered: Tensor | None, cut: int) -> None:
        """Check that other tokens after a cut change no prediction before it."""
        if altered is None:
            return
        ours, changed = (_scores(t[:, :cut], block.targets[:, :cut]) for t in (again, altered))
        wrong = (self._differ(ours, changed) | self._far(again[:, :cut], altered[:, :cut])) & block.scored[:, :cut]
        why = f"the prediction is another when the tokens of the block from its token {cut} on are changed"
        self._violations.compare("causal", why, block, wrong, ours, changed)

    # --- the verdict ---

    def figures(self, claims: Any) -> RefereeFigures:
        """Return the score and the verdict."""
        text, total = self._text, -self._scores[self._scored].sum().item()
        tokens = int(self._scored.sum())
        nats = total / tokens if math.isfinite(total) else None
        per_byte = None if nats is None or text.bytes is None else bits(nats * tokens) / text.bytes
        scores: dict[str, Any] = {
            "tokens": tokens,
            "bytes": text.bytes,
            "nats_per_token": nats,
            "perplexity": None if nats is None else perplexity(nats),
            "bits_per_token": None if nats is None else bits(nats),
            "bits_per_byte": per_byte,
        }
        self._check_claims(claims, scores)
        violations = self._violations.records()
        self.report.failures = [f"{one.condition.replace('_', ' ')}: {one.in_words()}" for one in violations]
        return RefereeFigures(
            unit=text.unit,
            types=self._main.types or 1,
            **scores,
            block=self._block,
            batch_size=self._rows,
            decoded=self._decoded,
            missed=0.0 if self._decoded == tokens else (1 - MISSED_SHARE) ** self._decoded,
            replayed=self._replayed,
            claims=dict(claims),
            audit=self.report.record(),
            violations=violations,
        )

    def _check_claims(self, claims: Any, scores: dict[str, Any]) -> None:
        for name, claimed in claims.items():
            ours, words = scores[name], name.replace("_", " ")
            limit = 0 if name in ("tokens", "bytes") else CLAIM_TOLERANCE * abs(ours or 0)
            if ours is None or not abs(claimed - ours) <= limit:
                finds = "none" if ours is None else f"{ours:.10g}"
                evidence = f"{claimed:.10g} {words} were claimed, and the referee finds {finds}"
                self._violations.add("as_reported", evidence, actual=claimed, expected=ours)

    # --- small helpers ---

    def _instance(self, types: int | None) -> Instance:
        instance = Instance(self._make, types)
        self._stack.callback(instance.close)
        return instance

    def _blocks(self, ids: np.ndarray) -> Iterator[Block]:
        return blocks(ids, self._text.start, self._rows, self._block, torch.device("cpu"))

    def _drawn_cuts(self) -> np.ndarray:
        """Return the columns whose tokens are decoded, in order."""
        count = math.ceil(self._options.cuts / self._rows)
        if self._options.every_token or self._block == 1 or count >= self._length:
            return np.arange(self._length)
        return np.sort(self._random.choice(self._length, count, replace=False))

    def _differ(self, a: Tensor, b: Tensor) -> Tensor:
        """Return where log-probabilities differ by more than the tolerance."""
        return ~(apart(a, b).abs() <= self._tolerance.each) & ~(a.isnan() & b.isnan())

    def _far(self, a: Tensor, b: Tensor) -> Tensor:
        """Return where distributions (..., V) of log-probabilities differ, in any probability, by more than the tolerance."""
        return ((a.exp() - b.exp()).abs() > self._tolerance.each).any(-1)

    def _after(self, ids: Tensor, cut: int) -> Tensor:
        """Replace the ids (R, T) from a cut on."""
        return replaced(ids, self._main.types or int(self._text.ids.max()) + 1, self._random, cut)
