"""Cost of a span buffer: a training step against that of its control, a second softmax behind the same gate.

    OMP_NUM_THREADS=1 taskset -c 0 python benchmarks/span_buffer.py [--steps 10] [--size P] [--buffers 256 2048 65536]
    python benchmarks/span_buffer.py --device cuda

Size P is a full-size AWD-LSTM, with spans of 8 words. Each contender has a process of its own, and they take turns step
by step. The table gives medians, and time and peak memory as multiples of the control's; with --out it is also written
as JSON.
"""

import argparse
from pathlib import Path

from figures import write
from training import SIZES, Contenders, compare, ours

SPAN = 8
MOST = 20_000
"""Largest buffer with sliding spans: the states of 65,536 words alone take 2 GiB, and a step with them 12."""


def contenders(size: str, words: int, on: str, precision: str) -> Contenders:
    """The plain model, the control, and buffers of this many words."""
    from backstory.config import AuxiliarySoftmaxConfig, SpanBufferConfig

    how = (SIZES[size], on, precision)
    buffer = {
        "bilinear": SpanBufferConfig(size=words, span=SPAN, attention="bilinear"),
        "additive": SpanBufferConfig(size=words, span=SPAN, attention="additive"),
        "bilinear, fixed": SpanBufferConfig(size=words, span=SPAN, attention="bilinear", alignment="fixed"),
        "additive, fixed": SpanBufferConfig(size=words, span=SPAN, attention="additive", alignment="fixed"),
    }
    if words > MOST:
        buffer = {name: config for name, config in buffer.items() if config.alignment == "fixed"}
    found: Contenders = {"one softmax": (ours, how), "control": (ours, (*how, AuxiliarySoftmaxConfig()))}
    return found | {name: (ours, (*how, config)) for name, config in buffer.items()}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--steps", type=int, default=10)
    parser.add_argument("--size", choices=SIZES, default="P")
    parser.add_argument("--buffers", type=int, nargs="+", default=[256, 2048, 16384, 65536])
    parser.add_argument("--device", choices=("cpu", "cuda"), default="cpu")
    parser.add_argument("--precision", choices=("auto", "float32", "bfloat16"), default="auto")
    parser.add_argument("--out", type=Path)
    given = parser.parse_args()
    size, rows = SIZES[given.size], {}
    print(f"{'words':>7}  {'model':<15} {'tokens/s':>9} {'time':>6} {'GiB':>6} {'memory':>7}", flush=True)
    for words in given.buffers:
        made = contenders(given.size, words, given.device, given.precision)
        found = compare(made, size.batch * size.segment, given.steps, given.device)
        control = found["control"]
        for name, figures in found.items():
            figures["time"] = control["tokens_per_second"] / figures["tokens_per_second"]
            figures["memory"] = figures["peak_gib"] / control["peak_gib"]
            print(
                f"{words:>7}  {name:<15} {figures['tokens_per_second']:>9,.0f} {figures['time']:>6.2f} "
                f"{figures['peak_gib']:>6.2f} {figures['memory']:>7.2f}",
                flush=True,
            )
        rows[str(words)] = found
        if given.out:
            write(given.out, "span-buffer", given.device, rows=rows)


if __name__ == "__main__":
    main()
