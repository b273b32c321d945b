"""Statistics of the gate between two predictions: its use of the second, and the perplexity with other gates.

`p` is the head's prediction and `q` the auxiliary one, each alone. The oracle takes the better of both for every token,
which no gate can know, so it is a lower bound and never a result. Temperatures and constant lambdas are compared from
the same two figures per token, so one reading is enough. The best of them is chosen on the text that was read, so it is
not a result either.
"""

import math
from typing import Any, Self

import torch
from torch import Tensor

from backstory.config import RewardConfig
from backstory.config.options import EvalOptions
from backstory.evaluation.metrics.metric import Metric
from backstory.evaluation.opening import EvalSetup
from backstory.evaluation.reading_loop import ScoredBlock
from backstory.models import ComposedModel, Interpolation, Precision, Prediction
from backstory.results.evaluation_record import PolicyRecord
from backstory.utils.scores import perplexity

TEMPERATURES = (0.01, 0.1, 1.0, 10.0, 100.0)
CONSTANTS = tuple(n / 50 for n in range(51))
EPSILON = 1e-10
LEAST = -80.0
"""Lower limit of log q, because a pointer gives no probability to a word that it has not seen."""


def reward(log_p: Tensor, log_q: Tensor, settings: RewardConfig) -> Tensor:
    """r = f(min((q / (p + eps))^kappa, a) - b), f(z) = z, or beta z below 0 (eqs. 12 and 13); no gradient goes through it."""
    ratio = log_q.detach() - torch.logaddexp(log_p.detach(), torch.full_like(log_p, math.log(EPSILON)))
    # In logarithms, as q / p to the fifth overflows.
    z = (settings.power * ratio).clamp(max=math.log(settings.ceiling)).exp() - settings.baseline
    return torch.where(z < 0, settings.slope * z, z)


def own_blend(prediction: Prediction) -> Interpolation:
    """Return the blend of a model with an auxiliary prediction, inside those of readers that wrap it."""
    blend, inside = None, prediction
    while inside is not None:
        blend = inside if isinstance(inside, Interpolation) else blend
        inside = inside.parts().get("p")
    assert blend is not None
    return blend


class GateStatistics(Metric):
    """Sums over tokens of the scores of the gate (its PoU, eq. 15), and of other gates in its place."""

    name = "policy"
    takes_lines = True

    def __init__(self, precision: Precision, settings: RewardConfig | None = None) -> None:
        self.precision, self.settings = precision, settings or RewardConfig()
        self.sums: dict[str, float] = {}
        self.tokens = 0

    @classmethod
    def for_evaluation(cls, setup: EvalSetup, options: EvalOptions) -> Self | None:
        model = setup.run.model
        if not isinstance(model, ComposedModel) or model.gated is None:  # no other kind of model has a gate
            return None
        return cls(setup.reader.precision, model.gated.config.gate.reward)

    @torch.no_grad()
    def update(self, scored: ScoredBlock) -> None:
        block, prediction, log_prob = scored
        blend = own_blend(prediction)
        with self.precision.context(log_prob.device):
            p, q = (part.log_prob(block.targets).double()[block.scored] for part in (blend.p, blend.q))
        q = q.clamp(min=LEAST)
        logits = blend.gate_logits.double()[block.scored]
        closed = torch.isneginf(logits[:, 0])  # an empty buffer leaves no choice
        gate = torch.log_softmax(logits / blend.temperature, -1)
        values = {
            "pou": (gate[:, 0] >= math.log(0.5)).double(),
            "lambda": gate[:, 0].exp(),
            "reward": reward(p, q, self.settings),
            "wins": ((q > p) & ~closed).double(),
            "p": -p,
            "q": -q,
            "oracle": -torch.where(closed, p, torch.maximum(p, q)),
        }
        values |= {f"temperature {t:g}": _blended(p, q, torch.log_softmax(logits / t, -1)) for t in TEMPERATURES}
        shares = torch.tensor(CONSTANTS, dtype=p.dtype, device=p.device)[:, None]
        constant = torch.stack([shares.log(), (1 - shares).log()], -1)
        blended = torch.where(closed, -p, _blended(p, q, constant))
        values |= {f"constant {share:g}": nats for share, nats in zip(CONSTANTS, blended, strict=True)}
        # Fetched together, because on a GPU each separate fetch waits for the device.
        for name, total in zip(values, torch.stack(list(values.values())).sum(1).tolist(), strict=True):
            self.sums[name] = self.sums.get(name, 0.0) + total
        self.tokens += len(p)

    def state_dict(self) -> dict[str, Any]:
        return {"sums": self.sums, "tokens": self.tokens}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.sums, self.tokens = state["sums"], state["tokens"]

    def result(self) -> PolicyRecord:
        """Return means per token, and perplexities: each part alone, the oracle, other temperatures, a constant gate."""
        mean = {name: total / self.tokens for name, total in self.sums.items()}
        best = min(CONSTANTS, key=lambda share: mean[f"constant {share:g}"])
        return PolicyRecord(
            utilization=mean["pou"],
            mean_lambda=mean["lambda"],
            mean_reward=mean["reward"],
            win_share=mean["wins"],
            p_perplexity=perplexity(mean["p"]),
            q_perplexity=perplexity(mean["q"]),
            oracle_perplexity=perplexity(mean["oracle"]),
            best_constant_lambda=best,
            best_constant_perplexity=perplexity(mean[f"constant {best:g}"]),
            temperatures={f"{t:g}": perplexity(mean[f"temperature {t:g}"]) for t in TEMPERATURES},
        )


def _blended(log_p: Tensor, log_q: Tensor, gates: Tensor) -> Tensor:
    """-log of the blend (..., N), with log lambda and log (1 - lambda) in gates (..., N or 1, 2)."""
    return -torch.logaddexp(gates[..., 1] + log_p, gates[..., 0] + log_q)
