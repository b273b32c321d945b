"""Slow references written from the equations with plain loops, to compare the fast paths with."""

from collections.abc import Mapping, Sequence

import torch
from torch import Tensor

Weights = Mapping[str, Tensor]


def logistic(x: Tensor) -> Tensor:
    return 1 / (1 + (-x).exp())


def hyperbolic_tangent(x: Tensor) -> Tensor:
    return (x.exp() - (-x).exp()) / (x.exp() + (-x).exp())


def times(matrix: Tensor, vector: Tensor) -> Tensor:
    return torch.stack([(row * vector).sum() for row in matrix])


def cell(gates: Tensor, c: Tensor) -> tuple[Tensor, Tensor]:
    """What the gates are functions of (4H,) and c (H,) -> h, c."""
    units = len(c)
    i, f = logistic(gates[:units]), logistic(gates[units : 2 * units])
    g, o = hyperbolic_tangent(gates[2 * units : 3 * units]), logistic(gates[3 * units :])
    c = f * c + i * g
    return o * hyperbolic_tangent(c), c


def lstm_layer(
    xs: Tensor,
    h: Tensor,
    c: Tensor,
    weight_ih: Tensor,
    weight_hh: Tensor,
    bias_ih: Tensor,
    bias_hh: Tensor | None = None,
    mask: Tensor | None = None,
) -> tuple[Tensor, Tensor, Tensor]:
    """One row: xs (T, I), h and c (H,), a mask (H,) on the state that is read -> outputs (T, H), h, c."""
    outputs = []
    for x in xs:
        read = h if mask is None else mask * h
        gates = times(weight_ih, x) + bias_ih + times(weight_hh, read) + (0 if bias_hh is None else bias_hh)
        h, c = cell(gates, c)
        outputs.append(h)
    return torch.stack(outputs), h, c


GatingRound = tuple[Tensor, Tensor | None, Tensor, Tensor | None]
"""Q_l (n, k), Q_r (k, m) or none, b (n,), mask (k,) or none."""


def mogrifier_layer(
    xs: Tensor,
    h: Tensor,
    c: Tensor,
    weight_ih: Tensor,
    weight_hh: Tensor,
    bias: Tensor,
    rounds: Sequence[GatingRound],
    mask: Tensor | None = None,
) -> tuple[Tensor, Tensor, Tensor]:
    """One row, as `lstm_layer`, with the rounds of gating before every cell."""
    outputs = []
    for e in xs:
        state = h if mask is None else mask * h
        for number, (left, right, shift, dropped) in enumerate(rounds, 1):
            other = state if number % 2 else e
            other = other if right is None else times(right, other)
            other = other if dropped is None else dropped * other
            gate = 2 * logistic(times(left, other) + shift)
            e, state = (gate * e, state) if number % 2 else (e, gate * state)
        h, c = cell(times(weight_ih, e) + times(weight_hh, state) + bias, c)
        outputs.append(h)
    return torch.stack(outputs), h, c


def softmax(logits: Tensor) -> Tensor:
    return logits.exp() / logits.exp().sum()


def softmax_probabilities(hidden: Tensor, weights: Weights) -> Tensor:
    """(H,) -> (V,)."""
    output = weights.get("head.weight", weights["embedding.weight"])
    return softmax(times(output, hidden) + weights.get("head.bias", torch.zeros(())))


def mixture_probabilities(hidden: Tensor, weights: Weights, mask: Tensor) -> Tensor:
    """sum_k pi_k softmax(W tanh(W_k h + b_k) + b); the mask (K E,) is the latent dropout's."""
    priors = softmax(times(weights["head.prior.weight"], hidden))
    latents = hyperbolic_tangent(times(weights["head.latent.weight"], hidden) + weights["head.latent.bias"]) * mask
    size, total = weights["embedding.weight"].shape[1], torch.zeros(())
    for k, prior in enumerate(priors):
        total = total + prior * softmax_probabilities(latents[k * size : (k + 1) * size], weights)
    return total


def awd_lstm(
    weights: Weights,
    layers: int,
    tokens: Tensor,
    start: list[tuple[Tensor, Tensor]],
    masks: list[Tensor],
    of_states: bool = False,
) -> Tensor:
    """The probabilities (B, T, V) of an AWD-LSTM in training, with the dropout masks in the order in which they apply.

    That is: words (V, 1), input, then for each layer its recurrent weights, its state if those are dropped and, but after the
    last, the locked mask between layers, then the output, and the latent vectors of a mixture.
    """
    words, first, *rest = masks
    found = []
    for row, sentence in enumerate(tokens):
        left = list(rest)
        xs = torch.stack([weights["embedding.weight"][word] * words[word] for word in sentence]) * first[row, 0]
        for number in range(layers):
            if number:
                xs = xs * left.pop(0)[row, 0]
            name = f"core.layers.{number}."
            recurrent = weights[name + "weight_hh"] * left.pop(0)
            h, c = start[number][0][row], start[number][1][row]
            biases = weights[name + "bias_ih"], weights.get(name + "bias_hh")
            mask = left.pop(0)[row] if of_states else None
            xs, _, _ = lstm_layer(xs, h, c, weights[name + "weight_ih"], recurrent, *biases, mask)
        xs = xs * left.pop(0)[row, 0]
        if left:
            found.append(torch.stack([mixture_probabilities(x, weights, left[0][row, 0]) for x in xs]))
        else:
            found.append(torch.stack([softmax_probabilities(x, weights) for x in xs]))
    return torch.stack(found)
