"""Small models to read with, and a stream to read."""

from collections.abc import Callable

import numpy as np
import pytest
from small_models import TYPES, lstm, mixture

from backstory.models import ComposedModel


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
