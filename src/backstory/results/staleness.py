"""Results of weights that a run no longer has: told by the hashes that they record, each with the command that renews it."""

import shlex
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from backstory.config.errors import as_argument
from backstory.results.common import ProvenanceRecord
from backstory.results.evaluation_record import EvaluationFigures, SampleFigures
from backstory.results.examination_record import ExaminationFigures
from backstory.results.explanation_record import ComparisonFigures, ExplanationFigures
from backstory.storage.manifest import best_file

if TYPE_CHECKING:
    from backstory.results.result_file import Result

EARLIER = "of earlier weights"
BEFORE = "from before the run was trained on"
"""Of a result that records no hash, and is older than the end of the run's training."""
_VERBS = {
    "evaluation": "evaluate",
    "examination": "examine",
    "explanation": "explain",
    "comparison": "explain",
    "sample": "generate",
}
"""Results of a run's weights by the verb that makes them. What others hold is of several runs."""


@dataclass(frozen=True)
class Present:
    """The weights that a run has now, as far as its folder tells."""

    weights: str | None
    weights_file: str | None
    ended: str | None
    """When its training ended; None where that is not recorded."""

    def staleness(self, result: "Result") -> str:
        """Say why a result is not of these weights; empty where it is, and where nothing tells."""
        for name in ("weights", "weights_file"):
            recorded, here = getattr(result.provenance, name), getattr(self, name)
            if isinstance(recorded, list):  # of a set of models
                return ""
            if isinstance(recorded, str) and here is not None:
                return "" if recorded == here else EARLIER
        started = result.provenance.started
        older = started is not None and self.ended is not None and started < self.ended
        return BEFORE if older and result.kind != "training" else ""


def marked(folder: Path, results: Sequence["Result"]) -> "list[Result]":
    """Return the results of a run folder, those of other weights than it has now with `stale` and `renew`."""
    training = next((r for r in results if r.kind == "training" and Path(r.source).parent == Path()), None)
    now = present(folder, training, results)
    return [
        replace(r, stale=why, renew=renewal(r, folder))
        if (r is training or r.kind in _VERBS) and (why := now.staleness(r))
        else r
        for r in results
    ]


def is_stale(result: "Result", run: Path) -> bool:
    """Check by the files of its checkpoints alone that a run has other weights than a result records."""
    here, recorded = best_file(run), result.provenance.weights_file
    return here is not None and isinstance(recorded, str) and recorded != here


def present(folder: Path, training: "Result | None", results: Sequence["Result"]) -> Present:
    """Return the weights of a run by its best checkpoint; without any, those that its training recorded."""
    recorded = training.provenance if training else ProvenanceRecord()
    ended, file = _text(recorded.ended), best_file(folder)
    if file is None:
        return Present(_text(recorded.weights), _text(recorded.weights_file), ended)
    alike = (r.provenance.weights for r in results if r.provenance.weights_file == file)
    return Present(next((w for w in alike if isinstance(w, str)), None), file, ended)


def renewal(result: "Result", folder: Path) -> str:
    """Return the command that makes a result anew: the recorded one, or one from its figures."""
    if result.kind == "training":
        return shlex.join(["backstory", "train", as_argument(folder), "--resume"])
    verb, recorded = _VERBS[result.kind], result.provenance.command
    if recorded is not None and f" {verb} " in recorded:
        return recorded
    place = Path(result.source).parent
    out = [] if place.name.startswith(verb) or result.kind == "sample" else ["--out", as_argument(folder / place)]
    return shlex.join(["backstory", verb, *_arguments(result, as_argument(folder)), *out])


def _arguments(result: "Result", run: str) -> list[str]:
    f, text = result.figures, []
    values: dict[str, Any] = {}
    usual: dict[str, Any] = {"reader": "static"}
    if isinstance(f, SampleFigures):
        return [run, "--save"]
    if isinstance(f, ComparisonFigures):
        return [f.comparison, run]
    if isinstance(f, ExplanationFigures):
        return [f.explanation, run]
    if isinstance(f, ExaminationFigures):
        values = {name: getattr(f, name) for name in ("experiment", "split", "targets", "maximum_context", "reader")}
    elif isinstance(f, EvaluationFigures):
        values = {
            name: getattr(f, name) for name in ("split", "reader", "after", "batch_size", "lengths", "addressing")
        }
        values |= {"precision": result.provenance.precision}
        usual |= {"split": "text", "batch_size": 1, "precision": "float32"}
        text = [result.corpus.title("TEXT")] if f.split == "text" else []
    return [run, *text, *_flags({name: value for name, value in values.items() if value != usual.get(name)})]


def _flags(options: dict[str, Any]) -> list[str]:
    """Options as flags, a list after its flag; without those that are None."""
    flags = []
    for name, value in options.items():
        if value:
            flags += [f"--{name.replace('_', '-')}", *map(str, value if isinstance(value, tuple) else [value])]
    return flags


def _text(value: object) -> str | None:
    return value if isinstance(value, str) else None
