"""Cost of the Mogrifier and the dual connection: training steps of LSTM, Mogrifier and a plain loop over Mogrifier cells.

    OMP_NUM_THREADS=1 taskset -c 0 python benchmarks/cores.py [--turns 10] [--out results/benchmark-cores.json]
    python benchmarks/cores.py --device cuda

Two layers of 850 units, four rounds of rank 100, batch 32, segments of 25, and a tied softmax over 10,000 words;
forward and backward pass. The plain loop is the equations with autograd, in float32 and in the precision of the others.
Each has a process of its own, because allocator settings are per process (the plain loop returns memory to the system).
They take turns step by step. The table gives medians; the ratio to the plain loop in float32 as the median over turns,
with quartiles that show the noise of the machine; the same ratio to the plain loop in the row's own precision; and the
ratio of the fastest steps. With --out it is also written as JSON.
"""

import argparse
import statistics
from collections.abc import Callable
from pathlib import Path

import torch
from figures import write
from torch import Tensor
from training import Contenders, timed

from backstory.config import DualConfig, EmbeddingConfig, LSTMConfig, ModelConfig, MogrifierConfig, SoftmaxConfig
from backstory.models import ComposedModel, Precision, build_model, choose_device, choose_precision
from backstory.models.cores import recurrent
from backstory.models.devices import keep_freed_memory
from backstory.models.kernels.recurrence import Round

TYPES, UNITS, ROWS, STEPS, WARM_UP = 10_000, 850, 32, 25, 1
PLAIN = "plain loop"
LSTM, MOGRIFIER = (LSTMConfig(layers=2, hidden=UNITS, biases=1, weight_drop=0.0, state_dropout=0.5), MogrifierConfig())


def plain_segment(
    x: Tensor,
    h: Tensor,
    c: Tensor,
    weight_ih: Tensor,
    weight_hh: Tensor,
    bias: Tensor,
    rounds: list[Round],
    mask: Tensor,
) -> tuple[Tensor, Tensor, Tensor]:
    """Straightforward version of `mogrifier_segment`."""
    outputs = []
    for e in x.unbind(1):
        state = h * mask
        for number, one in enumerate(rounds):
            assert one.right is not None and one.mask is not None
            other = e if number % 2 else state
            gate = 2 * torch.sigmoid((other @ one.right.t() * one.mask) @ one.left.t() + one.bias)
            e, state = (e, gate * state) if number % 2 else (gate * e, state)
        i, f, g, o = (e @ weight_ih.t() + state @ weight_hh.t() + bias).chunk(4, 1)
        c = f.sigmoid() * c + i.sigmoid() * g.tanh()
        h = o.sigmoid() * c.tanh()
        outputs.append(h)
    return torch.stack(outputs, 1), h, c


def model(core: LSTMConfig | MogrifierConfig, dual: bool, device: torch.device) -> ComposedModel:
    torch.manual_seed(0)
    config = ModelConfig(EmbeddingConfig(UNITS, 0.0), core, SoftmaxConfig(bias=False))
    if dual:
        config = ModelConfig(config.embedding, core, config.head, dual=DualConfig())
    return build_model(config, TYPES).to(device).train()


def ours(core: LSTMConfig | MogrifierConfig, dual: bool, on: str, precision: str) -> Callable[[], None]:
    """Forward and backward pass as in `backstory train`, including its allocator settings."""
    keep_freed_memory()
    device = choose_device(on)
    return step(model(core, dual, device), choose_precision(precision, device), device)


def plain(on: str, precision: str) -> Callable[[], None]:
    """The same for a Mogrifier whose layers are plain loops."""
    recurrent.mogrifier_segment = plain_segment
    device = choose_device(on)
    return step(model(MOGRIFIER, False, device), choose_precision(precision, device), device)


def step(of: ComposedModel, precision: Precision, device: torch.device) -> Callable[[], None]:
    def run() -> None:
        text = torch.randint(TYPES, (ROWS, STEPS + 1), device=device)
        of.zero_grad(set_to_none=True)
        with precision.context(device):
            prediction, _ = of(text[:, :-1], of.start(ROWS))
            loss = -prediction.log_prob(text[:, 1:]).mean()
        loss.backward()
        loss.item()

    return run


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--turns", type=int, default=10)
    parser.add_argument("--device", choices=("cpu", "cuda"), default="cpu")
    parser.add_argument("--precision", choices=("auto", "float32", "bfloat16"), default="auto")
    parser.add_argument("--out", type=Path)
    given = parser.parse_args()
    chosen = choose_precision(given.precision, choose_device(given.device)).name
    asked = {
        f"{'Dual ' * dual}{name}": (core, dual, chosen)
        for name, core in (("LSTM", LSTM), ("Mogrifier", MOGRIFIER))
        for dual in (False, True)
    }
    asked["Mogrifier, float32"] = (MOGRIFIER, False, "float32")
    made: Contenders = {
        name: (ours, (core, dual, given.device, precision)) for name, (core, dual, precision) in asked.items()
    }
    loops = {
        precision: PLAIN if precision == "float32" else f"{PLAIN}, {precision}" for precision in ("float32", chosen)
    }
    made |= {name: (plain, (given.device, precision)) for precision, name in loops.items()}
    found = timed(made, given.turns, given.device, WARM_UP)
    precisions = {name: precision for name, (_, _, precision) in asked.items()}
    precisions |= {name: precision for precision, name in loops.items()}
    against, _ = found[PLAIN]
    rows = {}
    print(
        f"{'model':<20} {'precision':<9} {'tokens/s':>9} {'to float32':>10} {'quartiles':>13} {'alike':>6} {'of bests':>9}"
    )
    for name, (times, _) in found.items():
        precision = precisions[name]
        alike, _ = found[loops[precision]]
        ratios = [other / mine for other, mine in zip(against, times, strict=True)]
        low, _, high = statistics.quantiles(ratios, n=4)
        rows[name] = {
            "precision": precision,
            "tokens_per_second": ROWS * STEPS / statistics.median(times),
            "best_tokens_per_second": ROWS * STEPS / min(times),
            "to_plain": statistics.median(ratios),
            "to_plain_quartiles": [low, high],
            "to_plain_alike": statistics.median(other / mine for other, mine in zip(alike, times, strict=True)),
            "to_plain_of_bests": min(against) / min(times),
            "turns": given.turns,
        }
        row = rows[name]
        print(
            f"{name:<20} {precision:<9} {row['tokens_per_second']:>9,.0f} {row['to_plain']:>10.2f} "
            f"{low:>6.2f} {high:>6.2f} {row['to_plain_alike']:>6.2f} {row['to_plain_of_bests']:>9.2f}"
        )
    if given.out:
        write(given.out, "cores", given.device, rows=rows)


if __name__ == "__main__":
    main()
