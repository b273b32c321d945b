"""What the Mogrifier and the dual connection cost: training steps of LSTM, Mogrifier and a plain loop over Mogrifier cells.

    OMP_NUM_THREADS=1 taskset -c 0 python benchmarks/cores.py [--turns 10] [--out results/benchmark-cores.json]
    python benchmarks/cores.py --device cuda

Two layers of 850 units, four rounds of rank 100, batch 32, segments of 25, and a tied softmax over 10,000 words; forward and
backward pass. The plain loop is the equations with autograd, in float32. All are in one process and take turns step by step.
The table gives medians; the ratio to the plain loop as the median of the ratios of each turn, with its quartiles, which say how
noisy the machine was; and the ratio of the fastest steps. With --out it is also written as JSON.
"""

import argparse
import statistics
import sys
import time
from collections.abc import Callable
from pathlib import Path

import torch
from torch import Tensor
from training import write

from backstory.config import DualConfig, EmbeddingConfig, LSTMConfig, ModelConfig, MogrifierConfig, SoftmaxConfig
from backstory.models import ComposedModel, Precision, build_model, choose_device, choose_precision
from backstory.models.allocator import keep_freed_memory
from backstory.models.cores import mogrifier
from backstory.models.cores.mogrification import Round

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
    """`mogrifier_segment` as one would write it."""
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


def seconds(of: ComposedModel, precision: Precision, segment: Callable, device: torch.device) -> float:
    """Of one forward and backward pass, in which the Mogrifier's layers run by `segment`."""
    text = torch.randint(TYPES, (ROWS, STEPS + 1), device=device)
    of.zero_grad(set_to_none=True)
    usual, mogrifier.mogrifier_segment = mogrifier.mogrifier_segment, segment
    began = time.perf_counter()
    try:
        with precision.context(device):
            prediction, _ = of(text[:, :-1], of.start(ROWS))
            loss = -prediction.log_prob(text[:, 1:]).mean()
        loss.backward()
    finally:
        mogrifier.mogrifier_segment = usual
    loss.item()
    if device.type == "cuda":
        torch.cuda.synchronize()
    return time.perf_counter() - began


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--turns", type=int, default=10)
    parser.add_argument("--device", choices=("cpu", "cuda"), default="cpu")
    parser.add_argument("--precision", choices=("auto", "float32", "bfloat16"), default="auto")
    parser.add_argument("--out", type=Path)
    given = parser.parse_args()
    keep_freed_memory()
    device, usual = choose_device(given.device), mogrifier.mogrifier_segment
    chosen = choose_precision(given.precision, device)
    wide = Precision(torch.float32, "the plain loop's")
    kinds = {"LSTM": LSTM, "Mogrifier": MOGRIFIER}
    models = {
        f"{'Dual ' * dual}{name}": model(core, dual, device) for name, core in kinds.items() for dual in (False, True)
    }
    runs = {name: (made, chosen, usual) for name, made in models.items()}
    runs |= {
        PLAIN: (models["Mogrifier"], wide, plain_segment),
        "Mogrifier, float32": (models["Mogrifier"], wide, usual),
    }
    times: dict[str, list[float]] = {name: [] for name in runs}
    for turn in range(WARM_UP + given.turns):
        for name, (made, precision, segment) in runs.items():
            taken = seconds(made, precision, segment, device)
            if turn >= WARM_UP:
                times[name].append(taken)
        print(f"turn {turn + 1} of {WARM_UP + given.turns}", file=sys.stderr, flush=True)
    rows = {}
    print(f"{'model':<20} {'precision':<9} {'tokens/s':>9} {'to plain':>9} {'quartiles':>13} {'of bests':>9}")
    for name, (_, precision, _) in runs.items():
        ratios = [plain / mine for plain, mine in zip(times[PLAIN], times[name], strict=True)]
        low, _, high = statistics.quantiles(ratios, n=4)
        rows[name] = {
            "precision": precision.name,
            "tokens_per_second": ROWS * STEPS / statistics.median(times[name]),
            "best_tokens_per_second": ROWS * STEPS / min(times[name]),
            "to_plain": statistics.median(ratios),
            "to_plain_quartiles": [low, high],
            "to_plain_of_bests": min(times[PLAIN]) / min(times[name]),
            "turns": given.turns,
        }
        row = rows[name]
        print(
            f"{name:<20} {precision.name:<9} {row['tokens_per_second']:>9,.0f} {row['to_plain']:>9.2f} "
            f"{low:>6.2f} {high:>6.2f} {row['to_plain_of_bests']:>9.2f}"
        )
    if given.out:
        write(given.out, "cores", rows, given.device)


if __name__ == "__main__":
    main()
