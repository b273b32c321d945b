"""Small models whose predictions are far from uniform."""

import torch

from backstory.config import EmbeddingConfig, LSTMConfig, MixtureConfig, ModelConfig, SoftmaxConfig
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


def mixture() -> ComposedModel:
    return lively(ModelConfig(EmbeddingConfig(7), LSTMConfig(layers=2, hidden=9), MixtureConfig(experts=3)))
