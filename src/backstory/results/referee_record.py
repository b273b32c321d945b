"""Record of a refereed predictor: its score, the audit, and where each condition failed."""

from dataclasses import dataclass
from typing import Annotated

from backstory.results.common import AuditRecord, Figures
from backstory.results.validation import Count, CountFrom1, Json, Name, Number, Record, in_range
from backstory.utils.errors import plural

MISSED_SHARE = 0.01
"""Share of the tokens for which `missed` is computed."""


@dataclass(frozen=True, kw_only=True)
class ViolationRecord(Record):
    """A condition that does not hold."""

    condition: Name
    """`causal`, `distribution`, `scored_before_update`, `one_pass` or `as_reported`."""
    token: Count | None
    """The first token of the text, from 0, where it fails; null where it has no place."""
    evidence: str
    """Values seen there."""
    found: Number | None
    """The number seen there; null where it is not finite."""
    expected: Number | None
    """The number that it should have been, or null."""
    times: CountFrom1
    """Number of failures among the places tested."""

    def in_words(self) -> str:
        """Return it in one sentence: `at token 512: ... (and at 3 more)`."""
        where = "" if self.token is None else f"at token {self.token:,}: "
        more = f" (and {self.times - 1:,} more {plural('time', self.times - 1)})" if self.times > 1 else ""
        return f"{where}{self.evidence}{more}"


@dataclass(frozen=True, kw_only=True)
class RefereeFigures(Figures):
    """A predictor, as scored and audited by `backstory referee`."""

    kind = "referee"
    unit: Name
    """Kind of a token: `byte`, `word`, ...; `token` for ids of no vocabulary."""
    tokens: CountFrom1
    """Tokens of the text, as the referee counts them; each is scored once."""
    types: CountFrom1
    """Types in each distribution."""
    bytes: CountFrom1 | None
    """Bytes of the text, as the referee counts them; null for ids, and where tokens do not hold all of the text."""
    nats_per_token: Number | None
    """The score; null where a token has no probability, or one that is not a number."""
    perplexity: Number | None
    """The same as a perplexity."""
    bits_per_token: Number | None
    """The same in bits."""
    bits_per_byte: Number | None
    """Bits of all tokens over the bytes of the text."""
    block: CountFrom1
    """Tokens of a row that were predicted at once."""
    batch_size: CountFrom1
    """Rows that were read side by side."""
    decoded: Count
    """Tokens that were decoded from the tokens before them alone."""
    missed: Annotated[float, in_range(0, 1, "a number from 0 to 1")]
    """Probability that decoding so many misses a cheat at one token in a hundred."""
    replayed: Count
    """Tokens that a new instance replayed after the reading."""
    claims: Json
    """Figures that were claimed, by name."""
    audit: AuditRecord
    """Outcome of the audit."""
    violations: tuple[ViolationRecord, ...]
    """The conditions that failed; empty if the audit passed."""

    @property
    def label(self) -> str:
        return "referee"
