"""External memories written from the equations with plain loops, a row of a batch at a time."""

from typing import NamedTuple

import torch
from torch import Tensor

from backstory.models.memory import Machine, MemoryState, NeuralComputer

EPSILON, TIE = 1e-6, 1e-5


def softplus(x: Tensor) -> Tensor:
    return (1 + x.exp()).log()


def logistic(x: Tensor) -> Tensor:
    return 1 / (1 + (-x).exp())


def normalised(x: Tensor) -> Tensor:
    return x / x.sum()


def cosine(row: Tensor, key: Tensor) -> Tensor:
    """CS of algorithm 1, with the guard under the roots."""
    return (row * key).sum() / ((row * row).sum() + EPSILON).sqrt() / ((key * key).sum() + EPSILON).sqrt()


def exponential(cs: Tensor, ks: Tensor, literal: bool) -> Tensor:
    if not literal:
        return (ks * cs).exp()
    size = torch.maximum(cs.abs(), torch.tensor(EPSILON, dtype=cs.dtype))
    return (torch.sign(cs) * size**ks).exp()


def algorithm_1(cs: list[Tensor], ks: Tensor, d: int, literal: bool = False, strict: bool = False) -> Tensor:
    """CA of cosines (N,), as printed where `strict`, with the window clipped at the edges of the memory."""
    n = len(cs)
    ca = [torch.zeros((), dtype=ks.dtype) for _ in range(n)]
    if all(c < 0 for c in cs):
        total = sum((exponential(c, ks, literal) for c in cs), torch.zeros((), dtype=ks.dtype))
        for i in range(n):
            ca[i] = exponential(cs[i], ks, literal) / total
        return torch.stack(ca)
    largest, idx = cs[0], 0
    for i in range(1, n):
        if largest < cs[i]:
            largest, idx = cs[i], i
    while not strict and any(cs[i] >= largest - TIE for i in range(idx)):  # equal but for rounding: the first of them
        idx = next(i for i in range(idx) if cs[i] >= largest - TIE)
    low, high = max(0, idx - d), min(n - 1, idx + d)
    total = sum((exponential(cs[j], ks, literal) for j in range(low, high + 1)), torch.zeros((), dtype=ks.dtype))
    for i in range(low, high + 1):
        ca[i] = exponential(cs[i], ks, literal) / total
    return torch.stack(ca)


def several(cs: list[Tensor], ks: Tensor, d: int, windows: int, strict: bool) -> Tensor:
    """The same with further windows, each around the largest that no window holds yet, unless that is negative."""
    n, inside = len(cs), set()
    for _ in range(windows):
        outside = [i for i in range(n) if i not in inside]
        if not outside:
            break
        largest = max(cs[i] for i in outside)
        idx = next(i for i in outside if cs[i] >= largest - (0 if strict else TIE))
        if largest >= 0:
            inside |= set(range(max(0, idx - d), min(n - 1, idx + d) + 1))
    inside = inside or set(range(n))
    total = sum(((ks * cs[i]).exp() for i in inside), torch.zeros((), dtype=ks.dtype))
    return torch.stack([(ks * cs[i]).exp() / total if i in inside else torch.zeros_like(total) for i in range(n)])


def addressed(memory: Tensor, key: Tensor, ks: Tensor, machine: Machine, mask: Tensor | None = None) -> Tensor:
    """Content weights (N,) over memory (N, M)."""
    how = machine.addressing
    seen = [row if mask is None else row * mask for row in memory]
    cs = [cosine(row, key if mask is None else key * mask) for row in seen]
    if how.selected is None:
        return normalised(torch.stack([exponential(c, ks, how.kind == "literal") for c in cs]))
    if how.windows > 1:
        return several(cs, ks, how.selected // 2, how.windows, how.strict)
    return algorithm_1(cs, ks, how.selected // 2, how.kind == "literal", how.strict)


def rewritten(memory: Tensor, w: Tensor, erase: Tensor, vector: Tensor) -> Tensor:
    return torch.stack([row * (1 - w[i] * erase) + w[i] * vector for i, row in enumerate(memory)])


class Row(NamedTuple):
    """A state of one text."""

    memory: Tensor
    reads: Tensor
    read_weights: Tensor
    write_weights: Tensor
    usage: Tensor | None
    precedence: Tensor | None
    link: Tensor | None


class Parts:
    """Parts of a controller's output, handed out in order."""

    def __init__(self, said: Tensor) -> None:
        self.said, self.at = said, 0

    def __call__(self, count: int) -> Tensor:
        self.at += count
        return self.said[self.at - count : self.at]


def step(machine: Machine, said: Tensor, state: MemoryState) -> MemoryState:
    """Result that `Machine.step` must give."""
    one = computer if isinstance(machine, NeuralComputer) else turing
    rows = [
        one(machine, said[b], Row(*(None if t is None else t[b] for t in state)))  # type: ignore[arg-type]
        for b in range(len(said))
    ]
    return MemoryState(*(None if part[0] is None else torch.stack(part) for part in zip(*rows, strict=True)))  # type: ignore[arg-type]


def turing(machine: Machine, said: Tensor, state: Row) -> Row:
    n, m, r = machine.slots, machine.width, machine.heads
    part = Parts(said)
    heads = [
        (part(m), 1 + softplus(part(1)[0]), logistic(part(1)[0]), part(3), 1 + softplus(part(1)[0]))
        for _ in range(r + 1)
    ]
    erase, vector = logistic(part(m)), part(m)

    def weights(memory: Tensor, head: tuple, before: Tensor) -> Tensor:
        key, ks, g, shift, gamma = head
        shift = normalised(shift.exp())
        ca = addressed(memory, key, ks, machine)
        if machine.addressing.kind == "window":
            return ca
        mixed = (1 - g) * before + g * ca
        moved = []
        for i in range(n):  # s[-1] takes a row's weight to the row before it, s[1] to the one after it
            moved.append(sum((shift[1 + by] * mixed[(i - by) % n] for by in (-1, 0, 1)), torch.zeros_like(g)))
        return normalised(torch.stack(moved) ** gamma)

    write = weights(state.memory, heads[0], state.write_weights)
    memory = rewritten(state.memory, write, erase, vector)
    reads = torch.stack([weights(memory, heads[1 + i], state.read_weights[i]) for i in range(r)])
    return Row(memory, reads @ memory, reads, write, None, None, None)


def computer(machine: Machine, said: Tensor, state: Row) -> Row:
    assert isinstance(machine, NeuralComputer)
    n, m, r = machine.slots, machine.width, machine.heads
    part = Parts(said)
    keys = [part(m) for _ in range(r + 1)]
    strengths = [1 + softplus(part(1)[0]) for _ in range(r + 1)]
    erase, vector = logistic(part(m)), part(m)
    write_gate = logistic(part(1)[0])
    allocation_gate = logistic(part(1)[0]) if machine.allocation else None
    free = [logistic(part(1)[0]) for _ in range(r)] if machine.allocation or machine.deallocation else None
    modes = [normalised(part(3).exp()) for _ in range(r)] if machine.link else None
    masks = [logistic(part(m)) for _ in range(r + 1)] if machine.mask else [None] * (r + 1)
    sharp = [1 + softplus(part(2)) for _ in range(r)] if machine.sharpness and machine.link else None

    phi = torch.ones(n, dtype=said.dtype)
    for i in range(r if free is not None else 0):
        phi = phi * (1 - free[i] * state.read_weights[i])
    content = addressed(state.memory, keys[0], strengths[0], machine, masks[0])
    usage = None
    if machine.allocation:
        assert state.usage is not None and allocation_gate is not None
        before = state.write_weights.detach()
        usage = (state.usage + before * (1 - state.usage)) * phi
        order = sorted(range(n), key=lambda i: usage[i].item())
        allocation, freer = [torch.zeros(())] * n, torch.ones((), dtype=said.dtype)
        for i in order:
            u = EPSILON + (1 - EPSILON) * usage[i]
            allocation[i] = (1 - u) * freer
            freer = freer * u
        content = allocation_gate * torch.stack(allocation) + (1 - allocation_gate) * content
    write = write_gate * content
    kept = state.memory * phi[:, None] if machine.deallocation else state.memory
    memory = rewritten(kept, write, erase, vector)
    link = precedence = None
    if machine.link:
        assert state.link is not None and state.precedence is not None
        zero = torch.zeros((), dtype=said.dtype)
        link = torch.stack(
            [
                torch.stack(
                    [
                        zero
                        if i == j
                        else (1 - write[i] - write[j]) * state.link[i, j] + write[i] * state.precedence[j]
                        for j in range(n)
                    ]
                )
                for i in range(n)
            ]
        )
        precedence = (1 - write.sum()) * state.precedence + write
    weights = []
    for i in range(r):
        w = addressed(memory, keys[1 + i], strengths[1 + i], machine, masks[1 + i])
        if modes is not None and link is not None:
            backward, forward = link.T @ state.read_weights[i], link @ state.read_weights[i]
            if sharp is not None:
                added = EPSILON if machine.sharpening == "epsilon" else 0.0
                backward, forward = powered(backward + added, sharp[i][0]), powered(forward + added, sharp[i][1])
            w = modes[i][0] * backward + modes[i][1] * w + modes[i][2] * forward
        weights.append(w)
    reads = torch.stack(weights)
    return Row(memory, reads @ memory, reads, write, usage, precedence, link)


def powered(weights: Tensor, rho: Tensor) -> Tensor:
    largest = max(weights.max().item(), EPSILON)
    powers = (weights / largest) ** rho
    return powers / max(powers.sum(), torch.tensor(1.0, dtype=weights.dtype))
