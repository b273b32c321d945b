"""Slow references written from the equations with plain loops, to compare the fast paths with."""

from collections.abc import Mapping

import torch
from torch import Tensor

Weights = Mapping[str, Tensor]


def logistic(x: Tensor) -> Tensor:
    return 1 / (1 + (-x).exp())


def hyperbolic_tangent(x: Tensor) -> Tensor:
    return (x.exp() - (-x).exp()) / (x.exp() + (-x).exp())


def times(matrix: Tensor, vector: Tensor) -> Tensor:
    return torch.stack([(row * vector).sum() for row in matrix])


def lstm_layer(
    xs: Tensor, h: Tensor, c: Tensor, weight_ih: Tensor, weight_hh: Tensor, bias_ih: Tensor, bias_hh: Tensor
) -> tuple[Tensor, Tensor, Tensor]:
    """One row: xs (T, I), h and c (H,) -> outputs (T, H), h, c."""
    units, outputs = len(h), []
    for x in xs:
        gates = times(weight_ih, x) + bias_ih + times(weight_hh, h) + bias_hh
        i, f = logistic(gates[:units]), logistic(gates[units : 2 * units])
        g, o = hyperbolic_tangent(gates[2 * units : 3 * units]), logistic(gates[3 * units :])
        c = f * c + i * g
        h = o * hyperbolic_tangent(c)
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
    weights: Weights, layers: int, tokens: Tensor, start: list[tuple[Tensor, Tensor]], masks: list[Tensor]
) -> Tensor:
    """The probabilities (B, T, V) of an AWD-LSTM in training, with the dropout masks in the order in which they apply.

    That is: words (V, 1), input, then for each layer its recurrent weights and, but after the last, the locked mask
    between layers, then the output, and the latent vectors of a mixture.
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
            biases = weights[name + "bias_ih"], weights[name + "bias_hh"]
            xs, _, _ = lstm_layer(xs, h, c, weights[name + "weight_ih"], recurrent, *biases)
        xs = xs * left.pop(0)[row, 0]
        if left:
            found.append(torch.stack([mixture_probabilities(x, weights, left[0][row, 0]) for x in xs]))
        else:
            found.append(torch.stack([softmax_probabilities(x, weights) for x in xs]))
    return torch.stack(found)
