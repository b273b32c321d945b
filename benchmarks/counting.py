"""Gains of counting: n-grams alone, PPM compared with compressors, and both on top of small LSTMs.

    python benchmarks/counting.py --data DATA [--runs RUN ...] [--parts PART ...] --out results/benchmark-counting.json

`ngrams` counts Penn Treebank and reads its validation and test splits, alone and with a unigram cache tuned on
validation. `ppm` reads the first bytes of enwik8 and compares with gzip, bzip2 and xz; `megabyte` codes and decodes its
first million bytes with the settings that are best on the second. `stacks` wraps trained runs in readers layer by
layer, tunes them on the beginning of validation, and reads the test split, with the mixture and with logistic mixing.
Other parts and runs in the output file are kept.

The runs of results/benchmark-counting.json, with seeds 1, 2 and 3:

    backstory train demo --seed 1 --epochs 3 --model.head.sampled 0 --model.embedding.initialisation random \\
        --model.embedding.initial 0.1 --training.schedule step --training.decay-epochs 2 --training.decay-factor 0.3
    backstory train ptb-small --seed 1
"""

import argparse
import bz2
import gzip
import hashlib
import json
import lzma
import math
import shutil
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from figures import write

import backstory as bs
from backstory.codec.range_coder import Coder, Decoder, Encoder
from backstory.codec.shares import cumulative_shares
from backstory.config import TextConfig
from backstory.config.readers import NgramSettings, PPMSettings
from backstory.data import prepare
from backstory.readers.counted_text import CountedText, Smoothing
from backstory.readers.counting import ngram_counts_of, ppm_counts
from backstory.readers.interpolating import PredictionSource
from backstory.readers.ngram_counts import NgramCounts, count_ngrams
from backstory.readers.registry import parse_stack
from backstory.runs.run import load_run
from backstory.storage.provenance import commit
from backstory.tuning.preparation import tune_reader

PARTS = ("ngrams", "ppm", "megabyte", "stacks")
BLOCK = 256
WINDOWS, SHARES = (500, 2000, 5000, 20_000), (0.02, 0.05, 0.1, 0.15, 0.2)
BYTES = 500_000
PPMS = [
    *(PPMSettings(order, "d", 0.5) for order in (2, 3, 4, 5, 6)),
    *(PPMSettings(order, "d", 0.5, exclusion=True) for order in (3, 4, 5)),
    *(PPMSettings(4, "c", exclusion=exclusion) for exclusion in (False, True)),
    PPMSettings(5, "d", 0.8),
]
MEGABYTE = 1_000_000
TRIED = [PPMSettings(order, "d", discount) for order, discount in ((5, 0.8), (5, 0.9), (6, 0.85), (6, 0.9))]
"""Settings for the first million bytes of enwik8."""
LAYERS = ("cache:window=2000", "ngram", "ppm:order=3,discount=0.8", "mixture")
"""Readers around the model, the innermost first. Settings that are not given are tuned, layer by layer."""
PRODUCT = (*LAYERS[:-1], "mixture:domain=logistic")
MIXTURE_GRID = ("share=0.0005,0.002,0.01,0.05,0.1,0.2,0.4", "rate=0.05,0.1,0.25,0.5,1")
PRODUCT_GRID = ("share=0.02,0.1,0.4", "rate=0.03,0.1,0.3", "step=0.0001,0.0003,0.001,0.003")
"""Wider than those of `backstory reader tune`."""


def scores(counts: PredictionSource, ids: np.ndarray, start: int) -> np.ndarray:
    """Return the log-probability of every token (N,) of a text."""
    inputs, found = np.concatenate([[start], ids[:-1]]).astype(np.int64), []
    counts.start(1)
    for begin in range(0, len(ids), BLOCK):
        targets = torch.from_numpy(ids[begin : begin + BLOCK].astype(np.int64))[None]
        found.append(counts.predict(torch.from_numpy(inputs[begin : begin + BLOCK])[None]).log_prob(targets)[0])
        counts.observe(targets)
    return torch.cat(found).double().numpy()


def unigram_cache(ids: np.ndarray, window: int) -> np.ndarray:
    """Return the share (N,) of every token among the `window` before it."""
    recent, p = np.zeros(int(ids.max()) + 1), np.zeros(len(ids))
    for t, word in enumerate(ids):
        p[t] = recent[word] / max(1, min(t, window))
        recent[word] += 1
        if t >= window:
            recent[ids[t - window]] -= 1
    return p


def perplexity(log_prob: np.ndarray) -> float:
    return math.exp(-log_prob.mean())


def size_of(counts: NgramCounts) -> int:
    arrays = [counts.unigrams, counts.base]
    arrays += [a for table in counts.tables for a in (table.keys, table.counts, table.first, table.total, table.left)]
    return sum(array.nbytes for array in arrays)


def ngrams(data: Path) -> dict[str, Any]:
    """Penn Treebank, by the length of n-grams."""
    dataset = prepare(TextConfig(corpus="ptb"), data)
    splits = {name: split.ids for name, split in dataset.splits.items()}
    types, start, rows = len(dataset.vocabulary), dataset.vocabulary.start, []
    for order, across, online in [
        *((n, True, False) for n in (1, 2, 3, 4, 5, 6)),
        (5, False, False),
        (5, True, True),
    ]:
        began = time.perf_counter()
        counts = count_ngrams(splits["train"], types, start, order, across)
        row: dict[str, Any] = {"order": order, "across_lines": across, "online": online}
        row |= {
            "counting_seconds": round(time.perf_counter() - began, 2),
            "bytes": size_of(counts),
        }
        row["ngrams"] = sum(len(table.keys) for table in counts.tables) + int((counts.unigrams > 0).sum())
        of_split = {}
        for name in ("valid", "test"):
            began = time.perf_counter()
            setting = NgramSettings(order=order, across_lines=across, online=online)
            of_split[name] = scores(ngram_counts_of(counts, setting), splits[name], start)
            row[name], row[f"{name}_seconds"] = (
                perplexity(of_split[name]),
                round(time.perf_counter() - began, 2),
            )
        if order == 5:
            row["cache"] = with_cache(of_split, splits)
        rows.append(row)
        print(row, flush=True)
    return {
        "corpus": "ptb",
        "types": types,
        "tokens": len(splits["train"]),
        "rows": rows,
    }


def with_cache(scores_of: dict[str, np.ndarray], splits: dict[str, np.ndarray]) -> dict[str, Any]:
    """Tune a unigram cache over n-grams on validation, and read the test split with it."""

    def mixed(split: str, window: int, share: float) -> float:
        p, cached = np.exp(scores_of[split]), unigram_cache(splits[split], window)
        first = np.arange(len(p)) == 0
        return perplexity(np.log(np.where(first, p, (1 - share) * p + share * cached)))

    window, share = min(
        ((w, s) for w in WINDOWS for s in SHARES),
        key=lambda point: mixed("valid", *point),
    )
    return {"window": window, "share": share} | {name: mixed(name, window, share) for name in ("valid", "test")}


def ppm(data: Path) -> dict[str, Any]:
    """Bits per byte of the beginning of enwik8, by PPM and by compressors."""
    text = next(data.glob("enwik8*/enwik8*")).read_bytes()[:BYTES]
    packed = {
        "gzip": len(gzip.compress(text, 9)),
        "bzip2": len(bz2.compress(text, 9)),
        "xz": len(lzma.compress(text, preset=9 | lzma.PRESET_EXTREME)),
    }
    rows = []
    ids = np.frombuffer(text, np.uint8)
    for setting in PPMS:
        began = time.process_time()
        bits = -float(scores(ppm_counts(setting, 256), ids, 10).mean()) / math.log(2)
        row = {
            **vars(setting),
            "bits_per_byte": bits,
            "seconds": round(time.process_time() - began, 1),
        }
        del row["weight"]
        rows.append(row)
        print(row, flush=True)
    return {
        "bytes": len(text),
        "compressors": {name: 8 * size / len(text) for name, size in packed.items()},
        "rows": rows,
    }


def code_bytes(coder: Coder, setting: PPMSettings, size: int, text: bytes = b"") -> bytes:
    """Code this many bytes by PPM alone and return them. An encoder is given the text; a decoder finds it."""
    smoothing = Smoothing.ppm(setting.order, setting.escape, setting.discount, setting.exclusion)
    counts, coded = CountedText(256, setting.order, smoothing), bytearray()
    for place in range(size):
        shares = cumulative_shares(torch.from_numpy(np.log(counts.distribution()))[None], "ppm")[0]
        coded.append(coder.choose(shares, text[place] if text else 0))
        counts.append(coded[-1])
    return bytes(coded)


def search_second(enwik8: bytes) -> list[tuple[PPMSettings, float]]:
    """Return bits per byte of the second million bytes for each setting."""
    ids = np.frombuffer(enwik8[MEGABYTE : 2 * MEGABYTE], np.uint8)
    return [(s, -float(scores(ppm_counts(s, 256), ids, 10).mean()) / math.log(2)) for s in TRIED]


def megabyte(data: Path) -> dict[str, Any]:
    """Code the first million bytes of enwik8 without any training, and decode them."""
    enwik8 = next(data.glob("enwik8*/enwik8*")).read_bytes()
    text, rows = enwik8[:MEGABYTE], search_second(enwik8)
    best = min(rows, key=lambda row: row[1])[0]
    encoder, began = Encoder(), time.process_time()
    code_bytes(encoder, best, len(text), text)
    code, encoded = encoder.finish(), time.process_time()
    if code_bytes(Decoder(code), best, len(text)) != text:
        raise SystemExit("the code does not decode to the text")
    return {
        "bytes": len(text),
        "sha256": hashlib.sha256(text).hexdigest(),
        "search": [{"order": s.order, "discount": s.discount, "bits_per_byte": bits} for s, bits in rows],
        "order": best.order,
        "discount": best.discount,
        "code_bytes": len(code),
        "bits_per_byte": 8 * len(code) / len(text),
        "decoded": True,
        "seconds": {"encoding": round(encoded - began), "decoding": round(time.process_time() - encoded)},
    }


def stacks(runs: Sequence[Path], known: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """Test perplexity of every layer around trained runs, from one audited reading each; layers are tuned on validation."""
    rows = [row for row in known if row["run"] not in {run.name for run in runs}]
    with tempfile.TemporaryDirectory() as folder:
        for run in runs:
            place = Path(shutil.copytree(run, Path(folder) / run.name))
            for depth in range(1, len(LAYERS)):
                tune_reader(place, parse_stack(LAYERS[:depth]), "valid", 20_000)
            edges = tune_reader(place, parse_stack(LAYERS), "valid", 20_000, MIXTURE_GRID)[1].at_edge
            figures = bs.evaluate(place, split="test", reader=LAYERS).figures
            layers = {gain.name: math.exp(gain.nats_per_token) for gain in figures.gains or ()}
            audited = figures.audit is not None and figures.audit.passed
            product_edges = tune_reader(place, parse_stack(PRODUCT), "valid", 5000, PRODUCT_GRID)[1].at_edge
            product = bs.evaluate(place, split="test", reader=PRODUCT).figures
            layers["logistic"] = math.exp(product.nats_per_token)
            audited = audited and product.audit is not None and product.audit.passed
            training = json.loads((run / "result.json").read_text())["figures"]
            row = {
                "run": run.name,
                "corpus": load_run(run).config.text.corpus,
                "test": layers,
                "audit": audited,
                "readers": list(figures.readers or ()),
                "logistic": list(product.readers or ())[-1],
                "at_edge": {"mixture": edges, "logistic": product_edges},
            }
            rows.append(row | {"epochs": len(training["curve"]), "tokens": figures.tokens, "commit": commit()})
            print(rows[-1], flush=True)
    return {"rows": rows}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, required=True)
    parser.add_argument("--runs", type=Path, nargs="*", default=[])
    parser.add_argument(
        "--parts",
        nargs="+",
        choices=PARTS,
        default=PARTS,
    )
    parser.add_argument("--out", type=Path, required=True)
    args = parser.parse_args()
    known = json.loads(args.out.read_text()) if args.out.is_file() else {}
    figures = {name: known[name] for name in PARTS if name in known}
    parts = {
        "ngrams": lambda: ngrams(args.data),
        "ppm": lambda: ppm(args.data),
        "megabyte": lambda: megabyte(args.data),
    }
    parts["stacks"] = lambda: stacks(args.runs, figures.get("stacks", {}).get("rows", []))
    for name in args.parts:
        figures[name] = parts[name]() | {"commit": commit()}
        write(args.out, "counting", **figures)


if __name__ == "__main__":
    main()
