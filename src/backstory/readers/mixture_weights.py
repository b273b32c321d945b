"""Weights of a mixture along a block: by Bayes' rule with a fixed share, or by a gate (equations: `mixture`, `gate`)."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, Self

import numpy as np
import torch
from torch import Tensor

from backstory.config.readers import MixtureSettings
from backstory.readers.gate import GateInputs, first_gate, gate_features, gates_along


@dataclass(frozen=True)
class Weighing:
    """How weights follow from the words before; each setting is a number, or (R, 1) for R mixtures of one text."""

    by_gate: bool
    share: Any
    rate: Any
    gate_rate: Any

    @classmethod
    def of(cls, points: Sequence[MixtureSettings]) -> Self:
        """Return the weighing of one mixture for each of these settings."""
        settings = ([[getattr(point, name)] for point in points] for name in ("share", "rate", "gate_rate"))
        return cls(points[0].weights == "gate", *map(np.array, settings))

    def start(self, rows: int, experts: int) -> np.ndarray:
        """Return the state before the first position: weights (R, K), or the gate (R, 2, K, F)."""
        return first_gate(rows, experts) if self.by_gate else np.full((rows, experts), 1 / experts)

    def along(
        self, scores: np.ndarray, on: np.ndarray, inputs: GateInputs | None, state: np.ndarray
    ) -> tuple[np.ndarray, np.ndarray]:
        """Return the weights at each position (R, T, K), and the state after the last."""
        if inputs is not None:
            return gates_along(scores, inputs, state, self.gate_rate)
        return weights_along(scores, on, state, self.share, self.rate)


@dataclass
class BlockWeights:
    """Weights of the sum along a block, followed a few steps at a time, in order."""

    weighing: Weighing
    scores: np.ndarray
    """(R, T, K): log-probabilities of the targets."""
    on: np.ndarray
    """(R, T, K) bool: which experts take part."""
    log_shares: np.ndarray | None
    """(B, T, K): a gate's `GateInputs.log_shares`; None without one."""
    state: np.ndarray
    """State before the next step."""
    _features: list[np.ndarray] = field(default_factory=list)

    def follow(self, steps: slice, probabilities: Sequence[Tensor]) -> Tensor:
        """Return the weights (R, t, K) at the next steps, from each expert's probabilities (B, t, V) there."""
        inputs = None
        if self.log_shares is not None:
            self._features.append(gate_features(probabilities))
            inputs = GateInputs(self.log_shares[:, steps], self._features[-1]).rows(len(self.scores))
        along, self.state = self.weighing.along(self.scores[:, steps], self.on[:, steps], inputs, self.state)
        return to_tensor(along, probabilities[0].device)

    def inputs(self) -> GateInputs | None:
        """Return the gate's inputs along the block once it was followed to its end; None without a gate."""
        return None if self.log_shares is None else GateInputs(self.log_shares, np.concatenate(self._features, 1))


def weights_along(
    scores: np.ndarray, on: np.ndarray, weights: np.ndarray, share: Any, rate: Any
) -> tuple[np.ndarray, np.ndarray]:
    """Return the weights v at each position (R, T, K), which sum to one, and those after the last (R, K).

    Log-probabilities of the targets (R, T, K); `on` (R, T, K): one that takes no part keeps its weight for later. Weights
    before the first position (R, K); share and rate may be (R, 1).
    """
    along, experts = np.empty(scores.shape), weights.shape[1]
    for t in range(scores.shape[1]):
        active = weights * on[:, t]
        total = active.sum(1, keepdims=True)
        along[:, t] = active / total
        fit = np.where(on[:, t], rate * scores[:, t], -np.inf)
        likelier = active * np.exp(fit - fit.max(1, keepdims=True))
        learned = np.where(on[:, t], likelier * (total / likelier.sum(1, keepdims=True)), weights)
        weights = (1 - share) * learned + share / experts
    return along, weights


def to_tensor(weights: np.ndarray, device: torch.device) -> Tensor:
    """Return the weights in float32 on a device."""
    return torch.from_numpy(weights.astype(np.float32)).to(device)
