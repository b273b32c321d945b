"""Rates at which the referee catches each cheat of the tests, and refuses honest predictors.

    python benchmarks/referee.py [--seeds 100] [--processes 2] [--only NAME ...] [--out results/referee-zoo.json]

Each predictor reads 4,096 tokens of 12 types in blocks of 256; 300 of the tokens are decoded. Cheats that some audits
miss are tried with all seeds, the others with a fifth of them.
"""

import json
import sys
from pathlib import Path
from typing import Any

from detection import flags, rates

ROOT = Path(__file__).resolve().parent.parent
sys.path[:0] = [str(ROOT / "tests" / "evaluation"), str(ROOT / "tests")]

import cheating_predictors as zoo  # noqa: E402  # pyright: ignore[reportMissingImports]
import small_models  # noqa: E402  # pyright: ignore[reportMissingImports]

import backstory as bs  # noqa: E402
from backstory.config.readers import CacheSettings  # noqa: E402
from backstory.readers import StaticReader  # noqa: E402
from backstory.readers.neural_cache import NeuralCache  # noqa: E402

HONEST: dict[str, tuple[Any, dict[str, Any]]] = {
    "bigram counter": (zoo.Bigrams, {}),
    "bigram counter, 4 rows": (zoo.Bigrams, {"batch_size": 4}),
    "bigram counter, a token at a time": (zoo.Bigrams, {"block": 1}),
    "static reader, LSTM": (lambda: StaticReader(small_models.lstm()), {}),
    "static reader, LSTM, 4 rows": (lambda: StaticReader(small_models.lstm()), {"batch_size": 4}),
    "cache, LSTM": (
        lambda: NeuralCache(StaticReader(small_models.lstm()), CacheSettings(window=20, weight=0.3)),
        {"block": 32},
    ),
}
"""Predictors and the options of their reading."""
CUTS = 300


def caught(name: str, seeds: int) -> dict[str, Any]:
    """Observed and expected rate at which a cheat is caught."""
    cheat = zoo.CHEATS[name]
    count = 0
    every = bool(cheat.options.get("every_token"))
    for seed in range(seeds):
        zoo.forget()
        figures = refereed(cheat.make, zoo.as_read(cheat.make), seed, claim=cheat.claim(), **cheat.options)
        count += cheat.condition in {violation.condition for violation in figures.violations}
    sure = 1.0 if every or cheat.share == 1 else 1 - (1 - cheat.share) ** CUTS
    return {"how": cheat.how, "condition": cheat.condition, "seeds": seeds, "caught": count, "expected": sure}


def refused(name: str, seeds: int) -> dict[str, Any]:
    make, options = HONEST[name]
    predictor = make if isinstance(make, type) else make()
    failures = [
        f for seed in range(seeds) for f in [refereed(predictor, zoo.text(), seed, **options).audit.failures] if f
    ]
    return {"seeds": seeds, "refused": len(failures), "failures": sorted({one for f in failures for one in f or ()})}


def refereed(predictor: Any, text: Any, seed: int, **options: Any) -> Any:
    return bs.referee(predictor, text, seed=seed, cuts=CUTS, **options).figures


def main() -> None:
    parser = flags(__doc__, ROOT / "results" / "referee-zoo.json")
    names = [*zoo.CHEATS, *HONEST]
    parser.add_argument(
        "--only", nargs="+", choices=names, metavar="NAME", help="predictors to try again; other rows stay as they are"
    )
    given = parser.parse_args()
    if given.only and not given.out.exists():
        parser.error(f"there is no {given.out} whose other rows would stay; leave --only out")
    some = max(1, given.seeds // 5)
    tasks = [
        ("cheats", name, given.seeds if cheat.share < 1 and not cheat.options else some)
        for name, cheat in zoo.CHEATS.items()
    ]
    tasks += [("honest", name, some) for name in HONEST]
    result: dict[str, Any] = {kind: {} for kind, _, _ in tasks}
    if given.only:
        result = json.loads(given.out.read_text(encoding="utf-8"))
        tasks = [task for task in tasks if task[1] in given.only]
    for kind, name, row in rates(tasks, {"cheats": caught, "honest": refused}, given.processes):
        result[kind][name] = row
    given.out.write_text(json.dumps(result, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
