"""Small models whose predictions are far from uniform, and a stream to read."""

from collections.abc import Callable

import numpy as np
import pytest
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


@pytest.fixture(params=[lstm, mixture])
def model(request: pytest.FixtureRequest) -> ComposedModel:
    return request.param()


@pytest.fixture
def small_lstm() -> ComposedModel:
    return lstm()


@pytest.fixture
def stream() -> Callable[[int], np.ndarray]:
    """A stream of so many random ids."""
    return lambda count: np.random.default_rng(0).integers(0, TYPES, count).astype(np.uint16)
