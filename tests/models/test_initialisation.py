"""Initial weights of the recurrent layers: PyTorch's by default, and those of Keras."""

from typing import Any

import pytest
import torch
from torch import Tensor, nn

from backstory.config import LSTMConfig, ModelConfig, MogrifierConfig, SoftmaxConfig
from backstory.models import build_model
from backstory.models.cores import LSTM, Mogrifier
from backstory.models.cores.initialisation import orthogonal

INPUTS, UNITS = 24, 32


def layer(config: LSTMConfig | MogrifierConfig) -> Any:
    torch.manual_seed(3)
    core = LSTM(config, INPUTS) if isinstance(config, LSTMConfig) else Mogrifier(config, INPUTS)
    return core.layers[0]


def test_an_lstm_begins_as_in_pytorch_by_default() -> None:
    ours = layer(LSTMConfig(layers=1, hidden=UNITS))
    torch.manual_seed(3)
    theirs = nn.LSTM(INPUTS, UNITS)
    for name in ("weight_ih", "weight_hh", "bias_ih", "bias_hh"):
        assert torch.equal(getattr(ours, name), getattr(theirs, f"{name}_l0"))


def check_gates(weight_ih: Tensor, weight_hh: Tensor, bias: Tensor) -> None:
    """Keras draws from U(-a, a) with a^2 = 6 / (inputs + 4 units), and has a forget bias of 1; gates are i, f, g, o."""
    bound = (6 / (INPUTS + 4 * UNITS)) ** 0.5
    assert 0.95 * bound < weight_ih.abs().max() <= bound
    assert weight_ih.std().item() == pytest.approx(bound / 3**0.5, rel=0.05)
    torch.testing.assert_close(weight_hh.T @ weight_hh, torch.eye(UNITS), atol=1e-5, rtol=0)
    expected = torch.zeros(4, UNITS)
    expected[1] = 1
    assert torch.equal(bias, expected.flatten())


@pytest.mark.parametrize("biases", [1, 2])
def test_an_lstm_begins_as_in_keras(biases: Any) -> None:
    ours = layer(LSTMConfig(layers=1, hidden=UNITS, biases=biases, initialisation="keras"))
    check_gates(ours.weight_ih, ours.weight_hh, ours.bias_ih)
    assert ours.bias_hh is None if biases == 1 else not ours.bias_hh.any()


@pytest.mark.parametrize("rank", [None, 20])
def test_a_mogrifier_begins_as_in_keras(rank: int | None) -> None:
    ours = layer(MogrifierConfig(layers=1, hidden=UNITS, rounds=2, rank=rank, initialisation="keras"))
    check_gates(ours.weight_ih, ours.weight_hh, ours.bias)
    for one in ours.rounds.values():
        assert not one.bias.any()
        for matrix in (one.left, one.right):
            if matrix is not None:
                bound = (6 / sum(matrix.shape)) ** 0.5
                assert 0.9 * bound < matrix.abs().max() <= bound


def test_orthogonal_matrices_have_no_preferred_sign() -> None:
    """A QR decomposition without correction has a diagonal of Q with one sign."""
    torch.manual_seed(0)
    first = torch.stack([orthogonal(4, 2)[0, 0] for _ in range(300)])
    assert 0.4 < (first > 0).float().mean() < 0.6


def test_one_range_initialises_all_weights_and_biases() -> None:
    torch.manual_seed(1)
    core = LSTMConfig(layers=2, hidden=UNITS)
    model = build_model(ModelConfig(core=core, head=SoftmaxConfig(tied=False), initial=0.05), 300)
    for name, weights in model.named_parameters():
        assert 0.04 < weights.abs().max() <= 0.05, name
        assert abs(weights.mean()) < 0.05 * 3 / (3 * weights.numel()) ** 0.5, name
