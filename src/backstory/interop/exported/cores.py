"""Cores: embedded words (B, T, E) and a state to the outputs (B, T, H) of every layer, and the next state."""

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

State = Any
"""A tree of tensors (B, ...): nothing is stored in the model."""
Settings = dict[str, Any]


def lstm_cell(gates: Tensor, c: Tensor) -> tuple[Tensor, Tensor]:
    """Return h and c from pre-activations (..., 4H) of the gates i, f, g, o and the cell before."""
    i, f, g, o = gates.chunk(4, -1)
    c = f.sigmoid() * c + i.sigmoid() * g.tanh()
    return o.sigmoid() * c.tanh(), c


class LSTMLayer(nn.Module):
    """An LSTM of H units over I inputs."""

    def __init__(self, inputs: int, units: int, biases: int) -> None:
        super().__init__()
        self.units = units
        self.input_proj = nn.Linear(inputs, 4 * units)
        self.hidden_proj = nn.Linear(units, 4 * units, bias=biases == 2)

    def forward(self, x: Tensor, h: Tensor, c: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Read x (B, T, I) from h, c (B, H)."""
        outputs = []
        for gates in self.input_proj(x).unbind(1):
            h, c = lstm_cell(gates + self.hidden_proj(h), c)
            outputs.append(h)
        return torch.stack(outputs, 1), h, c


class MogrifierRound(nn.Module):
    """2 sigmoid(Q x + b), with Q a matrix or a product of two."""

    def __init__(self, gating: int, gated: int, rank: int | None) -> None:
        super().__init__()
        self.right = nn.Linear(gating, rank, bias=False) if rank else None
        self.left = nn.Linear(rank or gating, gated)

    def forward(self, x: Tensor) -> Tensor:
        return 2 * torch.sigmoid(self.left(x if self.right is None else self.right(x)))


class MogrifierLayer(nn.Module):
    """An LSTM whose input and state gate each other in rounds before every cell."""

    def __init__(self, inputs: int, units: int, rounds: int, rank: int | None) -> None:
        super().__init__()
        self.units = units
        self.input_proj = nn.Linear(inputs, 4 * units)
        self.hidden_proj = nn.Linear(units, 4 * units, bias=False)
        sizes = (units, inputs)
        self.rounds = nn.ModuleDict(
            {str(i): MogrifierRound(sizes[(i + 1) % 2], sizes[i % 2], rank) for i in range(1, rounds + 1)}
        )

    def forward(self, x: Tensor, h: Tensor, c: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Read x (B, T, I) from h, c (B, H)."""
        outputs = []
        for word in x.unbind(1):
            for i, gate in self.rounds.items():
                if int(i) % 2:
                    word = gate(h) * word
                else:
                    h = gate(word) * h
            h, c = lstm_cell(self.input_proj(word) + self.hidden_proj(h), c)
            outputs.append(h)
        return torch.stack(outputs, 1), h, c


class Recurrent(nn.Module):
    """Layers of an LSTM or of a Mogrifier LSTM on each other."""

    def __init__(self, settings: Settings, inputs: int, output: int | None) -> None:
        super().__init__()
        hidden, count = settings["hidden"], settings["layers"]
        sizes = [inputs, *[hidden] * (count - 1), output or hidden]
        pairs = zip(sizes, sizes[1:])  # noqa: B905, RUF007
        if settings["kind"] == "lstm":
            layers: list[nn.Module] = [LSTMLayer(a, b, settings["biases"]) for a, b in pairs]
        else:
            layers = [MogrifierLayer(a, b, settings["rounds"], settings["rank"]) for a, b in pairs]
        self.layers, self.sizes = nn.ModuleList(layers), sizes[1:]

    def start(self, rows: int, like: Tensor) -> State:
        return [(like.new_zeros(rows, size), like.new_zeros(rows, size)) for size in self.sizes]

    def forward(self, x: Tensor, state: State, tokens: Tensor | None = None) -> tuple[list[Tensor], State]:
        outputs, after = [], []
        for layer, (h, c) in zip(self.layers, state, strict=True):
            x, h, c = layer(x, h, c)
            outputs.append(x)
            after.append((h, c))
        return outputs, after


class TransformerLayer(nn.Module):
    """Attention over a window of keys and values, and a feed-forward part."""

    def __init__(self, settings: Settings) -> None:
        super().__init__()
        self.heads, self.pre, self.gelu = settings["heads"], settings["norm"] == "pre", settings["activation"] == "gelu"
        units, feed_forward = settings["hidden"], settings["feed_forward"] or 4 * settings["hidden"]
        norm = nn.RMSNorm if self.pre else nn.LayerNorm
        self.attention_norm, self.feed_forward_norm = norm(units), norm(units)
        self.attending = nn.Linear(units, 3 * units, bias=not self.pre)
        self.attended = nn.Linear(units, units, bias=not self.pre)
        self.inner = nn.Linear(units, feed_forward, bias=not self.pre)
        self.outer = nn.Linear(feed_forward, units, bias=not self.pre)

    def forward(
        self, x: Tensor, past: tuple[Tensor, Tensor], mask: Tensor, rotary: tuple[Tensor, Tensor] | None
    ) -> tuple[Tensor, tuple[Tensor, Tensor]]:
        """Read x (B, T, H) after the keys and values (B, heads, R, d) of the window.

        mask (B, 1, T, R + T) is True for the keys that a position sees.
        """
        added, past = self._attention(self.attention_norm(x) if self.pre else x, past, mask, rotary)
        if self.pre:
            x = x + added
            return x + self._feed_forward(self.feed_forward_norm(x)), past
        x = self.attention_norm(x + added)
        return self.feed_forward_norm(x + self._feed_forward(x)), past

    def _attention(
        self, x: Tensor, past: tuple[Tensor, Tensor], mask: Tensor, rotary: tuple[Tensor, Tensor] | None
    ) -> tuple[Tensor, tuple[Tensor, Tensor]]:
        before = past[0].shape[2]
        q, k, v = (part.unflatten(2, (self.heads, -1)).transpose(1, 2) for part in self.attending(x).chunk(3, 2))
        k, v = torch.cat([past[0], k], 2), torch.cat([past[1], v], 2)
        past = k[:, :, k.shape[2] - before :], v[:, :, v.shape[2] - before :]
        if rotary is not None:
            q, k = rotated(q, rotary), rotated(k, rotary)
        attention = F.scaled_dot_product_attention(q, k, v, mask)
        return self.attended(attention.transpose(1, 2).flatten(2)), past

    def _feed_forward(self, x: Tensor) -> Tensor:
        return self.outer((F.gelu if self.gelu else F.relu)(self.inner(x)))


def rotated(x: Tensor, table: tuple[Tensor, Tensor]) -> Tensor:
    """Rotate x (B, N, T, d), which stands at the last T positions of the table, by its positions."""
    cos, sin = (part[-x.shape[2] :] for part in table)
    a, b = x.chunk(2, 3)
    return torch.cat([a * cos - b * sin, a * sin + b * cos], 3).to(x.dtype)


def rates(count: int, like: Tensor) -> Tensor:
    return 10_000.0 ** (-torch.arange(count, device=like.device, dtype=like.dtype) / count)


class Transformer(nn.Module):
    """Causal attention over a window of tokens that slides, or starts again at its end."""

    def __init__(self, settings: Settings, inputs: int, output: int | None) -> None:
        super().__init__()
        self.settings, units = settings, settings["hidden"]
        bias, pre = settings["norm"] == "post", settings["norm"] == "pre"
        size = output or units
        self.sizes = [*[units] * (settings["layers"] - 1), size]
        self.entering = None if inputs == units else nn.Linear(inputs, units, bias=bias)
        self.layers = nn.ModuleList(TransformerLayer(settings) for _ in range(settings["layers"]))
        self.norm = nn.RMSNorm(units) if pre else None
        self.leaving = None if size == units else nn.Linear(units, size, bias=bias)

    def start(self, rows: int, like: Tensor) -> State:
        settings = self.settings
        shape = rows, settings["heads"], settings["window"] - 1, settings["hidden"] // settings["heads"]
        past = [(like.new_zeros(shape), like.new_zeros(shape)) for _ in self.layers]
        return past, like.new_zeros(rows, dtype=torch.long)

    def forward(self, x: Tensor, state: State, tokens: Tensor | None = None) -> tuple[list[Tensor], State]:
        settings, (past, read), steps = self.settings, state, x.shape[1]
        window, units = settings["window"], settings["hidden"]
        position = read.unsqueeze(1) + torch.arange(steps, device=x.device)
        x = (x if self.entering is None else self.entering(x)) * units**0.5
        if settings["chunked"]:
            position = position % window
        rotary = None
        if settings["positions"] == "sinusoidal":
            angles = position.double().unsqueeze(2) * rates((units + 1) // 2, position.double())
            x = x + torch.stack([angles.sin(), angles.cos()], 3).flatten(2)[:, :, :units].to(x.dtype)
        else:
            wide = torch.arange(window - 1 + steps, device=x.device, dtype=torch.promote_types(x.dtype, torch.float32))
            angles = wide.unsqueeze(1) * rates(units // settings["heads"] // 2, wide)
            rotary = angles.cos(), angles.sin()
        # A position sees itself and the `reach - 1` tokens before it.
        reach = (position + 1).clamp(max=window)
        own = torch.arange(window - 1, window - 1 + steps, device=x.device)
        distance = own.unsqueeze(1) - torch.arange(window - 1 + steps, device=x.device)
        mask = ((distance >= 0) & (distance < reach.unsqueeze(2))).unsqueeze(1)
        outputs, after = [], []
        for layer, before in zip(self.layers, past, strict=True):
            x, now = layer(x, before, mask, rotary)
            outputs.append(x)
            after.append(now)
        x = x if self.norm is None else self.norm(x)
        x = x if self.leaving is None else self.leaving(x)
        return [*outputs[:-1], x], (after, position[:, -1] + 1)


class Trellis(nn.Module):
    """Levels of one convolution over two steps, the same at every level, with the gates of an LSTM."""

    scale_ih: nn.Parameter | None
    scale_hh: nn.Parameter | None

    def __init__(self, settings: Settings, inputs: int, output: int | None) -> None:
        super().__init__()
        units, every = settings["hidden"], settings["auxiliary"]
        self.levels, self.units, self.inputs, self.output = settings["levels"], units, inputs, output or units
        self.shown = [n for n in range(1, self.levels) if every and n % every == 0]
        self.sizes = [self.output] * (len(self.shown) + 1)
        deviation = (8 * units) ** -0.5
        self.weight_ih = nn.Parameter(torch.randn(4 * units, 2 * inputs) * deviation)
        self.weight_hh = nn.Parameter(torch.randn(4 * units, 2 * units) * deviation)
        self.bias = nn.Parameter(torch.randn(4 * units) * deviation)
        for name in ("ih", "hh"):
            scale = nn.Parameter(torch.full((4 * units,), 0.5)) if settings["weight_norm"] else None
            self.register_parameter(f"scale_{name}", scale)

    def start(self, rows: int, like: Tensor) -> State:
        shape = rows, self.levels - 1, self.units
        return like.new_zeros(rows, self.inputs), like.new_zeros(shape), like.new_zeros(shape)

    def forward(self, x: Tensor, state: State, tokens: Tensor | None = None) -> tuple[list[Tensor], State]:
        last_x, last_h, last_c = state
        of_input, of_level = self._weight(self.weight_ih, self.scale_ih), self._weight(self.weight_hh, self.scale_hh)
        pairs = torch.cat([torch.cat([last_x.unsqueeze(1), x[:, :-1]], 1), x], 2)
        injected = F.linear(pairs, of_input, self.bias)
        h, c = lstm_cell(injected, torch.zeros_like(injected[..., : self.units]))
        outputs, hidden, cell = [], [], []
        for level in range(1, self.levels):
            if level in self.shown:
                outputs.append(h[..., self.units - self.output :])
            hidden.append(h[:, -1])
            cell.append(c[:, -1])
            before_h = torch.cat([last_h[:, level - 1].unsqueeze(1), h[:, :-1]], 1)
            before_c = torch.cat([last_c[:, level - 1].unsqueeze(1), c[:, :-1]], 1)
            h, c = lstm_cell(injected + F.linear(torch.cat([before_h, h], 2), of_level), before_c)
        outputs.append(h[..., self.units - self.output :])
        after = (torch.stack(hidden, 1), torch.stack(cell, 1)) if hidden else (last_h, last_c)
        return outputs, (x[:, -1], *after)

    def _weight(self, direction: Tensor, scale: Tensor | None) -> Tensor:
        return direction if scale is None else direction * (scale / direction.norm(dim=1)).unsqueeze(1)


CORES: dict[str, Any] = {"lstm": Recurrent, "mogrifier": Recurrent, "transformer": Transformer, "trellis": Trellis}
"""Constructors by the kind of core: of its settings, E and the output's size (None: the core's own)."""
