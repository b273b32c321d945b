"""How near a training step comes to the time of its matrix products alone, on the CPU in float32.

    OMP_NUM_THREADS=1 taskset -c 0 python benchmarks/floor.py [--steps 10] [--sizes S P] [--out FILE]

The floor is what no step of this model can do without: in every layer the recurrent products, of the batch's states with the
recurrent weights, one after another over the segment, forward and backward; and the products over the whole segment: input
projections, softmax, and the gradients of all of them. Results go to memory that is there. A recurrent product takes the faster
of two forms: weights as they are, or packed by oneDNN once a segment, which counts. Step and floor are processes of their own
and take turns; the processor's time is counted. The table gives medians with quartiles, and the share of the floor's speed that
the step reaches.
"""

import argparse
import statistics
import time
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING

from figures import write
from training import SIZES, Contenders, Size, ours, timed

if TYPE_CHECKING:
    from torch import Tensor


def floor(size: Size, on: str, precision: str) -> Callable[[], None]:
    """Return a step of nothing but the matrix products of an LSTM's training step."""
    import torch

    from backstory.config import LSTMConfig, recipes
    from backstory.models.devices import keep_freed_memory

    assert (on, precision) == ("cpu", "float32")
    keep_freed_memory()
    config = recipes.load(size.recipe).model
    core, width = config.core, config.embedding.size
    assert isinstance(core, LSTMConfig)
    positions, products = size.batch * size.segment, []
    for inputs, units in pairwise([width, *[core.hidden] * (core.layers - 1), core.output or width]):
        x, states, d_gates = (numbers(positions, n) for n in (inputs, units, 4 * units))
        products += [*dense(x, numbers(4 * units, inputs), d_gates), gradient(states, d_gates)]
        recurrent = numbers(4 * units, units)
        for weight, operand in (
            (recurrent, numbers(size.batch, units)),
            (recurrent.t(), numbers(size.batch, 4 * units)),
        ):
            products.append(fastest(recurrence(operand, weight, size.segment)))
    output = core.output or width
    products += dense(numbers(positions, output), numbers(size.types, output), numbers(positions, size.types))

    def step() -> None:
        with torch.no_grad():
            for product in products:
                product()

    return step


Product = Callable[[], object]


def numbers(*shape: int) -> "Tensor":
    """Return a tensor that is not all zeros."""
    import torch

    return torch.randn(*shape) * 0.05


def dense(x: "Tensor", weight: "Tensor", d_y: "Tensor") -> list[Product]:
    """Return the three products of y = x weight^T and its gradients, over a whole segment."""
    import torch

    y, d_x = torch.empty_like(d_y), torch.empty_like(x)
    return [
        lambda: torch.mm(x, weight.t(), out=y),
        lambda: torch.mm(d_y, weight, out=d_x),
        gradient(x, d_y),
    ]


def gradient(x: "Tensor", d_y: "Tensor") -> Product:
    """Return the product d_y^T x, the gradient of a weight."""
    import torch

    d_weight = x.new_empty(d_y.shape[1], x.shape[1])
    return lambda: torch.mm(d_y.t(), x, out=d_weight)


def recurrence(x: "Tensor", weight: "Tensor", steps: int) -> list[Product]:
    """Return the forms of `steps` products x weight^T: as it is, and packed by oneDNN if this build of torch can."""
    import torch

    y = x.new_empty(len(x), len(weight))

    def plain() -> None:
        for _ in range(steps):
            torch.mm(x, weight.t(), out=y)

    def packed() -> None:
        ready = torch.ops.mkldnn._reorder_linear_weight(weight.contiguous(), len(x))
        for _ in range(steps):
            torch.ops.mkldnn._linear_pointwise(x, ready, None, "none", [], "")

    return [plain, packed] if hasattr(torch.ops.mkldnn, "_reorder_linear_weight") else [plain]


def fastest(forms: list[Product]) -> Product:
    """Return the form with the least time of three."""

    def seconds(form: Product) -> float:
        began = time.process_time()
        form()
        return time.process_time() - began

    return min(forms, key=lambda form: min(seconds(form) for _ in range(3)))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--steps", type=int, default=10)
    parser.add_argument("--sizes", nargs="+", choices=("S", "P"), default=["S", "P"])
    parser.add_argument("--out", type=Path)
    arguments = parser.parse_args()
    rows = {}
    for name in arguments.sizes:
        size = SIZES[name]
        tokens = size.batch * size.segment
        contenders: Contenders = {
            kind: (make, (size, "cpu", "float32")) for kind, make in (("floor", floor), ("backstory", ours))
        }
        times = {kind: seconds for kind, (seconds, _) in timed(contenders, arguments.steps, "cpu").items()}
        speeds = {kind: [tokens / quartile for quartile in quartiles(found)] for kind, found in times.items()}
        share = [a / b for a, b in zip(times["floor"], times["backstory"], strict=True)]
        rows[name] = {"tokens_per_second": speeds, "share_of_floor": quartiles(share)}
        for kind, (high, median, low) in speeds.items():
            print(f"{name} {kind:<10} {median:>8,.0f}/s  ({low:,.0f} to {high:,.0f})")
        low, median, high = rows[name]["share_of_floor"]
        print(f"{name} share of the floor {median:.2f}  ({low:.2f} to {high:.2f})", flush=True)
    if arguments.out:
        write(arguments.out, "floor", "cpu", rows=rows)


def quartiles(values: list[float]) -> list[float]:
    """Return the first quartile, the median and the third quartile."""
    return statistics.quantiles(values, n=4)


if __name__ == "__main__":
    main()
