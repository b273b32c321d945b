"""Made-up run folders, written the way the command line writes them."""

import copy
import json
import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from passages import passage

CONFIG = "text:\n  corpus: stdlib\ntraining:\n  epochs: 3\nseed: 1\n"
PERPLEXITIES = (270.4, 160.2, 130.1)


def provenance(command: str, **changes: Any) -> dict[str, Any]:
    return {
        "config": {"text": {"corpus": "stdlib"}, "seed": 1},
        "seed": 1,
        "commit": "abc123",
        "versions": {"backstory": "0.1.0", "python": "3.11.7", "torch": "2.13.0+cpu"},
        "device": "cpu (AMD EPYC, 2 threads)",
        "precision": "bfloat16",
        "precision_reason": "the processor has AVX-512 bf16 instructions",
        "corpus": {"name": "stdlib", "fingerprint": "f00d", "types": 13800, "provenance": "docstrings of 3.11.7"},
        "started": "2026-11-20T11:00:00Z",
        "seconds": 65.1,
        "command": command,
    } | changes


def result(kind: str, figures: dict[str, Any], name: str = "demo", **changes: Any) -> dict[str, Any]:
    command = f"backstory {kind} {name}"
    return {"schema": 1, "kind": kind, "name": name, "figures": figures, "provenance": provenance(command, **changes)}


def curve() -> list[dict[str, Any]]:
    return [
        {"epoch": number, "train_nats": math.log(value) + 0.2, "valid_nats": math.log(value), "valid_perplexity": value,
         "learning_rate": 30.0, "averaging": number == 3, "seconds": 61.2, "tokens_per_second": 15100.0}
        for number, value in enumerate(PERPLEXITIES, start=1)
    ]  # fmt: skip


def training() -> dict[str, Any]:
    return {"parameters": 2653200, "epochs": 3, "best_epoch": 3, "valid_perplexity": 130.1,
            "valid_nats": math.log(130.1), "unit": "word", "tokens": {"train": 929589, "valid": 73760},
            "curve": curve(), "tokens_per_second": 15100.0}  # fmt: skip


def evaluation(perplexity: float = 98.1, **changes: Any) -> dict[str, Any]:
    checks = {"causal": True, "distribution": True, "scored_before_update": True, "one_pass": True}
    nats = math.log(perplexity)
    return {"split": "test", "reader": "static", "unit": "word", "tokens": 20123, "batch_size": 1, "nats_per_token": nats,
            "perplexity": perplexity, "bits_per_token": nats / math.log(2), "bits_per_character": None,
            "bits_per_byte": None,
            "audit": {"passed": True, "places": 8, "cuts": 272, "checks": checks, "failures": []}} | changes  # fmt: skip


def memory(level: float = 2.0, kinds: tuple[str, ...] = ("old entity", "queried value")) -> dict[str, Any]:
    """The cost above the exact one grows with the distance, up to `level`."""
    costs = {"tokens": 400, "nats": 4.0, "exact": 3.5, "excess": 0.5}
    spans = ((1, 4, 2.4, 0.25), (20, 49, 33.0, 0.5), (1000, None, 1400.0, 1.0))
    return {
        "exact_nats_per_token": math.log(13.1), "exact_perplexity": 13.1, "excess_nats_per_token": 0.518,
        "kinds": [{"kind": kind, **costs} for kind in ("filler word", *kinds)],
        "curves": [{"kind": kind, "forgotten": 2.81 - 0.04 * i,
                    "bins": [{"from": low, "to": high, "distance": distance, "tokens": 1234, "nats": 4 + share * level,
                              "exact": 4.0, "excess": share * level} for low, high, distance, share in spans]}
                   for i, kind in enumerate(kinds)],
    }  # fmt: skip


def recency(gain: float = 0.0, new: float | None = 9.0) -> dict[str, Any]:
    """The cost of a token grows with the distance; `gain` is lower by so much near by, and by less farther away."""
    spans = ((1, 4, 2.4, 3.0, 1.0), (20, 49, 33.0, 4.0, 0.5), (1000, None, 1400.0, 7.0, 0.25))
    return {
        "new": {"tokens": 2000 if new is not None else 0, "nats": new},
        "bins": [{"from": low, "to": high, "distance": distance, "tokens": 1234, "nats": nats - share * gain}
                 for low, high, distance, nats, share in spans],
    }  # fmt: skip


def truncation(**changes: Any) -> dict[str, Any]:
    effects = {5: 0.41, 20: 0.2, 100: 0.03, 150: 0.009, 1000: 0.0}
    conditions = [
        {"context": context, "nats": 4.7 + effect, "perplexity": math.exp(4.7 + effect), "effect": effect,
         "low": effect - 0.02, "high": effect + 0.02, "effect_percent": 100 * math.expm1(effect)}
        for context, effect in effects.items()
    ]  # fmt: skip
    found = {"context": 150, "low": 100, "high": 200, "threshold_percent": 1.0, "more_context_hurts": False}
    return {"experiment": "truncate", "split": "valid", "unit": "word", "targets": 2000, "maximum_context": 1000,
            "baseline": {"context": None, "nats": 4.7, "perplexity": math.exp(4.7)}, "conditions": conditions,
            "effective_context": found} | changes  # fmt: skip


def explanation(**changes: Any) -> dict[str, Any]:
    return {"explanation": "surprisal", "text": "test", "at": 10, "context": 10, "tokens": 6, "unit": "word",
            "reader": "static", "against": "b", "nats_per_token": math.log(98.1), "perplexity": 98.1,
            "against_nats_per_token": math.log(120.0), "passage": passage().to_dict()} | changes  # fmt: skip


def comparison(documents: int = 12, **changes: Any) -> dict[str, Any]:
    """Three readers over documents of 250 words each; the second gains increasingly over the third, the first slightly."""
    total = 250 * documents
    rising = [0.01 * (i % 5) - 0.01 for i in range(total // 50)]
    flat = [0.02] * len(rising)
    both = [a + b for a, b in zip(rising, flat, strict=True)]
    names = (("dynamic", "static", rising), ("learned", "dynamic", flat), ("learned", "static", both))
    gains = [sum(blocks) / len(blocks) for _, _, blocks in names]
    interval = {"low": -0.01, "high": 0.05}
    layer = {"name": "dynamic", "settings": {"rate": 0.001}, "origin": "tuned on valid"}
    nats = {"learned": 4.46, "dynamic": 4.48, "static": 4.49}
    return {
        "comparison": "reading", "title": "stdlib (test), from word 500", "text": "test", "at": 500, "context": 500,
        "tokens": total, "unit": "word", "block": 50, "smooth": 3,
        "readers": [{"name": name, "layers": [layer], "nats_per_token": n, "perplexity": math.exp(n)}
                    for name, n in nats.items()],
        "comparisons": [{"reader": reader, "over": over, "gain": gain, **interval, "perplexity_gain": 100 * gain,
                         "blocks": blocks, "perplexity_blocks": [100 * b for b in blocks]}
                        for (reader, over, blocks), gain in zip(names, gains, strict=True)],
        "documents": [{"document": i, "title": f"Article <{i}>", "start": 500 + 250 * i, "tokens": 250,
                       "nats": list(nats.values()), "gains": gains} for i in range(documents)],
        "positions": [{"from": low, "to": high, "tokens": size * documents, "documents": documents,
                       "nats": list(nats.values()), "gains": [{"gain": g * low / 100, **interval} for g in gains]}
                      for low, high, size in ((0, 100, 100), (100, 200, 100), (200, 400, 50))],
        "passages": [{"why": "the largest gain", "at": 700, "tokens": 6, "gains": gains, "passage": passage().to_dict()},
                     {"why": "the beginning of a document", "at": 750, "tokens": 6, "gains": gains,
                      "passage": passage().to_dict()}],
    } | changes  # fmt: skip


def sample(**changes: Any) -> dict[str, Any]:
    settings = {"temperature": 0.8, "top_k": None, "seed": 1}
    return {"prompt": "Return a list", "text": " of the names.\n\nAnd <more>", "settings": settings} | changes


def log() -> list[dict[str, Any]]:
    lines: list[dict[str, Any]] = []
    for record in curve():
        end = record["epoch"] * 100
        lines += [
            {"event": "steps", "step": end - 100 + step, "epoch": record["epoch"], "nats": 6.51 - record["epoch"] / 2,
             "tokens": 28000, "learning_rate": 30.0, "tokens_per_second": 15000.0}
            for step in range(20, 101, 20)
        ]  # fmt: skip
        lines.append({"event": "epoch", "step": end, "best": True, **record})
    return lines


Make = Callable[..., Path]


@pytest.fixture
def run(tmp_path: Path) -> Make:
    """Write a run folder: its results by subfolder ("" for the folder itself), its settings and its log."""

    def make(
        folder: str = "demo",
        results: dict[str, Any] | None = None,
        *,
        name: str | None = None,
        config: str | None = CONFIG,
        metrics: str | None = None,
    ) -> Path:
        path = tmp_path / folder
        path.mkdir(parents=True)
        for below, content in (everything() if results is None else results).items():
            (path / below).mkdir(exist_ok=True)
            named = copy.deepcopy(content) | {"name": content["name"] if name is None else name}
            (path / below / "result.json").write_text(json.dumps(named), encoding="utf-8")
        if config is not None:
            (path / "config.yaml").write_text(config, encoding="utf-8")
        lines = "".join(json.dumps(line) + "\n" for line in log()) if metrics is None else metrics
        (path / "metrics.jsonl").write_text(lines, encoding="utf-8")
        return path

    return make


def everything() -> dict[str, Any]:
    return {
        "": result("training", training()),
        "evaluate-test": result("evaluation", evaluation()),
        "examine-truncate-valid": result("examination", truncation()),
    }


@pytest.fixture
def made() -> Any:
    """The builders of results, for tests that change them."""

    class Builders:
        pass

    builders = Builders()
    for build in (
        result,
        training,
        evaluation,
        memory,
        recency,
        truncation,
        explanation,
        comparison,
        sample,
        everything,
        log,
        provenance,
    ):
        setattr(builders, build.__name__, build)
    return builders
