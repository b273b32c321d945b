"""Options of `backstory referee`: how a predictor is fed, how much is audited, and what its author claims."""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import tyro

from backstory.config.strict import between
from backstory.utils.arguments import Options
from backstory.utils.errors import UserError, check_name, shown

CLAIMS = ("tokens", "bytes", "nats_per_token", "perplexity", "bits_per_token", "bits_per_byte")
"""Figures that can be claimed."""


@dataclass(frozen=True, kw_only=True)
class RefereeOptions(Options):
    """How a predictor is fed and audited."""

    block: int | None = between(None, 1)
    """Tokens of a row that are predicted at once; by default the predictor's own `block`, else 256, and 1 for a process."""
    batch_size: int = between(1, 1)
    """Rows read side by side; above 1 `predict` gets tokens of shape (rows, tokens)."""
    cuts: int = between(300, 1)
    """Number of tokens, at random places, that are decoded from only the tokens before them."""
    every_token: tyro.conf.FlagCreatePairsOff[bool] = False
    """Decode every token: in blocks of 256 tokens it takes about 130 times as long. Blocks of 1 are decoded anyway."""
    seed: int | None = between(None, 0)
    """Seed of the places, to repeat an audit; by default a random one."""
    tolerance: float = between(1e-3, 0.0, 10.0, above=True)
    """Nats by which two computations of one score may differ; more for a predictor in bfloat16."""
    claim: tyro.conf.UseAppendAction[tuple[str, ...]] = ()
    """A figure to compare with the referee's: bits_per_byte=1.07, nats_per_token=..., perplexity=..., bits_per_token=...,
    tokens=... or bytes=...; may be given more than once."""
    timeout: float = between(60.0, 0.0, above=True)
    """Seconds that a process may take for one answer."""
    out: Path | None = None
    """Write the result into this folder."""

    def claims(self) -> Mapping[str, float]:
        """Return the claimed figures by name. Raises UserError for another figure, and for what is no number."""
        claims = {}
        for claim in self.claim:
            name, _, value = claim.partition("=")
            check_name(name := name.strip().replace("-", "_"), CLAIMS, "figure")
            if name in claims:
                raise UserError(f"{name} is claimed twice; claim it once")
            try:
                claims[name] = float(value)
            except ValueError:
                claims[name] = math.nan
            if not math.isfinite(claims[name]):
                raise UserError(f"a claim must be a number, not {shown(value)}; write it as {name}=1.07")
        return claims
