"""Models that differ in their seed, examined as one set: means, with the deviation over the models."""

import re
from collections.abc import Mapping, Sequence
from itertools import takewhile
from pathlib import Path
from typing import Any

from backstory.config import UserError
from backstory.config.arguments import checked
from backstory.config.small_file import read_small
from backstory.context.examination import Alone
from backstory.context.figures import figures as figures_of
from backstory.context.laboratory import examine_run
from backstory.context.losses import LOSSES, Losses
from backstory.context.result import Examined
from backstory.models import choose_device
from backstory.reports.checks import check
from backstory.reports.shapes import AMOUNT, COUNT, NAME, OBJECT, Some, wrong
from backstory.runs.run import open_run
from backstory.storage.documents import parse
from backstory.storage.provenance import RESULT, check_place, write_result

_COMBINED = {
    "figures": {"reader": NAME, "seed": COUNT, "groups": Some({"by": NAME})},
    "provenance": {"corpus": OBJECT, "seed": COUNT, "seconds": AMOUNT},
}
"""What of an examination a set is made of, beside its losses."""


@checked()
def examine_runs(
    folders: Sequence[Path | str], experiment: str, *, out: Path | str | None = None, **options: Any
) -> Examined:
    """Examine several runs that differ in their seed, each into its own folder, and put the results together.

    `options` are those of `examine_run`. The set's own result is written to `out`, if given. Raises UserError.
    """
    if len(folders) < 2:
        raise UserError("a set of models takes two runs at least; name them all")
    if out is not None and (options.get("ranks") or Alone()).rank == 0:
        check_place(Path(out), "examination")
    _check_set(folders)
    progress, found = options.pop("progress", None), []
    for place, folder in enumerate(folders):

        def told(done: int, total: int, place: int = place) -> None:
            if progress is not None:
                progress(place * total + done, len(folders) * total)

        found.append(examine_run(folder, experiment, progress=told, **options))
    together = combine(found)
    if out is not None and (options.get("ranks") or Alone()).rank == 0:
        together.save(out)
    return together


def _check_set(folders: Sequence[Path | str]) -> None:
    """Raise UserError for runs that are no set, before the first is examined, which takes long."""
    places = [Path(folder).resolve() for folder in folders]
    twice = next((folder for i, folder in enumerate(folders) if places[i] in places[:i]), None)
    if twice is not None:
        raise UserError(f"{twice} is named twice; a set is of models that differ in their seed")
    corpora = [open_run(folder, choose_device("cpu")).corpus["fingerprint"] for folder in folders]
    other = next((folder for folder, corpus in zip(folders, corpora, strict=True) if corpus != corpora[0]), None)
    if other is not None:
        raise UserError(f"{other} is of another corpus or tokenizer than {folders[0]}; compare models of one")


@checked()
def combine(models: Sequence[Examined]) -> Examined:
    """Examinations of several models on the same targets as one: means, with the deviation over the models.

    Raises UserError where they do not compare.
    """
    if not models:
        raise UserError("models must be one examination or more, not none")
    for model in models:
        for field, _ in wrong(_COMBINED, model.result, ""):
            raise UserError(f"the examination of {model.result.get('name')} does not tell its {field}; examine again")
    first = models[0]
    same = (
        "experiment",
        "split",
        "reader",
        "unit",
        "seed",
        "maximum_context",
        "context",
        "within_documents",
        "near",
        "batch_size",
    )
    for other in models[1:]:
        differing = [key for key in same if other.figures.get(key, 1) != first.figures.get(key, 1)]
        if _word_score(other.figures) != _word_score(first.figures):
            differing.append("word_score")
        if differing:
            raise UserError(f"the examinations differ in {differing[0]}; examine the models with the same settings")
        corpora = [m.result["provenance"]["corpus"].get("fingerprint") for m in (first, other)]
        if corpora[0] != corpora[1]:
            raise UserError("the models were examined on other text; compare models of one corpus")
    by = list(dict.fromkeys(group["by"] for group in first.figures["groups"]))
    losses = [loss for model in models for loss in model.losses]
    figures = {**first.figures, **figures_of(losses, by, first.figures["seed"])}
    figures["models"] = [
        {"name": m.result["name"], "seed": m.result["provenance"]["seed"], "nats": m.figures["baseline"]["nats"]}
        for m in models
    ]
    origin = dict(first.result["provenance"])
    origin["seed"] = [m.result["provenance"]["seed"] for m in models]
    origin["seconds"] = round(sum(m.result["provenance"]["seconds"] for m in models), 1)
    origin["weights"] = [m.result["provenance"].get("weights") for m in models]
    origin["weights_file"] = [m.result["provenance"].get("weights_file") for m in models]
    origin["taken_over"] = sum(m.result["provenance"].get("taken_over", 0) for m in models)
    return Examined(write_result(None, "examination", _together(models), figures, origin), tuple(losses))


def _word_score(figures: Mapping[str, Any]) -> str | None:
    """Return how words of pieces were scored: older results do not say so, as it was always the plain sum."""
    return figures.get("word_score") or ("sum" if figures.get("pieces_per_word") else None)


def _together(models: Sequence[Examined]) -> str:
    """What the set is called: what its models' names begin with, and how many they are."""
    names = [model.result["name"] for model in models]
    alike = takewhile(lambda letters: len(set(letters)) == 1, zip(*names, strict=False))
    shared = re.sub(r"[-_. ]*(seed)?[-_. ]*$", "", "".join(letters[0] for letters in alike))
    return f"{shared} ({len(names)} models)" if shared else " + ".join(names)


@checked()
def read_examination(folder: Path | str) -> Examined:
    """An examination of one model that was written before. Raises UserError."""
    path = Path(folder)
    losses = Losses.load(path / LOSSES)
    try:
        result = parse(read_small(path / RESULT, inside=path))
    except (OSError, ValueError):
        raise UserError(f"{path / RESULT} is absent or damaged; examine again") from None
    if not isinstance(result, dict) or result.get("kind") != "examination":
        raise UserError(f"{path / RESULT} is no examination; name the folder of one")
    check(result, str(path / RESULT))
    return Examined(result, (losses,))
