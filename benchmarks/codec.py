"""Size and speed of compression by PPM, trained runs and general compressors, on a text that no run was trained on.

    python benchmarks/codec.py TEXT [--bytes 1000000] [--ppm | --counted results/benchmark-counting.json]
                               [--runs RUN ...] [--readers static cache ...] [--out results/benchmark-codec.json]
    python benchmarks/codec.py TEXT --untrained RECIPE [--out results/benchmark-codec.json]

TEXT is a file, or `docs:PACKAGE`, the docstrings of an installed package. Other texts in the output file are kept.

A row has the size of the code in bytes, bits per byte of text without and with the model's weights, and KB of text per
second of processor time in both directions. `--ppm` codes with the reader `ppm` alone, which starts without counts;
`--counted` takes that row from the results of benchmarks/counting.py on the same bytes. Rows of runs also have the
lengths of tokens and of spelling, the excess of the code over their sum (rounding), and the difference between the
length of the tokens and the score of `backstory evaluate`. Missing compressors are left out.

`--untrained` measures the speed of a recipe's untrained model for several batch sizes, in tokens per second of
processor time on one core.

The rows of results/benchmark-codec.json:

    python benchmarks/codec.py enwik8.prefix --bytes 1000000 --counted results/benchmark-counting.json --out ...
    python benchmarks/codec.py enwik8.prefix --out ...
    python benchmarks/codec.py docs:numpy --bytes 100000 --ppm --runs demo --out ...
    python benchmarks/codec.py ptb.test.txt --bytes 30000 --untrained ptb-small --out ...

where `demo` is a run of the recipe `demo`.
"""

import argparse
import ast
import bz2
import hashlib
import importlib
import json
import lzma
import math
import resource
import shutil
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import torch
from counting import code_bytes
from figures import write

from backstory.codec import compress, decompress
from backstory.codec.range_coder import Decoder, Encoder
from backstory.config.options import LoadOptions
from backstory.config.readers import PPMSettings
from backstory.config.recipes import recipe as load_recipe
from backstory.data import prepare
from backstory.evaluation import evaluate
from backstory.evaluation.opening import read_text
from backstory.models import build_model
from backstory.runs.run import Run, open_run
from backstory.storage.checkpoint import newest_checkpoint
from backstory.storage.manifest import BEST
from backstory.storage.provenance import commit
from backstory.storage.run_files import CHECKPOINTS

PPM = PPMSettings(6, "d", 0.85)
"""The best settings that benchmarks/counting.py tries on the second million bytes of enwik8."""
PPM_NAME = "ppm, nothing trained"
SIDE_BY_SIDE = (1, 4, 16)
"""Batch sizes for the speed of an untrained model."""


class Compressor(NamedTuple):
    compress: Callable[[bytes], bytes]
    decompress: Callable[[bytes], bytes]


def processor_time() -> float:
    """Return the processor time of this process and its children in seconds."""
    used = [resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
    return sum(one.ru_utime + one.ru_stime for one in used)


def timed(function: Callable[[bytes], Any], data: bytes) -> tuple[Any, float]:
    """Return a function's output for some bytes, and the processor time of one call."""
    began, calls = processor_time(), 0
    while not calls or (processor_time() - began < 0.2 and calls < 50):
        result, calls = function(data), calls + 1
    return result, (processor_time() - began) / calls


def program(*command: str) -> Callable[[bytes], bytes]:
    return lambda data: subprocess.run(command, input=data, stdout=subprocess.PIPE, check=True).stdout


def compressors() -> Iterator[tuple[str, Compressor]]:
    """Yield the available general compressors at their best settings."""
    filters = [{"id": lzma.FILTER_LZMA2, "preset": 9 | lzma.PRESET_EXTREME}]
    yield "xz -9e", Compressor(lambda data: lzma.compress(data, filters=filters), lzma.decompress)
    yield "bzip2 -9", Compressor(bz2.compress, bz2.decompress)
    if shutil.which("zstd"):
        best = ("zstd", "--ultra", "-22", "-c", "-q")
        yield "zstd --ultra -22", Compressor(program(*best), program("zstd", "-d", "-c", "-q"))
    if brotli := imported("brotli"):
        yield "brotli -q 11", Compressor(lambda data: brotli.compress(data, quality=11, lgwin=24), brotli.decompress)
    if pyppmd := imported("pyppmd"):
        order, memory = 8, 64 << 20
        yield (
            "ppmd, order 8",
            Compressor(
                lambda data: pyppmd.compress(data, max_order=order, mem_size=memory),
                lambda code: pyppmd.decompress(code, max_order=order, mem_size=memory),
            ),
        )


def imported(name: str) -> Any:
    try:
        return importlib.import_module(name)
    except ImportError:
        print(f"{name} is not installed, and left out", file=sys.stderr)
        return None


def general_row(compressor: Compressor, data: bytes) -> dict[str, Any]:
    code, there = timed(compressor.compress, data)
    text, back = timed(compressor.decompress, code)
    assert text == data
    bits = 8 * len(code) / len(data)
    return {"bytes": len(code), "bits_per_byte": bits, "with_weights": bits, **speeds(data, there, back)}


def ppm_row(data: bytes) -> dict[str, Any]:
    def encode(text: bytes) -> bytes:
        encoder = Encoder()
        code_bytes(encoder, PPM, len(text), text)
        return encoder.finish()

    return general_row(Compressor(encode, lambda code: code_bytes(Decoder(code), PPM, len(data))), data)


def counted_row(file: Path, data: bytes) -> dict[str, Any]:
    """Return the row for the bytes that benchmarks/counting.py has coded."""
    part = json.loads(file.read_text())["megabyte"]
    coded = part["bytes"], part["order"], part["discount"], part["sha256"]
    if coded != (len(data), PPM.order, PPM.discount, hashlib.sha256(data).hexdigest()):
        raise SystemExit(f"{file} has coded other bytes, or with other settings")
    bits, seconds = part["bits_per_byte"], part["seconds"]
    speed = speeds(data, seconds["encoding"], seconds["decoding"])
    return {"bytes": part["code_bytes"], "bits_per_byte": bits, "with_weights": bits, **speed}


def speeds(data: bytes, there: float, back: float) -> dict[str, float]:
    size = len(data) / 1000
    return {"compress_kb_per_second": size / max(there, 1e-6), "decompress_kb_per_second": size / max(back, 1e-6)}


def model_row(folder: Path, reader: str, batch_size: int, data: bytes) -> dict[str, Any]:
    run = open_run(folder, LoadOptions(device="cpu"))
    how: dict[str, Any] = {"reader": reader, "batch_size": batch_size}
    code, there = timed(lambda text: compress(text, run, **how), data)
    text, back = timed(lambda code: decompress(code, run), code.data)
    assert text == data
    weights, coded = weight_bytes(folder), code.model_bits + code.spelling_bits
    row = {
        "bytes": code.code_size,
        "bits_per_byte": 8 * code.code_size / len(data),
        "with_weights": 8 * (code.code_size + weights) / len(data),
        **speeds(data, there, back),
        "weights_bytes": weights,
        "tokens": code.tokens,
        "model_bits_per_byte": code.model_bits / len(data),
        "spelling_bits_per_byte": code.spelling_bits / len(data),
        "header_bytes": code.header_size,
        "rounding": 8 * (code.code_size - code.header_size) / (coded + code.check_bits) - 1,
    }
    if batch_size == 1:
        with tempfile.TemporaryDirectory() as place:
            file = Path(place) / "text.txt"
            file.write_bytes(data)
            figures = evaluate(run, text=file, reader=reader, allow_unknown=True).figures
            unknown = (read_text(run, file).splits["text"].ids == run.vocabulary.unknown).mean()
        row["from_the_score"] = code.model_bits / (figures.nats_per_token * figures.tokens / math.log(2)) - 1
        row["unknown"] = float(unknown)
    return row


def untrained(recipe: str) -> Run:
    """Return a run in memory: a recipe's model with random weights, and the vocabulary of its corpus."""
    config = load_recipe(recipe)
    dataset = prepare(config.text)
    torch.manual_seed(0)
    model = build_model(config.model, len(dataset.vocabulary)).eval()
    return Run(Path(recipe), model, dataset.vocabulary, config, {}, {})


def speed_rows(recipe: str, data: bytes) -> list[dict[str, Any]]:
    """Return tokens per second of an untrained model in both directions, the median of three, by batch size."""
    run, rows = untrained(recipe), []
    for batch_size in SIDE_BY_SIDE:
        speeds = []
        for _ in range(3):
            code, there = timed(lambda text, rows=batch_size: compress(text, run, batch_size=rows), data)
            text, back = timed(lambda code: decompress(code, run), code.data)
            assert text == data
            speeds.append((code.tokens / there, code.tokens / back))
        there, back = (statistics.median(ways) for ways in zip(*speeds, strict=True))
        rows.append({"rows": batch_size, "tokens": code.tokens, "compress": there, "decompress": back})
        print(rows[-1], flush=True)
    return rows


def weight_bytes(folder: Path) -> int:
    """Return the size of a run's best weights with its vocabulary."""
    checkpoint = newest_checkpoint(folder / CHECKPOINTS, BEST)
    assert checkpoint is not None
    return sum((checkpoint.path / name).stat().st_size for name in ("weights.safetensors", "vocabulary.json"))


def text_of(name: str) -> bytes:
    """Return a file, or the docstrings of a package without its tests, in the order of the sources."""
    if not name.startswith("docs:"):
        return Path(name).read_bytes()
    root = Path(importlib.import_module(name.removeprefix("docs:")).__file__ or "").parent
    trees = [ast.parse(path.read_bytes()) for path in sorted(root.rglob("*.py")) if "tests" not in path.parts]
    documented = ast.Module, ast.ClassDef, ast.FunctionDef
    nodes = (node for tree in trees for node in ast.walk(tree) if isinstance(node, documented))
    return "\n\n".join(filter(None, map(ast.get_docstring, nodes))).encode()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("text")
    parser.add_argument("--bytes", type=int)
    parser.add_argument("--ppm", action="store_true")
    parser.add_argument("--counted", type=Path)
    parser.add_argument("--untrained")
    parser.add_argument("--runs", type=Path, nargs="*", default=[])
    parser.add_argument("--readers", nargs="+", default=["static", "static x 16", "cache", "dynamic:rule=sgd,rate=0.1"])
    parser.add_argument("--out", type=Path)
    given = parser.parse_args()
    torch.set_num_threads(1)
    data = text_of(given.text)[: given.bytes]
    rows: dict[str, dict[str, Any]] = {}
    kept = json.loads(given.out.read_text()) if given.out and given.out.is_file() else {}
    known, speeds = kept.get("texts", {}), kept.get("speeds", {})
    text = f"{given.text.rpartition('/')[2]}, {len(data):,} bytes"

    def add(name: str, row: dict[str, Any]) -> None:
        rows[name] = row
        speed = f"{row['compress_kb_per_second']:10.1f} / {row['decompress_kb_per_second']:.1f} KB/s"
        rate = f"{row['bits_per_byte']:.3f} bits per byte, {row['with_weights']:.1f} with weights"
        print(f"{name:40} {row['bytes']:8,} bytes  {rate}  {speed}", flush=True)
        if given.out:  # after each row, in case a long reading is stopped
            texts = known | {text: {"size": len(data), "commit": commit(), "rows": rows}}
            write(given.out, "codec", texts=texts, speeds=speeds)

    if given.untrained:
        speeds |= {given.untrained: {"text": text, "commit": commit(), "rows": speed_rows(given.untrained, data)}}
        if given.out:
            write(given.out, "codec", texts=known, speeds=speeds)
        return
    for name, compressor in compressors():
        add(name, general_row(compressor, data))
    if given.ppm:
        add(PPM_NAME, ppm_row(data))
    if given.counted:
        add(PPM_NAME, counted_row(given.counted, data))
    for run in given.runs:
        for reader in given.readers:
            kind, _, rows_read = reader.partition(" x ")
            add(f"{run.name}, {reader}", model_row(run, kind, int(rows_read or 1), data))


if __name__ == "__main__":
    main()
