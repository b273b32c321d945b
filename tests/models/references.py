"""Slow references written from the equations with plain loops, to compare the fast paths with."""

import math
from collections.abc import Mapping, Sequence

import torch
from torch import Tensor

from backstory.config import TransformerConfig

Weights = Mapping[str, Tensor]


def logistic(x: Tensor) -> Tensor:
    return 1 / (1 + (-x).exp())


def hyperbolic_tangent(x: Tensor) -> Tensor:
    return (x.exp() - (-x).exp()) / (x.exp() + (-x).exp())


def times(matrix: Tensor, vector: Tensor) -> Tensor:
    return torch.stack([(row * vector).sum() for row in matrix])


def cell(gates: Tensor, c: Tensor) -> tuple[Tensor, Tensor]:
    """Gates before their nonlinearities (4H,) and c (H,) -> h, c."""
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
    last, the mask between layers, then the output, and the latent vectors of a mixture. Those of layers are (B, 1 or T, units).
    """
    words, first, *rest = masks
    actual = []
    for row, sentence in enumerate(tokens):
        left = list(rest)
        xs = torch.stack([weights["embedding.weight"][word] * words[word] for word in sentence]) * first[row]
        for number in range(layers):
            if number:
                xs = xs * left.pop(0)[row]
            name = f"core.layers.{number}."
            recurrent = weights[name + "weight_hh"] * left.pop(0)
            h, c = start[number][0][row], start[number][1][row]
            biases = weights[name + "bias_ih"], weights.get(name + "bias_hh")
            mask = left.pop(0)[row] if of_states else None
            xs, _, _ = lstm_layer(xs, h, c, weights[name + "weight_ih"], recurrent, *biases, mask)
        xs = xs * left.pop(0)[row]
        if left:
            actual.append(torch.stack([mixture_probabilities(x, weights, left[0][row, 0]) for x in xs]))
        else:
            actual.append(torch.stack([softmax_probabilities(x, weights) for x in xs]))
    return torch.stack(actual)


def rms_norm(x: Tensor, weight: Tensor) -> Tensor:
    return x / ((x * x).sum() / len(x) + torch.finfo(x.dtype).eps).sqrt() * weight


def layer_norm(x: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
    centred = x - x.sum() / len(x)
    return centred / ((centred * centred).sum() / len(x) + 1e-5).sqrt() * weight + bias


def gelu(x: Tensor) -> Tensor:
    return x * (1 + torch.erf(x / 2**0.5)) / 2


def turned(x: Tensor, position: int) -> Tensor:
    """A query or key (d,) as rotary positions have it: units i and i + d/2 as a complex number, times e^(i angle)."""
    half = len(x) // 2
    actual = list(x)
    for i in range(half):
        angle = torch.tensor(position * 10_000.0 ** (-i / half), dtype=x.dtype)
        actual[i] = x[i] * angle.cos() - x[i + half] * angle.sin()
        actual[i + half] = x[i] * angle.sin() + x[i + half] * angle.cos()
    return torch.stack(actual)


def sinusoid(position: int, size: int) -> Tensor:
    angles = [position * 10_000.0 ** (-(i // 2 * 2) / (2 * ((size + 1) // 2))) for i in range(size)]
    return torch.tensor([math.cos(a) if i % 2 else math.sin(a) for i, a in enumerate(angles)], dtype=torch.float64)


def transformer(config: TransformerConfig, weights: Weights, xs: Tensor, masks: Sequence[Tensor]) -> list[list[Tensor]]:
    """One row from its beginning: embedded words xs (T, E) -> the vectors of every layer at every step.

    The masks are of the input, of each layer's weights of attention (N, T, K), whose last T keys are of the text, of what
    attention adds (T, H) and of what feed-forward adds (T, H). All are ones where nothing is dropped.
    """
    left, units, after = list(masks), config.hidden, config.norm == "post"
    each = units // config.heads

    def linear(name: str, x: Tensor) -> Tensor:
        actual = times(weights[f"{name}.weight"], x) if f"{name}.weight" in weights else x
        return actual + weights.get(f"{name}.bias", torch.zeros(()))

    def norm(name: str, x: Tensor) -> Tensor:
        return (
            layer_norm(x, weights[f"{name}.weight"], weights[f"{name}.bias"])
            if after
            else rms_norm(x, weights[name + ".weight"])
        )

    vectors, mask = [], left.pop(0)
    for t, x in enumerate(xs):
        x = linear("entering", x) * units**0.5
        if config.positions == "sinusoidal":
            x = x + sinusoid(t % config.window if config.chunked else t, units)
        vectors.append(x * mask)
    layers = []
    for number in range(config.layers):
        name = f"layers.{number}."
        of_weights, of_attention, of_feed_forward = left.pop(0), left.pop(0), left.pop(0)
        read = vectors if after else [norm(name + "attention_norm", x) for x in vectors]
        made = [linear(name + "attending", x) for x in read]
        added = []
        for t in range(len(xs)):
            first = t - t % config.window if config.chunked else max(0, t - config.window + 1)
            heads = []
            for head in range(config.heads):
                place = slice(head * each, (head + 1) * each)
                q, *pairs = (
                    made[t][:units][place],
                    *((made[s][units : 2 * units][place], s) for s in range(first, t + 1)),
                )
                if config.positions == "rotary":
                    q, pairs = turned(q, t), [(turned(k, s), s) for k, s in pairs]
                shares = softmax(torch.stack([(q * k).sum() / each**0.5 for k, _ in pairs]))
                kept = of_weights[head, t, of_weights.shape[2] - len(xs) :]
                heads.append(
                    sum(p * kept[s] * made[s][2 * units :][place] for p, (_, s) in zip(shares, pairs, strict=True))
                )
            added.append(linear(name + "attended", torch.cat(heads)) * of_attention[t])  # type: ignore[arg-type]
        vectors = [x + a for x, a in zip(vectors, added, strict=True)]
        vectors = [norm(name + "attention_norm", x) for x in vectors] if after else vectors
        activation = gelu if config.activation == "gelu" else torch.relu
        read = vectors if after else [norm(name + "feed_forward_norm", x) for x in vectors]
        added = [linear(name + "outer", activation(linear(name + "inner", x))) for x in read]
        vectors = [x + a * m for x, a, m in zip(vectors, added, of_feed_forward, strict=True)]
        vectors = [norm(name + "feed_forward_norm", x) for x in vectors] if after else vectors
        layers.append(vectors)
    last = vectors if after else [norm("norm", x) for x in vectors]
    return [*layers[:-1], [linear("leaving", x) for x in last]]


def trellis(levels: int, weights: Weights, xs: Tensor, masks: Mapping[str, Tensor]) -> list[list[Tensor]]:
    """One row from its beginning: embedded words xs (T, E) -> h of every level at every step.

    The masks are of the `input` (E,), of what a level reads of the one below (`level`, (H,)), and of the weights that read the
    step before (`weight_ih`, `weight_hh`).
    """

    def rows(name: str) -> Tensor:
        weight = weights[f"weight_{name}"]
        half = weight.shape[1] // 2
        weight = torch.cat([weight[:, :half] * masks[f"weight_{name}"], weight[:, half:]], 1)
        if f"scale_{name}" not in weights:
            return weight
        lengths = weights[f"scale_{name}"]
        return torch.stack(
            [row * length / (row * row).sum().sqrt() for row, length in zip(weight, lengths, strict=True)]
        )

    into, across, nothing = rows("ih"), rows("hh"), torch.zeros(len(weights["bias"]) // 4, dtype=xs.dtype)
    hs, cs, actual = [nothing] * len(xs), [nothing] * len(xs), []
    for _ in range(levels):
        above = []
        for t, x in enumerate(xs):
            words = torch.cat([xs[t - 1] if t else torch.zeros_like(x), x]) * masks["input"].repeat(2)
            below = torch.cat([hs[t - 1] if t else nothing, hs[t]]) * masks["level"].repeat(2)
            gates = times(into, words) + times(across, below) + weights["bias"]
            above.append(cell(gates, cs[t - 1] if t else nothing))
        hs, cs = [h for h, _ in above], [c for _, c in above]
        actual.append(hs)
    return actual
