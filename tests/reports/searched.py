"""A made-up result of a search: twelve trials, some pruned, one killed and tried again, one failed."""

from typing import Any


def parameter(name: str, **changes: Any) -> dict[str, Any]:
    blank = {"low": None, "high": None, "log": False, "choices": [], "same": None, "when": {}, "importance": None}
    return {"name": name, **blank, **changes}


def trial(number: int, value: float | None, state: str = "complete", **changes: Any) -> dict[str, Any]:
    curve = [] if value is None else [[1, value + 20.0], [2, value + 5.0], [3, value]]
    settings = {
        "training.learning_rate": 0.001 * (number + 1),
        "model.core.layers": 1 + number % 2,
        "training.optimizer": ("sgd", "adam")[number % 2],
    }
    if number % 2:
        settings["model.core.hidden"] = 100 + number
    return {
        "trial": number,
        "state": state,
        "run": f"trials/{number:04d}",
        "valid_perplexity": value,
        "epochs": 3 if state == "complete" else len(curve) - 1 if curve else 0,
        "curve": curve if state == "complete" else curve[:2],
        "seconds": 61.0,
        "settings": settings,
        "problem": "",
    } | changes


def search(**changes: Any) -> dict[str, Any]:
    """The figures."""
    values = {0: 140.0, 1: 131.5, 2: 120.25, 3: 119.0, 6: 101.5, 7: 98.25, 9: 99.5}
    trials = [trial(number, value) for number, value in values.items()]
    trials += [trial(4, 180.0, "pruned"), trial(5, 1e9, "pruned"), trial(8, 150.0, "pruned")]
    trials.append(trial(10, None, "again", problem="killed, and tried again as 12", seconds=None))
    trials.append(trial(11, None, "failed", problem="train ended with exit code 2: too large for memory"))
    trials.append(trial(12, None, "running", seconds=None))
    parameters = [
        parameter("model.core.layers", choices=[1, 2], importance=0.07),
        parameter("training.learning_rate", low=0.001, high=0.02, log=True, importance=0.8),
        parameter("model.core.hidden", low=100, high=120, when={"model.core.layers": [2]}, importance=0.11),
        parameter("training.optimizer", choices=["sgd", "adam"], importance=0.02),
        parameter("model.core.output", same="model.embedding.size"),
    ]
    return {
        "recipe": "demo",
        "space": "demo",
        "title": "How fast & how large",
        "unit": "word",
        "best": 7,
        "valid_perplexity": 98.25,
        "parameters": parameters,
        "trials": sorted(trials, key=lambda t: t["trial"]),
    } | changes


def saved(figures: dict[str, Any]) -> dict[str, Any]:
    """The result file that holds them."""
    origin = {"config": {"seed": 1}, "seed": 1, "command": "backstory sweep run demo --space demo --trials 12"}
    return {"schema": 1, "kind": "search", "name": "sweep", "figures": figures, "provenance": origin}
