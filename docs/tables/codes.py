"""Tables of code lengths and of readers that count."""

import statistics
from typing import Any

from tables.sources import headed, measured

from backstory.reports import Table
from backstory.utils.formats import MISSING


def coded(text: str) -> dict[str, dict[str, Any]]:
    """Rows of the codec benchmark on a text, by coder."""
    return measured("benchmark-codec")["texts"][text]["rows"]


def codes() -> Table:
    """Code length of the beginning of enwik8, and processor time for its first million bytes."""
    whole = coded("enwik8.prefix, 4,154,399 bytes")
    rows = []
    for name, row in coded("enwik8.prefix, 1,000,000 bytes").items():
        all_of_it = f"{whole[name]['bits_per_byte']:.3f}" if name in whole else MISSING
        rows.append((name, f"{row['bytes']:,}", f"{row['bits_per_byte']:.3f}", *code_speeds(row), all_of_it))
    return headed(
        ("coder", "bytes", "bits per byte", "KB/s encoding", "KB/s decoding", "bits per byte of 4 MB"), tuple(rows)
    )


def codes_of_docs() -> Table:
    """Code length and processor time for documentation, by compressors and by a run with and without its weights."""
    rows = tuple(
        (name.replace("demo, ", "run, "), f"{row['bytes']:,}", f"{row['bits_per_byte']:.3f}",
         *(f"{row[part]:.3f}" if part in row else MISSING for part in ("model_bits_per_byte", "spelling_bits_per_byte")),
         f"{row['with_weights']:,.3f}" if row["with_weights"] < 10 else f"{row['with_weights']:,.0f}", *code_speeds(row))
        for name, row in coded("docs:numpy, 100,000 bytes").items()
    )  # fmt: skip
    heads = ("coder, or reader of the run", "bytes", "bits per byte", "of tokens", "of spelling", "with the weights")
    return headed((*heads, "KB/s encoding", "KB/s decoding"), rows)


def code_speeds(row: dict[str, Any]) -> tuple[str, str]:
    return f"{row['compress_kb_per_second']:,.1f}", f"{row['decompress_kb_per_second']:,.1f}"


def coding_speed() -> Table:
    """Coding speed of the small recipe's untrained model in tokens per second, by batch size."""
    speeds = measured("benchmark-codec")["speeds"]["ptb-small"]["rows"]
    rows = tuple((str(row["rows"]), *(f"{row[way]:,.0f}" for way in ("compress", "decompress"))) for row in speeds)
    return headed(("rows", "tokens/s encoding", "tokens/s decoding"), rows, texts=0)


def counted(part: str) -> Any:
    """A part of the counting benchmark."""
    return measured("benchmark-counting")[part]


def counted_ngrams() -> Table:
    """Perplexity of n-grams alone on Penn Treebank, by their length."""
    rows = []
    for row in counted("ngrams")["rows"]:
        name = f"{row['order']}" + ("" if row["across_lines"] else ", lines apart") + (", online" * row["online"])
        cached = [f"{row['cache'][split]:.2f}" if "cache" in row else MISSING for split in ("valid", "test")]
        scores = [f"{row[split]:.2f}" for split in ("valid", "test")]
        cost = f"{row['counting_seconds']:.1f} s", f"{row['bytes'] / 2**20:,.0f} MiB"
        rows.append((name, f"{row['ngrams']:,}", *scores, *cached, *cost))
    heads = "n", "n-grams", "validation", "test", "validation, with a cache", "test, with a cache", "counting", "memory"
    return headed(heads, rows)


def counted_bytes() -> Table:
    """Bits per byte of PPM alone, and of compressors."""
    part = counted("ppm")
    rows = [(name, MISSING, MISSING, f"{bits:.3f}") for name, bits in part["compressors"].items()]
    for row in part["rows"]:
        name = f"PPM, order {row['order']}" + (", exclusion" if row["exclusion"] else "")
        rows.append(
            (
                name,
                row["escape"],
                MISSING if row["escape"] == "c" else f"{row['discount']}",
                f"{row['bits_per_byte']:.3f}",
            )
        )
    return headed(("model", "escape", "discount", "bits per byte"), rows, texts=2)


def counted_stacks(corpus: str) -> Table:
    """Test perplexity of readers around small models, from the inside out: mean over models, and gain of each."""
    models = [row["test"] for row in counted("stacks")["rows"] if row.get("corpus", "stdlib") == corpus]
    rows, before = [], None
    for name in models[0]:
        test = [layers[name] for layers in models]
        gain = [MISSING] if before is None else [f"{a - b:.2f}" for a, b in zip(before, test, strict=True)]
        rows.append((name, f"{statistics.mean(test):.2f}", f"{statistics.stdev(test):.2f}", ", ".join(gain)))
        before = test
    return headed(("reader", "perplexity", "deviation", "gain on the line above, each model"), rows)
