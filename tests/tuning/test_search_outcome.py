"""Outcome of a sweep: the weights of its best trial, or of all, and the importance of each setting."""

import math
from pathlib import Path
from typing import Any

import optuna
import pytest
from optuna.trial import FrozenTrial, TrialState

from backstory.runs.run_folder import CHECKPOINTS
from backstory.tuning.sweep_storage import SweepFolder
from backstory.tuning.sweeps import FEWEST_TRIALS, GOOD_TRIALS, _importances, _keep_best

UNIT = optuna.distributions.FloatDistribution(0.0, 1.0)


class Ended:
    """A queue whose trials have all ended."""

    def __init__(self, values: list[float | None]) -> None:
        self._trials = [trial(value, {}) for value in values]
        for number, one in enumerate(self._trials):
            one.number = number

    def trials(self) -> list[FrozenTrial]:
        return self._trials


def trial(value: float | None, params: dict[str, float], pruned: bool = False) -> FrozenTrial:
    state = TrialState.PRUNED if pruned else TrialState.COMPLETE if value is not None else TrialState.FAIL
    return optuna.create_trial(
        state=state, params=params, distributions=dict.fromkeys(params, UNIT), value=None if pruned else value
    )


@pytest.mark.parametrize(("keep_all", "kept"), [(False, [1]), (True, [0, 1, 2])])
def test_weights_are_kept_of_the_best_or_of_all(keep_all: bool, kept: list[int], tmp_path: Path) -> None:
    folder, queue = SweepFolder(tmp_path), Ended([5.0, 4.0, None])
    for number in range(3):
        (folder.run(number) / CHECKPOINTS).mkdir(parents=True)
        (folder.run(number) / "metrics.jsonl").touch()
        folder.recipe(number).parent.mkdir(exist_ok=True)
        folder.recipe(number).write_text(f"seed: {number}\n", encoding="utf-8")
    sweep: Any = queue
    best = _keep_best(folder, sweep, keep_all, unit=None)
    assert best is not None and best.number == 1
    assert [n for n in range(3) if (folder.run(n) / CHECKPOINTS).is_dir()] == kept
    assert all((folder.run(n) / "metrics.jsonl").is_file() for n in range(3))
    head, recipe = folder.best.read_text(encoding="utf-8").split("\n\n")[0], folder.best.read_text(encoding="utf-8")
    assert "number 1" in head and recipe.endswith("seed: 1\n")


def grid(count: int, pruned: int = 0) -> list[FrozenTrial]:
    """Trials that are good where `rate` is near 0.3, whatever `size` is; the worst of them pruned."""
    places = [((7 * i % count) / count, i / count) for i in range(count)]
    ordered = sorted(places, key=lambda place: abs(place[0] - 0.3))
    return [
        trial(abs(rate - 0.3), {"rate": rate, "size": size}, pruned=place >= count - pruned)
        for place, (rate, size) in enumerate(ordered)
    ]


@pytest.mark.full
@pytest.mark.parametrize("pruned", [0, 15])
def test_what_sets_good_trials_apart_is_important(pruned: int) -> None:
    found = _importances(grid(30, pruned))
    assert set(found) == {"rate", "size"} and math.isclose(sum(found.values()), 1.0, abs_tol=1e-5)
    assert found["rate"] > 0.8


def test_failed_trials_do_not_count() -> None:
    failed = [trial(None, {"rate": 0.99, "size": 0.5})] * 20
    assert _importances([*grid(30), *failed]) == _importances(grid(30))


@pytest.mark.parametrize(
    "trials", [grid(FEWEST_TRIALS - 1), grid(FEWEST_TRIALS, pruned=FEWEST_TRIALS - GOOD_TRIALS + 1)]
)
def test_few_trials_say_nothing(trials: list[FrozenTrial]) -> None:
    assert _importances(trials) == {}
