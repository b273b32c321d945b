"""Scores of tokens under a prediction: log-probability, rank, entropy of the distribution, and the likeliest candidates."""

from dataclasses import dataclass

import torch
from torch import Tensor

from backstory.models import Prediction
from backstory.models.positions import all_positions
from backstory.utils.arguments import checked


@dataclass(frozen=True)
class TokenScores:
    """Figures of B x T tokens. A position that was not scored holds NaN, rank 0 and candidates 0."""

    log_prob: Tensor
    """(B, T): log p of the token, nats."""
    rank: Tensor
    """(B, T) int64: 1 + the number of types strictly likelier than the token, so that types equally likely share a rank."""
    entropy: Tensor
    """(B, T): entropy of the whole distribution, nats."""
    candidates: Tensor
    """(B, T, k) int64: the likeliest types, likeliest first."""
    candidate_log_probs: Tensor
    """(B, T, k), nats."""
    log_mass: Tensor
    """(B, T): log of the mass of the `members`, nats; of none, minus infinity."""


@torch.no_grad()
def log_mass(prediction: Prediction, rows: Tensor, times: Tensor, members: Tensor) -> Tensor:
    """Return the log of the mass of the tokens `members` (M,) at the positions (rows[i], times[i]): (n,) float64.

    Works through the whole distribution, 2^22 log-probabilities at once: call it in the precision's context.
    """
    masses = [table[:, members].double().logsumexp(1) for _, _, table in prediction.tables(rows, times)]
    return torch.cat(masses) if masses else torch.zeros(0, dtype=torch.float64, device=rows.device)


@checked(top=0)
@torch.no_grad()
def token_scores(
    prediction: Prediction,
    targets: Tensor,
    scored: Tensor | None = None,
    top: int = 0,
    members: Tensor | None = None,
) -> TokenScores:
    """Return the scores of targets (B, T), with the `top` likeliest types (k = top, or V where there are fewer).

    `members` (M,) are the tokens whose mass is computed, if any.
    `scored` (B, T) bool leaves positions out. Works through the whole distribution, 2^22 log-probabilities at once: call it
    in the precision's context, as a reader does. Everything is computed in the dtype of `log_probs()`.
    """
    if members is not None and (members.ndim != 1 or members.dtype != torch.long):
        raise TypeError("members must be a tensor (M,) of int64")
    members = targets.new_zeros(0) if members is None else members
    rows, times = all_positions(targets) if scored is None else torch.where(scored)
    scores = None
    for r, t, table in prediction.tables(rows, times):
        scores = scores or _not_scored(targets, table, top)
        own = table.gather(1, targets[r, t, None])
        scores.log_prob[r, t] = own[:, 0]
        scores.rank[r, t] = 1 + (table > own).sum(1)
        if top:
            scores.candidate_log_probs[r, t], scores.candidates[r, t] = table.topk(scores.candidates.shape[2])
        scores.log_mass[r, t] = table[:, members].logsumexp(1)
        # A type that is impossible adds nothing: 0 log 0 = 0.
        scores.entropy[r, t] = -table.exp().mul_(table.clamp_min_(torch.finfo(table.dtype).min)).sum(1)
    if scores is None:  # one position says the dtype and V, although none is scored
        first = torch.zeros(1, dtype=torch.long, device=targets.device)
        scores = _not_scored(targets, prediction.select(first, first).log_probs(), top)
    return scores


def _not_scored(targets: Tensor, table: Tensor, top: int) -> TokenScores:
    """Return the figures of targets (B, T) of which none is scored, in the dtype of a table (..., V) and with min(top, V)."""
    top = min(top, table.shape[-1])
    missing = torch.full(targets.shape, torch.nan, dtype=table.dtype, device=targets.device)
    return TokenScores(
        log_prob=missing,
        rank=torch.zeros_like(targets),
        entropy=missing.clone(),
        candidates=targets.new_zeros(*targets.shape, top),
        candidate_log_probs=missing[..., None].repeat(1, 1, top),
        log_mass=missing.clone(),
    )
