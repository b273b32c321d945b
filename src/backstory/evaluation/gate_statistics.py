"""What the gate of a model with two predictions makes of them: its use of the second, and what other gates would make.

`p` is the head's prediction and `q` the second one, each by itself; the oracle takes for every token the better of them, which
no gate can know: a lower bound, and never a result. Temperatures and constant lambdas are compared from the same two figures of
a token, so all of it takes one reading; what is best among them is so on the very text that was read, and no result either.
"""

import math
from typing import Any

import torch
from torch import Tensor

from backstory.config import RewardConfig
from backstory.config.units import perplexity
from backstory.models import Blend, Precision, Prediction, Tempered
from backstory.readers.blocks import Block

TEMPERATURES = (0.01, 0.1, 1.0, 10.0, 100.0)
CONSTANTS = tuple(n / 50 for n in range(51))
EPSILON = 1e-10
LEAST = -80.0
"""What log q counts for where it is less: a pointer gives nothing at all to a word that it has not seen."""


def reward(log_p: Tensor, log_q: Tensor, settings: RewardConfig) -> Tensor:
    """r = f(min((q / (p + eps))^kappa, a) - b), f(z) = z, or beta z below 0 (eqs. 12 and 13); no gradient goes through it."""
    ratio = log_q.detach() - torch.logaddexp(log_p.detach(), torch.full_like(log_p, math.log(EPSILON)))
    # In logarithms, as q / p to the fifth overflows.
    z = (settings.power * ratio).clamp(max=math.log(settings.ceiling)).exp() - settings.baseline
    return torch.where(z < 0, settings.slope * z, z)


def own_blend(prediction: Prediction) -> Blend:
    """The blend that a model with an auxiliary prediction makes, inside those of readers that wrap it."""
    found = prediction
    while isinstance(inner := found.parts().get("p"), Blend | Tempered):
        found = inner
    assert isinstance(found, Blend)
    return found


class PolicyWatch:
    """Adds up, block by block, what the gate and others make of every token."""

    def __init__(self, precision: Precision, settings: RewardConfig | None = None) -> None:
        self.precision, self.settings = precision, settings or RewardConfig()
        self.sums: dict[str, float] = {}
        self.tokens = 0

    @torch.no_grad()
    def __call__(self, block: Block, prediction: Prediction, log_prob: Tensor) -> None:
        blend = own_blend(prediction)
        with self.precision.context(log_prob.device):
            p, q = (part.log_prob(block.targets).double()[block.scored] for part in (blend.p, blend.q))
        q = q.clamp(min=LEAST)
        logits = blend.gate_logits.double()[block.scored]
        shut = torch.isneginf(logits[:, 0])  # where the buffer is empty there is no choice
        gate = torch.log_softmax(logits / blend.temperature, -1)
        found = {
            "pou": (gate[:, 0] >= math.log(0.5)).double(),
            "lambda": gate[:, 0].exp(),
            "reward": reward(p, q, self.settings),
            "wins": ((q > p) & ~shut).double(),
            "p": -p,
            "q": -q,
            "oracle": -torch.where(shut, p, torch.maximum(p, q)),
        }
        found |= {f"temperature {t:g}": _blended(p, q, torch.log_softmax(logits / t, -1)) for t in TEMPERATURES}
        shares = torch.tensor(CONSTANTS, dtype=p.dtype, device=p.device)[:, None]
        constant = torch.stack([shares.log(), (1 - shares).log()], -1)
        blended = torch.where(shut, -p, _blended(p, q, constant))
        found |= {f"constant {share:g}": values for share, values in zip(CONSTANTS, blended, strict=True)}
        # All in one: on a GPU every number that is fetched by itself waits for the device.
        for name, total in zip(found, torch.stack(list(found.values())).sum(1).tolist(), strict=True):
            self.sums[name] = self.sums.get(name, 0.0) + total
        self.tokens += len(p)

    def saved(self) -> dict[str, Any]:
        """What was added up so far."""
        return {"sums": self.sums, "tokens": self.tokens}

    def load(self, saved: dict[str, Any]) -> None:
        """Go on from there."""
        self.sums, self.tokens = saved["sums"], saved["tokens"]

    def figures(self) -> dict[str, Any]:
        """Means per token; perplexities of each part by itself, of the oracle, of other temperatures and a constant gate."""
        mean = {name: total / self.tokens for name, total in self.sums.items()}
        best = min(CONSTANTS, key=lambda share: mean[f"constant {share:g}"])
        return {
            "utilization": mean["pou"],
            "mean_lambda": mean["lambda"],
            "mean_reward": mean["reward"],
            "win_share": mean["wins"],
            "p_perplexity": perplexity(mean["p"]),
            "q_perplexity": perplexity(mean["q"]),
            "oracle_perplexity": perplexity(mean["oracle"]),
            "best_constant_lambda": best,
            "best_constant_perplexity": perplexity(mean[f"constant {best:g}"]),
            "temperatures": {f"{t:g}": perplexity(mean[f"temperature {t:g}"]) for t in TEMPERATURES},
        }


def _blended(log_p: Tensor, log_q: Tensor, gates: Tensor) -> Tensor:
    """-log of the blend (..., N), with log lambda and log (1 - lambda) in gates (..., N or 1, 2)."""
    return -torch.logaddexp(gates[..., 1] + log_p, gates[..., 0] + log_q)
