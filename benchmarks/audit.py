"""Rates at which the audit catches each cheat of the tests and refuses honest readers, and its cost.

    python benchmarks/audit.py [--seeds 100] [--only cheats honest cost] [--processes 2] [--out results/audit-zoo.json]

Cheats read 16 blocks of 256 tokens with a small model, audited at 8 places with 34 cuts each, as for a text of 82,000
tokens. A reading ends as soon as the audit fails. Honest readers of every kind read 8 blocks of 20 tokens, audited at 2
places with 16 cuts each. The cost is the processor time of an audited place relative to a block, for an untrained model
of 2 layers of 200 units and 10,000 words, as a share of readings of 20,000 and 82,430 tokens.
"""

import json
import statistics
import sys
import time
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from detection import flags, rates

ROOT = Path(__file__).resolve().parent.parent
sys.path[:0] = [str(ROOT / "tests" / "evaluation"), str(ROOT / "tests")]

import cheats  # noqa: E402  # pyright: ignore[reportMissingImports]
import small_models  # noqa: E402  # pyright: ignore[reportMissingImports]
import test_reader_contract as contract  # noqa: E402  # pyright: ignore[reportMissingImports]

from backstory.config import (  # noqa: E402
    EmbeddingConfig,
    ModelConfig,
    MogrifierConfig,
    NTMConfig,
    SoftmaxConfig,
    TransformerConfig,
    recipes,
)
from backstory.config.readers import CacheSettings, DynamicSettings  # noqa: E402
from backstory.evaluation import Audit, block_count, read  # noqa: E402
from backstory.evaluation.audit import FEWEST_CUTS, MOST_CUTS, PER_CUT, PLACES, usual_places  # noqa: E402
from backstory.models import ComposedModel, Precision, build_model  # noqa: E402
from backstory.readers import Reader, StaticReader  # noqa: E402
from backstory.readers.dynamic import DynamicEvaluation  # noqa: E402
from backstory.readers.gradient_statistics import Collected, Statistics  # noqa: E402
from backstory.readers.neural_cache import NeuralCache  # noqa: E402

BFLOAT16 = Precision(torch.bfloat16, "for the audit")
TEXTS = 20_000, 82_430


class Caught(Exception):
    """Ends a reading whose audit has failed."""


def words(count: int, types: int = small_models.TYPES) -> np.ndarray:
    return np.random.default_rng(5).integers(0, types, count).astype(np.uint16)


def audited(reader: Reader, blocks: int, block: int, rows: int, places: int, cuts: int, seed: int) -> Audit:
    """Read until the text ends or the audit fails."""
    ids = words(blocks * block * rows)
    audit = Audit(block_count(len(ids), rows, block), places, seed, cuts)

    def stop(position: Any) -> None:
        if audit.report.places and not audit.report.passed:
            raise Caught

    with suppress(Caught):
        read(reader, ids, 0, batch_size=rows, block=block, observer=audit, passed=stop)
    return audit


def core(config: Any) -> ComposedModel:
    return small_models.lively(ModelConfig(EmbeddingConfig(7), config, SoftmaxConfig()))


def transformer() -> ComposedModel:
    """Build a model with doubled initial weights. With a factor of five, bfloat16 scores depend on the blocks."""
    model = core(TransformerConfig(layers=2, hidden=8, heads=2, window=12))
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.mul_(0.4)
    return model


def honest() -> dict[str, tuple[Callable[[], Reader], int]]:
    """Readers by name, and the rows that they read."""
    models = {
        "LSTM": small_models.lstm,
        "mixture of softmaxes": small_models.mixture,
        "span buffer": small_models.buffered,
        "dual Mogrifier": small_models.dual,
        "Mogrifier": lambda: core(MogrifierConfig(layers=2, hidden=9)),
        "NTM": lambda: core(NTMConfig(layers=(9,), slots=8, width=4)),
        "Transformer": transformer,
    }
    made: dict[str, tuple[Callable[[], Reader], int]] = {}
    for name, model in models.items():
        for rows in (1, 4):
            side_by_side = "" if rows == 1 else f", {rows} rows"
            made[f"static, {name}{side_by_side}"] = partial(StaticReader, model()), rows
        made[f"static, {name}, bfloat16"] = partial(StaticReader, model(), BFLOAT16), 1
    cached = partial(NeuralCache, settings=CacheSettings(window=20, weight=0.3))
    made["cache, LSTM, 4 rows"] = lambda: cached(StaticReader(small_models.lstm())), 4
    made["cache, LSTM, bfloat16"] = lambda: cached(StaticReader(small_models.lstm(), BFLOAT16)), 1
    adaptive = {name: make for name, make in contract.READERS.items() if not name.startswith("static")}
    return made | {name: (make, 1) for name, make in adaptive.items()}


def caught(name: str, seeds: int) -> dict[str, Any]:
    """Rate of detection of a cheat, and the check that caught it most often."""
    kind = CHEATS[name][0]
    results = []
    for seed in range(1, seeds + 1):
        torch.manual_seed(0)
        precision = (BFLOAT16,) if name.endswith("bfloat16") else ()
        inner: Any = small_models.lstm()
        if issubclass(kind, NeuralCache):
            reader: Any = kind(StaticReader(inner), CacheSettings(window=20, weight=0.3))
        else:
            reader = kind(inner, *precision)
        rows = CHEATS[name][1]
        results.append(audited(reader, 16, 256, rows, PLACES, 34, seed).report)
    checks = [next(check for check, held in r.checks.items() if not held) for r in results if not r.passed]
    most = max(set(checks), key=checks.count) if checks else None
    return {"seeds": seeds, "caught": len(checks), "rows": CHEATS[name][1], "check": most}


def refused(name: str, seeds: int) -> dict[str, Any]:
    make, rows = honest()[name]
    reader = make()
    reports = [audited(reader, 8, 20, rows, 2, 16, seed).report for seed in range(1, seeds + 1)]
    failures = sorted({failure for report in reports for failure in report.failures})
    return {"seeds": seeds, "refused": sum(not r.passed for r in reports), "failures": failures}


CHEATS: dict[str, tuple[type, int]] = {
    **{kind.__name__: (kind, 1) for kind in (*cheats.RARE_CHEATS, *cheats.HIDDEN_CHEATS)},
    **{f"{kind.__name__}, bfloat16": (kind, 1) for kind in (cheats.InflatesALot, cheats.InflatesALittle)},
    f"{cheats.PeeksAtOneIn100.__name__}, bfloat16": (cheats.PeeksAtOneIn100, 1),
    **{kind.__name__: (kind, 4) for kind in cheats.HIDDEN_CHEATS_WITH_ROWS},
    **{kind.__name__: (kind, 1) for kind in (*cheats.CHEATS, *cheats.CACHE_CHEATS)},
    **{kind.__name__: (kind, 4) for kind in (*cheats.CHEATS_WITH_ROWS, *cheats.CACHE_CHEATS_WITH_ROWS)},
}
"""Honest readers, each with its number of rows."""


def cost() -> dict[str, Any]:
    """Milliseconds of a block and of an audited place, and the share of the audit in two readings."""
    torch.manual_seed(1)
    model = build_model(recipes.load("ptb-small").model, 10_000).eval()
    squares = {name: torch.rand_like(p) * 1e-8 for name, p in model.named_parameters()}
    collected = Statistics(squares, squares, Collected("", "all", "", 100, 5, 1, 500, "float32"))
    readers: dict[str, Callable[[], Reader]] = {
        "static": lambda: StaticReader(model),
        "static, bfloat16": lambda: StaticReader(model, BFLOAT16),
        "static, 10 rows": lambda: StaticReader(model),
        "cache": lambda: NeuralCache(StaticReader(model), CacheSettings()),
        "dynamic, 5 tokens at once": lambda: DynamicEvaluation(model, DynamicSettings(segment=5), collected),
        "dynamic, 20 tokens at once": lambda: DynamicEvaluation(model, DynamicSettings(segment=20), collected),
    }
    table = {}
    for name, make in readers.items():
        reader, rows = make(), 10 if "rows" in name else 1
        row: dict[str, Any] = {"block": reader.block, "rows": rows}
        for tokens in TEXTS:
            places = usual_places(reader.block, rows)
            steps = tokens // rows
            cuts = min(MOST_CUTS, max(FEWEST_CUTS, steps // (PER_CUT * places)))
            block_ms, place_ms = times(reader, rows, cuts)
            blocks = steps / reader.block
            row[str(tokens)] = {
                "places": places,
                "cuts": min(cuts, reader.block),
                "block_ms": block_ms,
                "place_ms": place_ms,
                "share": min(places, blocks) * place_ms / (blocks * block_ms),
            }
        table[name] = row
        print(name, json.dumps(row), flush=True)
    return table


def times(reader: Reader, rows: int, cuts: int, count: int = 6) -> tuple[float, float]:
    """Median milliseconds of a block, and of a place with this many cuts."""
    spent: list[float] = []
    plain: list[float] = []

    class Timed(Audit):
        def before(self, reader: Reader, block: Any) -> None:
            began = time.process_time()
            super().before(reader, block)
            spent.append(time.process_time() - began)

        def after(self, block: Any, log_prob: Any) -> None:
            began = time.process_time()
            super().after(block, log_prob)
            spent[-1] += time.process_time() - began

    ids = words(rows * reader.block * count, reader.model.vocabulary_size)
    read(reader, ids, 0, batch_size=rows, observer=Timed(count, count, 1, cuts))
    last = time.process_time()

    def passed(position: Any) -> None:
        nonlocal last
        plain.append(time.process_time() - last)
        last = time.process_time()

    read(reader, ids, 0, batch_size=rows, passed=passed)
    return round(1000 * statistics.median(plain), 2), round(1000 * statistics.median(spent[1:]), 2)


def main() -> None:
    parser = flags(__doc__, ROOT / "results" / "audit-zoo.json")
    parts = ["cheats", "honest", "cost"]
    parser.add_argument("--only", nargs="+", choices=parts, default=parts)
    given = parser.parse_args()
    torch.set_num_threads(1)
    result = json.loads(given.out.read_text()) if given.out.exists() else {}
    names = {"cheats": list(CHEATS), "honest": list(honest())}
    tasks = [(kind, name, given.seeds) for kind in names if kind in given.only for name in names[kind]]
    for kind in {kind for kind, _, _ in tasks}:
        result[kind] = {}
    for kind, name, row in rates(tasks, {"cheats": caught, "honest": refused}, given.processes):
        result[kind][name] = row
    if "cost" in given.only:
        result["cost"] = cost()
    given.out.write_text(json.dumps(result, indent=1) + "\n")


if __name__ == "__main__":
    main()
