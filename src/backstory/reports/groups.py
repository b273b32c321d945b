"""Evaluations of one text side by side, each under a name that tells it apart."""

import re
from collections import Counter
from collections.abc import Callable, Hashable, Sequence

from backstory.reports import formats
from backstory.reports.examined import folder_of
from backstory.reports.results import Record, Result, RunResults

Named = tuple[str, Result]
"""A result under the name it has beside others."""


def groups(
    runs: Sequence[RunResults], section: str, alike: Callable[[Record], Hashable] = lambda _: None
) -> list[list[Named]]:
    """The evaluations whose figures have this section, those of one text in one group; the static reader first in each run.

    `alike`: what the sections of a group also have in common.
    """
    found: dict[Hashable, list[tuple[str, Result]]] = {}
    for run in runs:
        # The static reader first: the others are compared with it.
        for result in sorted(run.of_kind("evaluation"), key=lambda r: (r.figures["reader"] != "static", folder_of(r))):
            if section_of := result.figures.get(section):
                text = (formats.plain(result.corpus.get("fingerprint")), result.figures["split"], alike(section_of))
                found.setdefault(text, []).append((run.name, result))
    return [_named(group) for group in found.values()]


def text_of(result: Result) -> str:
    """What was read, in a few words: `stdlib, test`."""
    return f"{result.corpus.get('name', 'unnamed text')}, {result.figures['split']}"


def _named(group: Sequence[tuple[str, Result]]) -> list[Named]:
    """By readers, and by run where there are several; by their settings and by folder where that does not tell them apart."""
    alone = len({run for run, _ in group}) == 1
    static = {result.figures["reader"] for _, result in group} == {"static"}
    names = [""] * len(group)
    for say in (lambda r: re.sub(r":[^+]*", "", r.figures["reader"]), lambda r: r.figures["reader"], folder_of):
        times = Counter(names)
        for i, (run, result) in enumerate(group):
            if times[names[i]] > 1 or not names[i]:
                names[i] = say(result) if alone else run if static and not names[i] else f"{run}, {say(result)}"
    return [(name, result) for name, (_, result) in zip(names, group, strict=True)]
