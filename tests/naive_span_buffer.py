"""The span-based neural buffer written from the equations of its paper: a loop over rows, positions and spans."""

import torch
import torch.nn.functional as F
from torch import Tensor

from backstory.config import SpanBufferConfig
from backstory.models import ComposedModel


def spans_of(config: SpanBufferConfig, states: Tensor, t: int) -> list[tuple[int, Tensor]]:
    """The end of every span that position t may attend to, and its vector, oldest first; states (T, D) of one text."""
    before = torch.zeros_like(states[0])
    length = 1 if config.vectors == "words" else config.span
    count, last = config.size // length, t if config.ends == "present" else t - 1
    if config.alignment == "fixed":
        ends = [e for e in range(length - 1, last + 1, length)]
    else:
        ends = [e for e in range(last, -1, -length) if e - length + 1 >= 0][::-1]
    found = []
    for end in ends[-count:]:
        vector = states[end]
        if config.vectors == "minus":
            vector = vector - states[end - length + 1]
        if config.vectors == "minus-before":
            vector = vector - (states[end - length] if end >= length else before)
        found.append((end, vector))
    return found


def score(model: ComposedModel, config: SpanBufferConfig, h: Tensor, s: Tensor) -> Tensor:
    """gamma, equation 7 and its variants."""
    auxiliary = model.gated.auxiliary  # type: ignore[union-attr]
    if config.attention == "bilinear":
        return (auxiliary.query.weight @ h) @ s
    if config.attention == "linear":
        return auxiliary.v @ (auxiliary.key.weight @ s)
    return auxiliary.v @ torch.tanh(auxiliary.query.weight @ h + auxiliary.key.weight @ s)


def head_states(model: ComposedModel, tokens: Tensor) -> Tensor:
    """(B, T, D): what the head reads of a whole text in evaluation: h or, of a dual connection, ReLU(W_de e + W_dh h + b_d)."""
    embedded = model.embedding(tokens)
    hidden, dual = model.core(embedded, model.core.start(len(tokens))).layers[-1], model.dual
    if dual is None:
        return hidden
    summed = hidden @ dual.weight_dh.t() + dual.bias
    return (summed if dual.weight_de is None else summed + embedded @ dual.weight_de.t()).clamp(min=0)


def probabilities(
    model: ComposedModel, config: SpanBufferConfig, tokens: Tensor, foreign: bool = False
) -> tuple[Tensor, Tensor]:
    """The blend (B, T, V) of a whole text read from its start in evaluation, and lambda (B, T)."""
    states, found, gates = head_states(model, tokens), [], []
    auxiliary, gated = model.gated.auxiliary, model.gated  # type: ignore[union-attr]
    for row in range(len(tokens)):
        memory = row - 1 if foreign else row
        for t in range(tokens.shape[1]):
            h, spans = states[row, t], spans_of(config, states[memory], t)
            p = model.head(states[row, t][None, None]).log_probs()[0, 0].exp()
            if not spans:
                found.append(p)
                gates.append(torch.zeros((), dtype=p.dtype))
                continue
            scores = torch.stack([score(model, config, h, s) for _, s in spans])
            weights = torch.softmax(scores, 0)
            places = [end + (config.values == "following") for end, _ in spans]
            words = F.one_hot(tokens[memory, places], model.vocabulary_size).to(h.dtype)
            if config.prediction == "pointer":
                q = weights @ words
            else:
                values = torch.stack([s for _, s in spans])
                if config.values != "spans":
                    values = words @ model.embedding.weight @ auxiliary.value.weight.t()
                xi = weights @ values + (h if config.residual else 0)
                q = model.head(xi[None, None]).log_probs()[0, 0].exp()
            to_q, to_p = gated.policy.weight @ h
            if config.sentinel:
                to_q = to_q + scores.exp().mean().log()
            to_q, to_p = (torch.stack([to_q, to_p]) / config.gate.temperature).exp()
            gates.append(to_q / (to_q + to_p))
            found.append(gates[-1] * q + (1 - gates[-1]) * p)
    shape = len(tokens), tokens.shape[1]
    return torch.stack(found).unflatten(0, shape), torch.stack(gates).view(shape)
