"""Float32 is exact on a GPU too, whatever PyTorch settings the process used before."""

from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from catalogue import lstm

from backstory.models import choose_device
from backstory.readers import StaticReader
from backstory.readers.moving_weights import MovingWeights

BACKENDS: Any = torch.backends


@pytest.fixture(autouse=True)
def restored() -> Iterator[None]:
    yield
    choose_device("cpu")


def older_settings() -> None:
    """PyTorch's defaults, and TF32 for matrix products."""
    BACKENDS.cudnn.allow_tf32 = True
    torch.set_float32_matmul_precision("high")


def newer_settings() -> None:
    """Settings that differ between layers, for which PyTorch's older getters raise an error."""
    BACKENDS.cudnn.conv.fp32_precision, BACKENDS.cudnn.rnn.fp32_precision = "tf32", "ieee"
    BACKENDS.cuda.matmul.fp32_precision = "tf32"


@pytest.mark.parametrize("settings", [older_settings, newer_settings])
@pytest.mark.parametrize(
    "begin", [lambda: choose_device("cpu"), lambda: StaticReader(lstm()), lambda: MovingWeights(lstm())]
)
def test_products_of_float32_are_exact_and_pytorch_tells_so(
    settings: Callable[[], None], begin: Callable[[], object]
) -> None:
    settings()
    begin()
    assert not BACKENDS.cudnn.allow_tf32 and not BACKENDS.cuda.matmul.allow_tf32
    assert torch.get_float32_matmul_precision() == "highest"
    for layers in (BACKENDS.cudnn.conv, BACKENDS.cudnn.rnn, BACKENDS.cuda.matmul):
        assert layers.fp32_precision == "ieee"
    with BACKENDS.cudnn.flags(enabled=False):
        assert not BACKENDS.cudnn.enabled
