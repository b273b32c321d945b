"""Small statistics and meta-learners to read with."""

import numpy as np
import torch
from small_models import TYPES

from backstory.config.readers import DynamicSettings, GateSettings
from backstory.models import LanguageModel
from backstory.readers.gradient_statistics import Statistics, collect
from backstory.readers.learned import GateNetwork, Learned
from backstory.readers.moving_weights import MovingWeights

BASE = DynamicSettings(rate=0.01, decay=0.05, epsilon=1e-2, segment=4)
"""Settings with which a lively small model changes much."""


def text(count: int, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).integers(0, TYPES, count).astype(np.uint16)


def statistics(model: LanguageModel, moving: str = "all") -> Statistics:
    return collect(model, text(200, seed=5), 0, moving=moving, batch_size=4, segment=3)


def gates(
    model: LanguageModel, settings: GateSettings | None = None, base: DynamicSettings = BASE, size: float = 0.0
) -> Learned:
    """A meta-learner; `size` of its output's weights: 0 leaves it untrained."""
    settings = settings or GateSettings()
    torch.manual_seed(3)
    network = GateNetwork(settings, len(MovingWeights(model, base.moving).names))
    with torch.no_grad():
        network.bias.normal_()
        for parameter in (network.output, network.output_bias):
            parameter.normal_(std=size) if size else None
    return Learned(network, base, (-1.0, 2.0), {})
