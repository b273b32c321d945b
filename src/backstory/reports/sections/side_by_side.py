"""Evaluations of one text side by side, each under a name that tells it apart."""

import re
from collections import Counter
from collections.abc import Callable, Hashable, Sequence
from typing import TypeVar

from backstory.config import formats
from backstory.results import EvaluationFigures, Record, Result, RunResults

Evaluation = Result[EvaluationFigures]
Named = tuple[str, Evaluation]
"""An evaluation under the name it has beside others."""
R = TypeVar("R", bound=Record)


def grouped_by_text(
    runs: Sequence[RunResults],
    part: Callable[[EvaluationFigures], R | None],
    alike: Callable[[R], Hashable] = lambda _: None,
) -> list[list[Named]]:
    """Return the evaluations that have this part, those of one text in one group; the static reader first in each run.

    `alike`: what the parts of a group also have in common.
    """
    groups: dict[Hashable, list[tuple[str, Evaluation]]] = {}
    for run in runs:
        # The static reader first: the others are compared with it.
        for result in sorted(run.of(EvaluationFigures), key=lambda r: (r.figures.reader != "static", r.folder)):
            if (record := part(result.figures)) is not None:
                text = (formats.plain(result.corpus.fingerprint), result.figures.split, alike(record))
                groups.setdefault(text, []).append((run.name, result))
    return [_named(group) for group in groups.values()]


def title_of_text(result: Evaluation) -> str:
    """Return what was read, in a few words: `stdlib, test`."""
    return f"{result.corpus.title()}, {result.figures.split}"


def _named(group: Sequence[tuple[str, Evaluation]]) -> list[Named]:
    """Name them by readers, and by run where there are several; by settings and by folder where those are the same."""
    one_run = len({run for run, _ in group}) == 1
    static = {result.figures.reader for _, result in group} == {"static"}
    names = [""] * len(group)
    for describe in (lambda r: re.sub(r":[^+]*", "", r.figures.reader), lambda r: r.figures.reader, lambda r: r.folder):
        times = Counter(names)
        for i, (run, result) in enumerate(group):
            if times[names[i]] > 1 or not names[i]:
                described = describe(result)
                names[i] = described if one_run else run if static and not names[i] else f"{run}, {described}"
    return [(name, result) for name, (_, result) in zip(names, group, strict=True)]
