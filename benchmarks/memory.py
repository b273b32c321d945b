"""Cost of external memories of N slots: forward time per step, and time and memory of a training step.

    OMP_NUM_THREADS=1 taskset -c 0 python benchmarks/memory.py [--slots 64 1024 65536] [--out results/benchmark-memory.json]

Batch 6, slots of 512 numbers, one read head, the published controller (1024, 512 and 512 units, words of 50). The plain
forms are straightforward versions of the same equations: a linear layer per step over all reads,
`bmm(EM, k[..., None])`, a new tensor for every result, and autograd for the backward pass. All take turns in one
process; times are medians in float32. A link of N x N numbers is left out if it would not fit. `pass` is one pass over
the memory at the speed of a copy. The memory of a training step is the difference between the peaks of two processes,
one with eight more steps, divided by eight.
"""

import argparse
import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, cast

import torch
import torch.nn.functional as F
from figures import write
from torch import Tensor

from backstory.config import DNCConfig, EmbeddingConfig, ModelConfig, NTMConfig, SoftmaxConfig
from backstory.models import ComposedModel, build_model
from backstory.models.cores import ExternalMemory
from backstory.models.cores.external_memory import ControllerLayer
from backstory.models.memory import MemoryState, NeuralComputer

BATCH, STEPS, LINKED, TYPES = 6, 24, 4096, 50
EPSILON = 1e-6
KINDS = {"NTM": NTMConfig, "DNC": DNCConfig}


def plain_cosines(memory: Tensor, key: Tensor) -> Tensor:
    norms = (memory.square().sum(2) + EPSILON).sqrt() * (key.square().sum(1, keepdim=True) + EPSILON).sqrt()
    return torch.bmm(memory, key[..., None])[..., 0] / norms


def plain_content(memory: Tensor, key: Tensor, strength: Tensor) -> Tensor:
    return torch.softmax(strength * plain_cosines(memory, key), 1)


def plain_written(memory: Tensor, w: Tensor, erase: Tensor, vector: Tensor) -> Tensor:
    return memory * (1 - w[:, :, None] * erase[:, None]) + w[:, :, None] * vector[:, None]


def plain_turing(core: ExternalMemory, said: Tensor, state: MemoryState) -> MemoryState:
    """The NTM's step with one read head."""
    m = core.machine.width
    write_head, read_head, erase, vector = said.split([m + 6, m + 6, m, m], 1)

    def weights(memory: Tensor, head: Tensor, before: Tensor) -> Tensor:
        key, strength, gate, shift, gamma = head.split([m, 1, 1, 3, 1], 1)
        content = plain_content(memory, key, 1 + F.softplus(strength))
        gate, shift = torch.sigmoid(gate), torch.softmax(shift, 1)
        mixed = (1 - gate) * before + gate * content
        moved = shift[:, :1] * mixed.roll(-1, 1) + shift[:, 1:2] * mixed + shift[:, 2:] * mixed.roll(1, 1)
        powers = moved ** (1 + F.softplus(gamma))
        return powers / (powers.sum(1, keepdim=True) + EPSILON)

    write = weights(state.memory, write_head, state.write_weights)
    memory = plain_written(state.memory, write, torch.sigmoid(erase), vector)
    read = weights(memory, read_head, state.read_weights[:, 0])
    return MemoryState(memory, torch.bmm(read[:, None], memory), read[:, None], write)


def plain_computer(core: ExternalMemory, said: Tensor, state: MemoryState) -> MemoryState:
    """The DNC's step with one read head."""
    machine = core.machine
    assert isinstance(machine, NeuralComputer)
    assert state.usage is not None and state.precedence is not None and state.link is not None
    parts = machine.interface(said)
    write_key, read_key = parts.write_key, parts.read_keys
    assert parts.free_gates is not None and parts.allocation_gate is not None and parts.modes is not None
    content = plain_content(state.memory, write_key.vectors[:, 0], write_key.strengths)
    kept = 1 - parts.free_gates[:, 0] * state.read_weights[:, 0]
    before = state.write_weights.detach()
    usage = (state.usage + before - state.usage * before) * kept
    ranked, order = torch.sort(EPSILON + (1 - EPSILON) * usage, 1)
    freer = torch.cat([torch.ones_like(ranked[:, :1]), torch.cumprod(ranked, 1)[:, :-1]], 1)
    allocation = torch.zeros_like(usage).scatter(1, order, (1 - ranked) * freer)
    write = parts.write_gate * (parts.allocation_gate * allocation + (1 - parts.allocation_gate) * content)
    memory = plain_written(state.memory, write, parts.erase, parts.vector)
    link = (1 - write[:, :, None] - write[:, None]) * state.link + write[:, :, None] * state.precedence[:, None]
    link = link * (1 - torch.eye(machine.slots))
    precedence = (1 - write.sum(1, keepdim=True)) * state.precedence + write
    last = state.read_weights[:, 0, :, None]
    forward, backward = torch.bmm(link, last)[..., 0], torch.bmm(link.transpose(1, 2), last)[..., 0]
    found = plain_content(memory, read_key.vectors[:, 0], read_key.strengths)
    modes = parts.modes[:, 0]
    read = modes[:, :1] * backward + modes[:, 1:2] * found + modes[:, 2:] * forward
    return MemoryState(memory, torch.bmm(read[:, None], memory), read[:, None], write, usage, precedence, link)


def plain(of: ComposedModel, text: Tensor, state: Any) -> Tensor:
    """The model's outputs."""
    core = of.core
    assert isinstance(core, ExternalMemory)
    step = plain_computer if isinstance(core.machine, NeuralComputer) else plain_turing
    (hidden, cell), memory = state
    hidden, cell, outputs = list(hidden), list(cell), []
    layers = [cast(ControllerLayer, layer) for layer in core.layers]
    weights = [torch.cat([layer.weight_ih, layer.weight_hh], 1) for layer in layers]
    for x in of.embedding(text).unbind(1):
        below: list[Tensor] = []
        for i, layer in enumerate(layers):
            entry = torch.cat([x, memory.reads.flatten(1), *below, hidden[i]], 1)
            a, f, g, o = F.linear(entry, weights[i], layer.bias).chunk(4, 1)
            cell[i] = f.sigmoid() * cell[i] + a.sigmoid() * g.tanh()
            hidden[i] = o.sigmoid() * cell[i].tanh()
            below = [hidden[i]]
        memory = step(core, F.linear(torch.cat(hidden, 1), core.interface.weight, core.interface.bias), memory)
        outputs.append(torch.cat([*hidden, memory.reads.flatten(1)], 1))
    return torch.stack(outputs, 1)


def ours(of: ComposedModel, text: Tensor, state: Any) -> Tensor:
    return of.core(of.embedding(text), state).dropped


Run = tuple[ComposedModel, Callable[[ComposedModel, Tensor, Any], Tensor]]


def model(kind: type[NTMConfig] | type[DNCConfig], slots: int, addressing: str = "dense") -> ComposedModel:
    torch.manual_seed(0)
    config = ModelConfig(EmbeddingConfig(50, 0.0), kind(slots=slots, addressing=addressing), SoftmaxConfig(tied=False))
    return build_model(config, TYPES).eval()


def runs(slots: int) -> dict[str, Run]:
    """Memories that are compared at a size."""
    window = min(257, slots - 1 + slots % 2)
    ntm = model(NTMConfig, slots)
    found: dict[str, Run] = {
        "NTM": (ntm, ours),
        "NTM, plain": (ntm, plain),
        "NTM, localized": (model(NTMConfig, slots, f"localized:{window}"), ours),
        "NTM, window": (model(NTMConfig, slots, f"window:{window}"), ours),
    }
    if slots <= LINKED:
        dnc = model(DNCConfig, slots)
        found |= {
            "DNC": (dnc, ours),
            "DNC, plain": (dnc, plain),
            "DNC, localized": (model(DNCConfig, slots, f"localized:{window}"), ours),
        }
    return found


@torch.no_grad()
def milliseconds(run: Run, text: Tensor) -> float:
    """Milliseconds per step of a segment, without creating the initial memory."""
    state = run[0].core.start(len(text))
    began = time.perf_counter()
    run[1](run[0], text, state)
    return (time.perf_counter() - began) * 1000 / text.shape[1]


def training_milliseconds(run: Run, text: Tensor) -> float:
    """Milliseconds per step of a segment, forward and backward, without creating the initial memory."""
    state = run[0].core.start(len(text))
    began = time.perf_counter()
    run[1](run[0], text, state).square().mean().backward()
    return (time.perf_counter() - began) * 1000 / text.shape[1]


def copied(slots: int) -> float:
    """Milliseconds of one pass over the memory, half the time of a copy."""
    one = torch.ones(BATCH, slots, 512)
    other = torch.empty_like(one).copy_(one)
    began = time.perf_counter()
    other.copy_(one)
    return (time.perf_counter() - began) * 500


def training_peak(kind: str, form: str, slots: int, steps: int) -> None:
    """Print the peak of this process after a forward and a backward pass."""
    of = model(KINDS[kind], slots).train()
    text = torch.randint(TYPES, (BATCH, steps))
    (ours if form == "ours" else plain)(of, text, of.core.start(BATCH)).square().mean().backward()
    # Not ru_maxrss, which a process inherits from its parent.
    peak = next(
        line.split()[1] for line in Path("/proc/self/status").read_text().splitlines() if line.startswith("VmHWM")
    )
    print(int(peak) * 1024)


def training_times(kind: str, slots: int, turns: int) -> tuple[list[float], list[float]]:
    """Milliseconds per step of ours and of the plain form, in turns."""
    of, text = model(KINDS[kind], slots).train(), torch.randint(TYPES, (BATCH, STEPS))
    taken = [[training_milliseconds((of, form), text) for form in (ours, plain)] for _ in range(1 + turns)]
    mine, plainly = zip(*taken[1:], strict=True)
    return list(mine), list(plainly)


def training_memory(kind: str, form: str, slots: int) -> float:
    """Bytes per step."""
    peaks = []
    for steps in (8, 16):
        command = [sys.executable, __file__, "--peak", kind, form, str(slots), str(steps)]
        told = subprocess.run(command, check=True, capture_output=True, text=True)
        peaks.append(int(told.stdout))
    return (peaks[1] - peaks[0]) / 8


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--slots", type=int, nargs="+", default=[64, 256, 1024, 4096, 16384, 65536])
    parser.add_argument("--turns", type=int, default=5)
    parser.add_argument("--peak", nargs=4, help=argparse.SUPPRESS)
    parser.add_argument("--out", type=Path)
    given = parser.parse_args()
    if given.peak:
        kind, form, slots, steps = given.peak
        return training_peak(kind, form, int(slots), int(steps))
    found: dict[str, dict] = {}
    print(f"{'slots':>6} {'model':<15} {'ms/step':>9} {'to plain':>9} {'quartiles':>13} {'to NTM':>7} {'passes':>7}")
    for slots in given.slots:
        compared, text = runs(slots), torch.randint(TYPES, (BATCH, STEPS))
        times: dict[str, list[float]] = {name: [] for name in (*compared, "pass")}
        for turn in range(1 + given.turns):
            for name, run in compared.items():
                # The cost of a large plain memory is constant per step, and high.
                few = name.endswith("plain") and slots > LINKED
                taken = milliseconds(run, text[:, :2] if few else text)
                times[name] += [taken] * (turn > 0)
            times["pass"] += [copied(slots)] * (turn > 0)
        for name, taken in times.items():
            plainly, dense = times.get(f"{name.split(',')[0]}, plain", taken), times["NTM"]
            ratios = sorted(a / b for a, b in zip(plainly, taken, strict=True))
            low, _, high = statistics.quantiles(ratios, n=4)
            row = {
                "ms_per_step": statistics.median(taken),
                "to_plain": statistics.median(ratios),
                "to_plain_quartiles": [low, high],
                "to_dense": statistics.median(a / b for a, b in zip(dense, taken, strict=True)),
                "passes": statistics.median(a / b for a, b in zip(taken, times["pass"], strict=True)),
                "turns": given.turns,
            }
            found[f"{name} at {slots}"] = row
            told = f"{row['to_plain']:>9.2f} {low:>6.2f} {high:>6.2f} {row['to_dense']:>7.2f} {row['passes']:>7.2f}"
            print(f"{slots:>6} {name:<15} {row['ms_per_step']:>9.2f} {told}", flush=True)
    for kind in KINDS:
        mine_and_plain = training_times(kind, 1024, given.turns)
        milliseconds_per_step = statistics.median(mine_and_plain[0])
        ratios = [b / a for a, b in zip(*mine_and_plain, strict=True)]
        mine, plainly = (training_memory(kind, form, 1024) for form in ("ours", "plain"))
        found[f"{kind}, training at 1024"] = {
            "bytes_per_step": mine,
            "plain_bytes_per_step": plainly,
            "share": mine / plainly,
            "training_ms_per_step": milliseconds_per_step,
            "training_to_plain": statistics.median(ratios),
        }
        print(
            f"{kind}: a step of training at 1,024 slots takes {milliseconds_per_step:.1f} ms, "
            f"{statistics.median(ratios):.2f} times as fast as plain, "
            f"and keeps {mine / 2**20:.1f} MiB, plain {plainly / 2**20:.1f} MiB"
        )
    if given.out:
        write(given.out, "memory", rows=found)


if __name__ == "__main__":
    main()
