"""Cores with an external memory (NTM, DNC, MDM): a controller of LSTM layers that writes and reads slots."""

import re
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from backstory.interop.exported.cores import CORES, Settings, State, lstm_cell

EPSILON, TIE = 1e-6, 1e-5


def one_plus(x: Tensor) -> Tensor:
    return 1 + F.softplus(x)


def cosines(memory: Tensor, keys: Tensor, masks: Tensor | None) -> Tensor:
    """Return the cosines of every slot (B, N, M) with every key (B, H, M), both multiplied by masks: (B, H, N)."""
    shares = torch.ones_like(keys) if masks is None else masks.square()
    slots = shares @ memory.square().transpose(1, 2)
    lengths = (shares * keys * keys).sum(2, keepdim=True)
    squares = (slots + EPSILON) * (lengths + EPSILON)
    return (keys * shares) @ memory.transpose(1, 2) * squares.clamp_min(torch.finfo(squares.dtype).tiny).rsqrt()


def sharpened(weights: Tensor, power: Tensor) -> Tensor:
    """Weights (B, H, N) to a power (B, H, 1), normalised again; zeros stay zeros."""
    shares = (weights / weights.detach().amax(2, keepdim=True).clamp_min(EPSILON)).clamp_min(0)
    powers = torch.where(shares > 0, shares.clamp_min(1e-38).pow(power), 0.0)
    return powers / powers.sum(2, keepdim=True).clamp_min(1)


class ControllerLayer(nn.Module):
    """An LSTM over the word, what was read, and the layer below."""

    def __init__(self, inputs: int, units: int) -> None:
        super().__init__()
        self.input_proj, self.hidden_proj = nn.Linear(inputs, 4 * units), nn.Linear(units, 4 * units, bias=False)

    def forward(self, x: Tensor, h: Tensor, c: Tensor) -> tuple[Tensor, Tensor]:
        return lstm_cell(self.input_proj(x) + self.hidden_proj(h), c)


class ExternalMemory(nn.Module):
    """The output is that of all layers and what was read, or a linear layer of it."""

    def __init__(self, settings: Settings, inputs: int, output: int | None) -> None:
        super().__init__()
        self.settings, units = settings, list(settings["layers"])
        self.slots, self.width, self.heads = settings["slots"], settings["width"], settings["heads"]
        kind, size, windows = re.fullmatch(r"(\w+)(?::(\d+)(?:x(\d+))?)?(?::strict)?", settings["addressing"]).groups()  # type: ignore[union-attr]
        self.kind, self.window, self.windows = kind, int(size or 0), int(windows or 1)
        self.tie = 0.0 if settings["addressing"].endswith(":strict") else TIE
        self.turing = settings["kind"] == "ntm"
        reads, self.units, heads, m = self.heads * self.width, units, self.heads, self.width
        below = [0, *units[:-1]]
        self.layers = nn.ModuleList(ControllerLayer(inputs + reads + b, u) for b, u in zip(below, units, strict=True))
        self.parts = [(heads + 1) * (m + 6), m, m] if self.turing else self._computer_parts(settings)
        self.interface = nn.Linear(sum(units), sum(self.parts))
        self.output = None if output is None else nn.Linear(sum(units) + reads, output)
        self.sizes = [*units, output or sum(units) + reads]

    def _computer_parts(self, settings: Settings) -> list[int]:
        m, r, follow = self.width, self.heads, settings["link"]
        free = r * (settings["allocation"] or settings["deallocation"])
        self.sharpens = settings["sharpness"] and follow
        masks = (r + 1) * m * settings["mask"]
        return [
            (r + 1) * m,
            r + 1,
            m,
            m,
            1,
            int(settings["allocation"]),
            free,
            3 * r * follow,
            masks,
            2 * r * self.sharpens,
        ]

    def start(self, rows: int, like: Tensor) -> State:
        zeros, n, r, m = like.new_zeros, self.slots, self.heads, self.width
        memory: dict[str, Tensor] = {"memory": zeros(rows, n, m), "reads": zeros(rows, r, m)}
        memory |= {"read_weights": zeros(rows, r, n), "write_weights": zeros(rows, n)}
        if self.turing:
            memory["read_weights"][:, :, 0] = 1
            memory["write_weights"][:, 0] = 1
        elif self.settings["allocation"]:
            memory["usage"] = zeros(rows, n)
        if not self.turing and self.settings["link"]:
            memory |= {"precedence": zeros(rows, n), "link": zeros(rows, n, n)}
        return [(zeros(rows, u), zeros(rows, u)) for u in self.units], memory

    def forward(self, x: Tensor, state: State, tokens: Tensor | None = None) -> tuple[list[Tensor], State]:
        controller, memory = state
        reset, outputs = self.settings["reset_token"], []
        if reset is not None and tokens is None:
            raise ValueError(
                "this core starts again at a token that begins a document; give input_ids, not inputs_embeds"
            )
        for t, word in enumerate(x.unbind(1)):
            if tokens is not None and reset is not None and bool((begins := tokens[:, t] == reset).any()):
                controller, memory = _restarted(self.start(len(x), word), (controller, memory), begins)
            layers, below = [], word[:, :0]
            for layer, (h, c) in zip(self.layers, controller, strict=True):
                h, c = layer(torch.cat([word, memory["reads"].flatten(1), below], 1), h, c)
                layers.append((h, c))
                below = h
            controller = layers
            interface = self.interface(torch.cat([h for h, _ in controller], 1))
            memory = (self._turing_step if self.turing else self._computer_step)(interface, memory)
            outputs.append(torch.cat([*(h for h, _ in controller), memory["reads"].flatten(1)], 1))
        memory = {name: memory[name] for name in state[1]}  # in the order of the start
        joined = torch.stack(outputs, 1)
        last = joined if self.output is None else self.output(joined)
        return [*joined[..., : sum(self.units)].split(self.units, 2), last], (controller, memory)

    def _content(self, cosine: Tensor, strengths: Tensor) -> Tensor:
        """Return the weights (B, H, N) of cosines and strengths (B, H)."""
        scores = strengths.unsqueeze(2) * cosine
        if self.kind == "literal":
            scores = cosine.sign() * cosine.abs().clamp_min(EPSILON).pow(strengths.unsqueeze(2))
        if self.window:
            scores = scores.masked_fill(~self._inside(cosine.detach()), -torch.inf)
        return torch.softmax(scores, 2)

    def _inside(self, cosine: Tensor) -> Tensor:
        """Return which slots (B, H, N) lie in the windows around the largest cosines; all if every cosine is negative."""
        index, left, inside = (
            torch.arange(self.slots, device=cosine.device),
            cosine,
            torch.zeros_like(cosine, dtype=torch.bool),
        )
        for _ in range(self.windows):
            best = left.amax(2, keepdim=True)
            centre = torch.where(left >= best - self.tie, index, self.slots).amin(2, keepdim=True)
            inside = inside | (((index - centre).abs() <= self.window // 2) & (best >= 0))
            left = cosine.masked_fill(inside, -torch.inf)
        return inside | ~inside.any(2, keepdim=True)

    def _turing_step(self, interface: Tensor, now: dict[str, Tensor]) -> dict[str, Tensor]:
        heads, erase, vector = interface.split(self.parts, 1)
        keys, strengths, gates, shifts, powers = heads.unflatten(1, (self.heads + 1, -1)).split(
            [self.width, 1, 1, 3, 1], 2
        )
        strengths, gates, shifts, powers = (
            one_plus(strengths[..., 0]),
            gates.sigmoid(),
            shifts.softmax(2),
            one_plus(powers),
        )

        def located(memory: Tensor, before: Tensor, part: slice) -> Tensor:
            content = self._content(cosines(memory, keys[:, part], None), strengths[:, part])
            if self.kind == "window":
                return content
            mixed = before + gates[:, part] * (content - before)
            back, stay, ahead = shifts[:, part].split(1, 2)
            moved = back * mixed.roll(-1, 2) + stay * mixed + ahead * mixed.roll(1, 2)
            return sharpened(moved, powers[:, part])

        write = located(now["memory"], now["write_weights"].unsqueeze(1), slice(0, 1))[:, 0]
        memory = _written(now["memory"], write, erase.sigmoid(), vector)
        weights = located(memory, now["read_weights"], slice(1, None))
        return {"memory": memory, "reads": weights @ memory, "read_weights": weights, "write_weights": write}

    def _computer_step(self, interface: Tensor, now: dict[str, Tensor]) -> dict[str, Tensor]:
        settings, r = self.settings, self.heads
        keys, strengths, erase, vector, gate, allocate, free, modes, masks, powers = interface.split(self.parts, 1)
        keys, strengths, gate = keys.unflatten(1, (r + 1, self.width)), one_plus(strengths), gate.sigmoid()
        shares = masks.sigmoid().unflatten(1, (r + 1, self.width)) if settings["mask"] else None

        def content(memory: Tensor, part: slice) -> Tensor:
            cosine = cosines(memory, keys[:, part], None if shares is None else shares[:, part])
            return self._content(cosine, strengths[:, part])

        retention = (1 - free.sigmoid().unsqueeze(2) * now["read_weights"]).prod(1) if free.shape[1] else None
        write, after = content(now["memory"], slice(0, 1))[:, 0], {}
        if settings["allocation"]:
            used = now["write_weights"].detach()
            usage = (now["usage"] + used * (1 - now["usage"])) * retention  # type: ignore[operator]
            share, after["usage"] = allocate.sigmoid(), usage
            write = share * _allocation(usage) + (1 - share) * write
        write = gate * write
        memory = now["memory"]
        if settings["deallocation"] and retention is not None:
            memory = memory * retention.unsqueeze(2)
        memory = _written(memory, write, erase.sigmoid(), vector)
        weights = read = content(memory, slice(1, None))
        if settings["link"]:
            either = 1 - write.unsqueeze(2) - write.unsqueeze(1)
            link = either * now["link"] + write.unsqueeze(2) * now["precedence"].unsqueeze(1)
            link = link * (1 - torch.eye(self.slots, dtype=link.dtype, device=link.device))
            back, ahead = now["read_weights"] @ link, now["read_weights"] @ link.transpose(1, 2)
            after |= {"link": link, "precedence": (1 - write.sum(1, keepdim=True)) * now["precedence"] + write}
            if self.sharpens:
                extra = EPSILON if settings["sharpening"] == "epsilon" else 0.0
                power = one_plus(powers).unflatten(1, (r, 2))
                back, ahead = (sharpened(w + extra, p) for w, p in zip((back, ahead), power.split(1, 2), strict=True))
            to_back, to_content, to_ahead = modes.unflatten(1, (r, 3)).softmax(2).split(1, 2)
            weights = to_back * back + to_content * read + to_ahead * ahead
        return {"memory": memory, "reads": weights @ memory, "read_weights": weights, "write_weights": write, **after}


def _written(memory: Tensor, weights: Tensor, erase: Tensor, vector: Tensor) -> Tensor:
    """M o (1 - w e^T) + w v^T."""
    w = weights.unsqueeze(2)
    return memory * (1 - w * erase.unsqueeze(1)) + w * vector.unsqueeze(1)


def _allocation(usage: Tensor) -> Tensor:
    """Return weights (B, N): 1 - u times the product of the usage of all slots that are freer."""
    ranked, order = usage.sort(dim=1, stable=True)
    ranked = ranked * (1 - EPSILON) + EPSILON
    freer = torch.cat([torch.ones_like(ranked[:, :1]), ranked[:, :-1].cumprod(1)], 1)
    return torch.zeros_like(usage).scatter(1, order, (1 - ranked) * freer)


def _restarted(first: State, now: State, begins: Tensor) -> State:
    """Return a state that is the first one in the texts of a mask (B,)."""

    def chosen(one: Tensor, other: Tensor) -> Tensor:
        return torch.where(begins.view(-1, *[1] * (other.dim() - 1)), one, other)

    layers = [(chosen(h, a), chosen(c, b)) for (h, c), (a, b) in zip(first[0], now[0], strict=True)]
    return layers, {name: chosen(first[1][name], tensor) for name, tensor in now[1].items()}


CORES.update(dict[str, Any](ntm=ExternalMemory, dnc=ExternalMemory, mdm=ExternalMemory))
