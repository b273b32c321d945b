"""Small models whose predictions are far from uniform."""

from typing import Any

import torch

from backstory.config import (
    DualConfig,
    EmbeddingConfig,
    GateConfig,
    LSTMConfig,
    MixtureConfig,
    ModelConfig,
    MogrifierConfig,
    SoftmaxConfig,
    SpanBufferConfig,
)
from backstory.models import ComposedModel, build_model

TYPES = 13


def lively(config: ModelConfig) -> ComposedModel:
    """A model with weights as large as after training."""
    torch.manual_seed(0)
    model = build_model(config, TYPES)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.mul_(5)
    return model.eval()


def lstm() -> ComposedModel:
    return lively(ModelConfig(EmbeddingConfig(7), LSTMConfig(layers=2, hidden=9), SoftmaxConfig()))


def buffered(**settings: Any) -> ComposedModel:
    """With a span buffer, whose gate is as sharp in evaluation as it was made."""
    chosen: dict[str, Any] = {"size": 12, "span": 3, "gate": GateConfig(temperature=1.0)}
    core = LSTMConfig(layers=2, hidden=9)
    return lively(ModelConfig(EmbeddingConfig(7), core, SoftmaxConfig(), SpanBufferConfig(**chosen | settings)))


def dual(**settings: Any) -> ComposedModel:
    """A Dual Mogrifier, whose d_t has another size than h_t."""
    core = MogrifierConfig(layers=2, hidden=9, output=8, rank=3)
    return lively(ModelConfig(EmbeddingConfig(7), core, dual=DualConfig(**settings)))


def mixture() -> ComposedModel:
    return lively(ModelConfig(EmbeddingConfig(7), LSTMConfig(layers=2, hidden=9), MixtureConfig(experts=3)))
