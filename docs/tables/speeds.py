"""Tables of speed and memory, from the benchmarks' files."""

from collections.abc import Iterable
from typing import Any

from tables.sources import benchmark_rows, headed, measured

from backstory.reports import Table
from backstory.utils.formats import MISSING, signed_percent


def speed(name: str) -> Table:
    """Tokens per second and peak memory of our and the plain training step, a row for each size and precision."""
    benchmark: dict[str, dict[str, Any]] = measured(name)["rows"]
    if any("reference" in row for row in benchmark.values()):
        return _speed_across(benchmark)
    rows = tuple(
        (size, precision, *_speed_in(precision, row["steps"], row["ratios"]))
        for size, row in benchmark.items()
        for precision in ("float32", "bfloat16")
        if f"backstory, {precision}" in row["steps"]
    )
    heads = ("plain, tokens/s", "Backstory, tokens/s", "ratio in the same precision", "ratio to plain float32")
    return headed(("step", "products", *heads, "plain, GiB", "Backstory, GiB"), rows, texts=2)


def _speed_in(precision: str, steps: dict[str, dict[str, float]], ratios: dict[str, float]) -> Iterable[str]:
    pair = [steps.get(f"{kind}, {precision}", {}) for kind in ("plain", "backstory")]
    yield from (_number(step, "tokens_per_second", ",.0f") for step in pair)
    yield from (_number(ratios, f"{precision} : {other}", ".2f") for other in (precision, "float32"))
    yield from (_number(step, "peak_gib", ".2f") for step in pair)


def _speed_across(benchmark: dict[str, dict[str, Any]]) -> Table:
    """The same for older files, which have only ours in bfloat16 and the plain step in float32."""
    rows = tuple(
        (
            size,
            *(f"{row[step]['tokens_per_second']:,.0f}" for step in ("reference", "backstory")),
            f"{row['ratio']:.2f}",
            *(f"{row[step]['peak_gib']:.2f}" for step in ("reference", "backstory")),
        )
        for size, row in benchmark.items()
    )
    heads = ("plain float32, tokens/s", "Backstory bfloat16, tokens/s", "bfloat16 : float32")
    return headed(("step", *heads, "plain float32, GiB", "Backstory bfloat16, GiB"), rows)


def _number(figures: dict[str, float], key: str, form: str) -> str:
    return format(figures[key], form) if key in figures else MISSING


def floor_speed() -> Table:
    """A training step relative to its matrix products alone: medians, and quartiles of the share."""
    benchmark: dict[str, dict[str, dict[str, Any]]] = benchmark_rows("floor")
    rows = []
    for size, precisions in benchmark.items():
        for precision, row in precisions.items():
            speeds = (f"{row['tokens_per_second'][kind][1]:,.0f}" for kind in ("floor", "backstory"))
            low, median, high = row["share_of_floor"]
            rows.append((size, precision, *speeds, f"{median:.0%}", f"{low:.0%} to {high:.0%}"))
    heads = ("products alone, tokens/s", "Backstory, tokens/s", "share of their speed", "quartiles")
    return headed(("step", "products", *heads), tuple(rows), texts=2)


def learning_curves() -> Table:
    """Mean validation perplexity after each epoch by the code before the work on speed and by later code."""
    rows = []
    for row in measured("benchmark-curves")["epochs"]:
        changes = (signed_percent(100 * (row[f"{end}_ratio"] - 1)) for end in ("smallest", "largest"))
        rows.append((str(row["epoch"]), f"{row['before']:.2f}", f"{row['after']:.2f}", " to ".join(changes)))
    return headed(("epoch", "before", "after", "change, smallest and largest of a seed"), rows, numbers=(0, 1, 2))


def reading_speed() -> Table:
    """Tokens per second of the readers, each size in one run."""
    benchmark: dict[str, dict[str, float]] = benchmark_rows("reading")
    rows = tuple(
        (
            name,
            *(
                cell
                for size in benchmark.values()
                for cell in (f"{size[name]:,.0f}", f"{size['static'] / size[name]:.2f}")
            ),
        )
        for name in next(iter(benchmark.values()))
    )
    heads = ("reader", *(head for size in benchmark for head in (f"{size}, tokens/s", "times static's time")))
    return headed(heads, rows)


def core_speed() -> Table:
    """Training steps of LSTM and Mogrifier, with and without dual connection, and of a plain Mogrifier loop."""
    benchmark: dict[str, dict[str, Any]] = benchmark_rows("cores")
    alike = all("to_plain_alike" in row for row in benchmark.values())  # missing in older files
    rows = tuple(
        (
            name,
            row["precision"],
            f"{row['tokens_per_second']:,.0f}",
            f"{row['to_plain']:.2f}",
            "{:.2f} to {:.2f}".format(*row["to_plain_quartiles"]),
            *((f"{row['to_plain_alike']:.2f}",) if alike else ()),
        )
        for name, row in benchmark.items()
    )
    heads = ("model", "products", "tokens/s", "times the plain loop in float32", "quartiles")
    heads += ("times it in the same precision",) if alike else ()
    return headed(heads, rows, texts=2)


def buffer_cost() -> Table:
    """A training step with a span buffer, as multiples of its control's."""
    benchmark: dict[str, dict[str, Any]] = benchmark_rows("span-buffer")
    rows = tuple(
        (
            f"{int(words):,}",
            name,
            f"{row['tokens_per_second']:,.0f}",
            f"{row['time']:.2f}",
            f"{row['peak_gib']:.2f}",
            f"{row['memory']:.2f}",
        )
        for words, models in benchmark.items()
        for name, row in models.items()
    )
    heads = ("words", "model", "tokens/s", "time", "peak, GiB", "memory")
    return headed(heads, rows, numbers=(0, *range(2, len(heads))))


def memory_speed() -> Table:
    """Milliseconds per step of external memories by size; also of the plain form, the dense memory and one pass."""
    benchmark: dict[str, dict[str, Any]] = benchmark_rows("memory")
    rows = []
    for at_size, row in benchmark.items():
        name, _, size = at_size.rpartition(" at ")
        if "ms_per_step" in row and name != "pass":
            plain = (
                ""
                if name.endswith("plain") or f"{name.split(',')[0]}, plain at {size}" not in benchmark
                else f"{row['to_plain']:.2f}"
            )
            times = f"{row['ms_per_step']:.1f}", plain, f"{row['to_dense']:.2f}", f"{row['passes']:.1f}"
            rows.append((f"{int(size):,}", name, *times))
    faster = "times as fast as plain in float32", "times as fast as dense NTM"
    heads = ("slots", "memory", "ms per step, float32", *faster, "passes")
    return headed(heads, rows, numbers=(0, *range(2, len(heads))))


def inference_time() -> Table:
    """Milliseconds per batch of the systems of Lee et al., and the ratio to the dense memory; ours and published."""
    benchmark: dict[str, dict[str, Any]] = benchmark_rows("inference")
    rows = []
    for name, row in benchmark.items():
        printed = ("", "")
        if row["published_ms_per_batch"] is not None:
            printed = f"{row['published_ms_per_batch']:,}", f"{row['published_to_dense']:.2f}"
        quartiles = "{:.2f} to {:.2f}".format(*row["to_dense_quartiles"])
        ours = f"{row['parameters']:,}", f"{row['ms_per_batch']:,.0f}", f"{row['to_dense']:.2f}", quartiles
        rows.append((row["corpus"], name.removeprefix("enwik8-"), *ours, *printed))
    heads = (
        "corpus",
        "system",
        "parameters",
        "ms per batch",
        "time, dense = 1",
        "quartiles",
        "published ms",
        "published time, dense = 1",
    )
    return headed(heads, tuple(rows), texts=2)


def memory_training() -> Table:
    """Memory that a training step keeps for an external memory, compared with the plain form."""
    benchmark: dict[str, dict[str, Any]] = benchmark_rows("memory")
    rows = tuple(
        (
            name,
            f"{row['bytes_per_step'] / 2**20:.1f}",
            f"{row['plain_bytes_per_step'] / 2**20:.1f}",
            f"{row['share']:.2f}",
            f"{row['training_ms_per_step']:.1f}",
            f"{row['training_to_plain']:.2f}",
        )
        for name, row in benchmark.items()
        if "bytes_per_step" in row
    )
    heads = ("memory", "MiB per step", "plain", "share", "ms per step, float32", "times as fast as plain in float32")
    return headed(heads, rows)


def scoring_speed() -> Table:
    """Targets per second after 300 tokens of context, compared with the naive form."""
    benchmark: dict[str, dict[str, Any]] = benchmark_rows("context")
    rows = tuple(
        (size, form, f"{row['targets_per_second']:.1f}", f"{row['speed']:.2f}", f"{row['peak_gib']:.2f}")
        for size, forms in benchmark.items()
        for form, row in forms.items()
    )
    heads = ("model", "form", "targets/s", "times the naive form in float32", "peak, GiB")
    return headed(heads, rows, texts=2)
