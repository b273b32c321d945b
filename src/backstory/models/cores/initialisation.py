"""Initial weights of recurrent layers: those of PyTorch, and those of Keras.

Keras draws the weights of a layer's inputs from U(-a, a) with a^2 = 6 / (inputs + outputs) (Glorot and Bengio 2010, eq. 16),
takes a random orthogonal matrix for the recurrent ones (Saxe, McClelland and Ganguli 2014), and biases the forget gate by 1
(Jozefowicz, Zaremba and Sutskever 2015).
"""

import torch
from torch import Tensor

from backstory.config.cores import Initialisation


def uniform(*shape: int, fan_in: int) -> Tensor:
    """Return weights from U(-a, a), a the inverse square root of `fan_in`, as PyTorch has them."""
    bound = fan_in**-0.5
    return torch.empty(*shape).uniform_(-bound, bound)


def glorot(outputs: int, inputs: int) -> Tensor:
    """Return weights (outputs, inputs) from U(-a, a), a^2 = 6 / (inputs + outputs)."""
    bound = (6 / (inputs + outputs)) ** 0.5
    return torch.empty(outputs, inputs).uniform_(-bound, bound)


def orthogonal(rows: int, columns: int) -> Tensor:
    """Return a matrix (rows, columns), of at least as many rows, with orthonormal columns, any such as likely as another."""
    matrix = torch.empty(rows, columns)
    if matrix.is_meta:  # only outlined, where `normal_` loads torch's compiler
        return matrix
    q, r = torch.linalg.qr(matrix.normal_())
    return q * r.diagonal().sign()


def gate_weights(inputs: int, units: int, kind: Initialisation) -> tuple[Tensor, Tensor, Tensor]:
    """Return input weights (4H, I), recurrent weights (4H, H) and biases (4H,) of the gates i, f, g and o of H units."""
    if kind == "keras":
        bias = torch.zeros(4 * units)
        bias[units : 2 * units] = 1.0
        return glorot(4 * units, inputs), orthogonal(4 * units, units), bias
    return (
        uniform(4 * units, inputs, fan_in=units),
        uniform(4 * units, units, fan_in=units),
        uniform(4 * units, fan_in=units),
    )
