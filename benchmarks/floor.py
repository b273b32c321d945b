"""Time of a training step relative to its matrix products alone, on the CPU, in float32 and in bfloat16.

    OMP_NUM_THREADS=1 taskset -c 0 python benchmarks/floor.py [--steps 10] [--sizes S P] [--precisions float32] [--out FILE]

The floor is the work that every step of this model needs (`backstory.training.matrix_products`): in each layer the
recurrent products of the batch's states with the recurrent weights, one after another over the segment, forward and
backward; and the products over the whole segment: input projections, softmax, and all their gradients. Each uses the
faster of two forms: as torch computes it, or packed by oneDNN once per segment (packing time included). Step and floor
run in processes of their own and take turns; processor time is counted. The table gives medians with quartiles, and the
share of the floor's speed that the step reaches. bfloat16 is left out by default where the processor does not multiply it
natively.
"""

import argparse
import statistics
from collections.abc import Callable
from pathlib import Path

from figures import write
from training import SIZES, Contenders, Size, ours, timed


def floor(size: Size, on: str, precision: str) -> Callable[[], None]:
    """Return a step that computes only the matrix products of a training step."""
    import torch

    from backstory.config import recipes
    from backstory.models import choose_precision
    from backstory.models.devices import keep_freed_memory
    from backstory.training.matrix_products import fastest_run, step_products

    keep_freed_memory()
    device, targets = torch.device(on), torch.randint(size.types, (size.batch, size.segment))
    products = step_products(recipes.load(size.recipe), targets, size.types)
    assert products is not None
    return fastest_run(products, device, choose_precision(precision, device))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--steps", type=int, default=10)
    parser.add_argument("--sizes", nargs="+", choices=("S", "P"), default=["S", "P"])
    parser.add_argument("--precisions", nargs="+", choices=("float32", "bfloat16"))
    parser.add_argument("--out", type=Path)
    arguments = parser.parse_args()
    precisions = arguments.precisions or usable()
    rows: dict[str, dict[str, dict[str, object]]] = {}
    for name in arguments.sizes:
        size = SIZES[name]
        tokens = size.batch * size.segment
        contenders: Contenders = {
            f"{kind} {precision}": (make, (size, "cpu", precision))
            for precision in precisions
            for kind, make in (("floor", floor), ("backstory", ours))
        }
        times = {kind: seconds for kind, (seconds, _) in timed(contenders, arguments.steps, "cpu").items()}
        for precision in precisions:
            own = {kind: times[f"{kind} {precision}"] for kind in ("floor", "backstory")}
            speeds = {kind: [tokens / quartile for quartile in quartiles(found)] for kind, found in own.items()}
            share = quartiles([a / b for a, b in zip(own["floor"], own["backstory"], strict=True)])
            rows.setdefault(name, {})[precision] = {"tokens_per_second": speeds, "share_of_floor": share}
            for kind, (high, median, low) in speeds.items():
                print(f"{name} {precision} {kind:<10} {median:>8,.0f}/s  ({low:,.0f} to {high:,.0f})")
            low, median, high = share
            print(f"{name} {precision} share of the floor {median:.2f}  ({low:.2f} to {high:.2f})", flush=True)
    if arguments.out:
        write(arguments.out, "floor", "cpu", rows=rows)


def usable() -> list[str]:
    """Return the precisions that training would use here."""
    import torch

    from backstory.models import choose_precision

    native = choose_precision("auto", torch.device("cpu")).dtype == torch.bfloat16
    return ["float32", "bfloat16"] if native else ["float32"]


def quartiles(values: list[float]) -> list[float]:
    """Return the first quartile, the median and the third quartile."""
    return statistics.quantiles(values, n=4)


if __name__ == "__main__":
    main()
