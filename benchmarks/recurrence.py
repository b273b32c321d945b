"""Time of an LSTM layer's segment, forward and backward, in bfloat16 on the CPU: the library's path and ours.

    OMP_NUM_THREADS=1 taskset -c 0 python benchmarks/recurrence.py

The two take turns; the table gives medians in milliseconds. `OWN_FROM` in `models/kernels/recurrence.py` comes from it.
"""

import statistics
import time
from unittest import mock

import torch

from backstory.models.devices import keep_freed_memory
from backstory.models.kernels import recurrence

ROWS, STEPS, TURNS = 20, 70, 7
SIZES = (*((units, units) for units in (128, 200, 300, 400, 512, 640, 768, 1024, 1150)), (1150, 400))


def step(inputs: int, units: int, own_from: int) -> float:
    """Seconds of one forward and backward pass with the switch set to `own_from`."""
    torch.manual_seed(0)
    x = torch.randn(ROWS, STEPS, inputs, requires_grad=True)
    sizes = (4 * units, inputs), (4 * units, units), (4 * units,), (4 * units,)
    weights = [torch.randn(*size).mul_(0.05).requires_grad_() for size in sizes]
    state = torch.zeros(ROWS, units), torch.zeros(ROWS, units)
    with mock.patch.object(recurrence, "OWN_FROM", own_from):
        began = time.perf_counter()
        with torch.autocast("cpu", torch.bfloat16):
            output, _, _ = recurrence.lstm_segment(x, *state, *weights)
        output.float().sum().backward()
        return time.perf_counter() - began


def main() -> None:
    keep_freed_memory()
    print(f"{'inputs':>6} {'units':>6} {'library, ms':>12} {'own, ms':>9} {'ratio':>6}")
    for inputs, units in SIZES:
        times: dict[int, list[float]] = {1: [], 1 << 30: []}
        for turn in range(TURNS + 1):
            for own_from, found in times.items():
                seconds = step(inputs, units, own_from)
                if turn:
                    found.append(seconds)
        own, library = (1000 * statistics.median(found) for found in times.values())
        print(f"{inputs:>6} {units:>6} {library:>12.1f} {own:>9.1f} {library / own:>6.2f}")


if __name__ == "__main__":
    main()
