"""The Transformer core (Vaswani et al. 2017): causal attention over a window that slides, or starts again at its end.

Pre-norm layers are x = x + Attention(Norm(x)), x = x + FeedForward(Norm(x)); post-norm layers x = Norm(x + Attention(x)),
x = Norm(x + FeedForward(x)). The state holds the keys and values of the window, so that chunks of a text are read exactly as
the whole text.
"""

from typing import NamedTuple, cast

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from backstory.config import TransformerConfig
from backstory.models.contract import Capabilities, Core, CoreOutput
from backstory.models.dropout import keep_mask, locked_dropout
from backstory.utils.errors import UserError

Rotary = tuple[Tensor, Tensor]
"""cos and sin (positions, d/2) of the angles of rotary positions."""

QUERIES = 128
"""Positions whose scores are computed at once, unless the window is longer."""


class TransformerState(NamedTuple):
    """Keys and values (B, heads, window - 1, d) of each layer, oldest first, without rotary positions."""

    keys: tuple[Tensor, ...]
    values: tuple[Tensor, ...]
    read: Tensor
    """(B,) int64: tokens read before; of a window that starts again, those since it did."""


class TransformerLayer(nn.Module):
    """Attention and feed-forward, each with its norm. `attending` is qkv_proj, `attended` o_proj, `inner` up_proj, `outer`
    down_proj.

    The attributes keep these names because they name the parameters in checkpoints and in the hash of the weights.
    """

    def __init__(self, config: TransformerConfig) -> None:
        super().__init__()
        self.config = config
        units, feed_forward = config.hidden, config.feed_forward or 4 * config.hidden
        self.attention_norm, self.feed_forward_norm = _norm(config), _norm(config)
        self.attending = _linear(units, 3 * units, config)
        self.attended = _linear(units, units, config)
        self.inner = _linear(units, feed_forward, config)
        self.outer = _linear(feed_forward, units, config)

    def forward(
        self, x: Tensor, keys: Tensor, values: Tensor, reach: Tensor, rotary: Rotary | None
    ) -> tuple[Tensor, Tensor, Tensor]:
        """Read x (B, T, H) after the keys and values of the window; return the output, and the window's next keys and values.

        `reach` (B, T) counts the keys that a position sees; `rotary` is the table of rotary positions, if they are used.
        """
        if self.config.norm == "pre":
            added, keys, values = self._attention(self.attention_norm(x), keys, values, reach, rotary)
            x = x + added
            return x + self._feed_forward(self.feed_forward_norm(x)), keys, values
        added, keys, values = self._attention(x, keys, values, reach, rotary)
        x = self.attention_norm(x + added)
        return self.feed_forward_norm(x + self._feed_forward(x)), keys, values

    def _attention(
        self, x: Tensor, keys: Tensor, values: Tensor, reach: Tensor, rotary: Rotary | None
    ) -> tuple[Tensor, Tensor, Tensor]:
        config, before = self.config, keys.shape[2]
        q, k, v = (part.unflatten(2, (config.heads, -1)).transpose(1, 2) for part in self.attending(x).chunk(3, 2))
        k, v = torch.cat([keys.to(k.dtype), k], 2), torch.cat([values.to(v.dtype), v], 2)
        # Copies, so that a stored state does not hold on to the whole segment.
        keys, values = (new[:, :, new.shape[2] - before :].to(keys.dtype, copy=True) for new in (k, v))
        if rotary is not None:
            q, k = apply_rotary(q, rotary), apply_rotary(k, rotary)
        dropout = config.attention_dropout if self.training else 0.0
        attention = windowed_attention(q, k, v, reach, dropout)
        return self._dropped(self.attended(attention.transpose(1, 2).flatten(2))), keys, values

    def _feed_forward(self, x: Tensor) -> Tensor:
        activation = F.gelu if self.config.activation == "gelu" else F.relu
        return self._dropped(self.outer(activation(self.inner(x))))

    def _dropped(self, x: Tensor) -> Tensor:
        """Apply dropout with a mask per token, unlike locked dropout."""
        dropout = self.config.layer_dropout
        return x * keep_mask(tuple(x.shape), dropout, x) if self.training and dropout else x


class Transformer(Core):
    """Layers of `hidden` units. If the sizes around them differ, `entering` is in_proj and `leaving` out_proj, by the names in
    checkpoints."""

    def __init__(self, config: TransformerConfig, inputs: int, output: int | None = None) -> None:
        """Raises UserError if the heads do not divide the units evenly."""
        super().__init__()
        _check(config)
        output = output or config.hidden
        self.config, self.output_size = config, output
        self.capabilities = Capabilities(maximum_length=config.window if config.chunked else None)
        units = config.hidden
        self.entering = None if inputs == units else _linear(inputs, units, config)
        self.layers = nn.ModuleList(TransformerLayer(config) for _ in range(config.layers))
        self.norm = _norm(config) if config.norm == "pre" else None
        self.leaving = None if output == units else _linear(units, output, config)

    def start(self, batch_size: int) -> TransformerState:
        config, like = self.config, next(self.parameters())
        shape = batch_size, config.heads, config.window - 1, config.hidden // config.heads
        keys, values = (tuple(like.new_zeros(shape) for _ in self.layers) for _ in range(2))
        return TransformerState(keys, values, like.new_zeros(batch_size, dtype=torch.long))

    def forward(self, embedded: Tensor, state: TransformerState, tokens: Tensor | None = None) -> CoreOutput:
        config, steps = self.config, embedded.shape[1]
        read = state.read.unsqueeze(1) + torch.arange(steps, device=embedded.device)
        x = embedded if self.entering is None else self.entering(embedded).to(embedded.dtype)
        # As published: embeddings are small beside positions and the layers' outputs.
        x = x * config.hidden**0.5
        if config.chunked:
            read = read % config.window
        if config.positions == "sinusoidal":
            x = x + _sinusoids(read, config.hidden, x)
        x = locked_dropout(x, config.input_dropout, self.training)
        rotary = None
        if config.positions == "rotary":
            rotary = rotary_table(config.window - 1 + steps, config.hidden // config.heads, embedded)
        reach, outputs, keys, values = (read + 1).clamp(max=config.window), [], [], []
        for number, layer in enumerate(self.layers):
            x, k, v = layer(x, state.keys[number], state.values[number], reach, rotary)
            outputs.append(x)
            keys.append(k)
            values.append(v)
        x = x if self.norm is None else self.norm(x)
        x = x if self.leaving is None else self.leaving(x)
        next_state = TransformerState(tuple(keys), tuple(values), read[:, -1] + 1)
        dropped = locked_dropout(x, config.output_dropout, self.training)
        return CoreOutput((*outputs[:-1], x), dropped, next_state)

    def extra_activations(self, steps: int) -> float:
        # Masks and vectors between the parts; keys and values of the window and of the segment, and of the state before it.
        config, before = self.config, self.config.window - 1
        vectors = config.hidden * (4.5 + 3.2 * (before + steps) / steps)
        attention = 3.3 * config.heads * (before + steps) if config.attention_dropout else 0
        return config.layers * (vectors + attention)


def _check(config: TransformerConfig) -> None:
    rotary = config.positions == "rotary"
    unit = config.heads * (2 if rotary else 1)
    if config.hidden % unit:
        why = f"{config.heads} heads" + (" of an even size, which rotary positions need" if rotary else "")
        raise UserError(
            f"model.core.hidden must be a multiple of {unit} for {why}, and {config.hidden} is not; "
            f"use {-(-config.hidden // unit) * unit}"
        )


def _norm(config: TransformerConfig) -> nn.Module:
    return nn.RMSNorm(config.hidden) if config.norm == "pre" else nn.LayerNorm(config.hidden)


def _linear(inputs: int, outputs: int, config: TransformerConfig) -> nn.Linear:
    """Return a layer with weights from U(-1 / sqrt(inputs), 1 / sqrt(inputs)), and biases of 0 if norms come after."""
    layer = nn.Linear(inputs, outputs, bias=config.norm == "post")
    nn.init.uniform_(layer.weight, -(inputs**-0.5), inputs**-0.5)
    if config.norm == "post":
        nn.init.zeros_(cast(Tensor, layer.bias))
    return layer


def _sinusoids(positions: Tensor, size: int, like: Tensor) -> Tensor:
    """Return, for positions (B, T), (B, T, size): sin(p 10000^(-2i/size)) and the cosine, alternately."""
    # In float64: an angle grows with the position, and float32 would lose its fraction in a long text.
    angles = positions.double().unsqueeze(2) * rotary_rates((size + 1) // 2, positions.double())
    waves = torch.stack([angles.sin(), angles.cos()], 3).flatten(2)
    return waves[:, :, :size].to(like.dtype)


def windowed_attention(queries: Tensor, keys: Tensor, values: Tensor, reach: Tensor, dropout: float = 0.0) -> Tensor:
    """Return softmax(q k / sqrt(d)) v over the last reach[b, t] keys up to position t's own.

    queries (B, N, T, d); keys and values (B, N, R + T, d), of which the first R are from before the segment; reach (B, T)
    int64, from 1 to R + 1 -> (B, N, T, d). The weights are dropped with probability `dropout`.
    """
    steps = queries.shape[2]
    before = keys.shape[2] - steps
    # A query sees R + 1 keys, so R + 1 queries in a row see twice as many.
    size, outputs = max(before + 1, QUERIES), []
    for first in range(0, steps, size):
        last = min(first + size, steps)
        seen = slice(first, before + last)
        own = torch.arange(before, before + last - first, device=reach.device)
        distance = own.unsqueeze(1) - torch.arange(before + last - first, device=reach.device)
        mask = (distance >= 0) & (distance < reach[:, first:last, None])
        parts = queries[:, :, first:last], keys[:, :, seen], values[:, :, seen], mask.unsqueeze(1)
        outputs.append(_with_dropout(*parts, dropout) if dropout else F.scaled_dot_product_attention(*parts))
    return outputs[0] if len(outputs) == 1 else torch.cat(outputs, 2)


def _with_dropout(queries: Tensor, keys: Tensor, values: Tensor, mask: Tensor, dropout: float) -> Tensor:
    """Return attention of one block of queries, with dropout of every weight."""
    scores = (queries @ keys.transpose(2, 3) * queries.shape[3] ** -0.5).masked_fill(~mask, -torch.inf)
    weights = torch.softmax(scores, 3)
    return (weights * keep_mask(tuple(weights.shape), dropout, weights)).to(values.dtype) @ values


def rotary_table(count: int, size: int, like: Tensor) -> Rotary:
    """Return the table for vectors of this size at the positions 0 to count - 1, in at least float32."""
    wide = torch.promote_types(like.dtype, torch.float32)
    positions = torch.arange(count, device=like.device, dtype=wide)
    angles = positions.unsqueeze(1) * rotary_rates(size // 2, positions)
    return angles.cos(), angles.sin()


def apply_rotary(x: Tensor, table: Rotary) -> Tensor:
    """Rotate x (B, N, T, d), which stands at the last T positions of the table.

    Units i and i + d/2 are rotated by the position times 10000^(-2i/d), so that a product of two rotated vectors depends on
    their distance alone.
    """
    cos, sin = (part[-x.shape[2] :] for part in table)
    a, b = x.chunk(2, 3)
    return torch.cat([a * cos - b * sin, a * sin + b * cos], 3).to(x.dtype)


def rotary_rates(count: int, like: Tensor) -> Tensor:
    """Return (n,): 10000^(-i/n)."""
    return 10_000.0 ** (-torch.arange(count, device=like.device, dtype=like.dtype) / count)
