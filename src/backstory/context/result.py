"""Result of an experiment with its losses: to print, draw, save and load; and those of several models as one."""

import re
from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import takewhile
from pathlib import Path
from typing import Any

from backstory.config.examination_options import ExaminationSettings
from backstory.context.effects import figures
from backstory.context.examination_table import table
from backstory.context.losses import LOSSES, Losses
from backstory.reports.sections.context_section import examination_plots
from backstory.reports.svg import FILES
from backstory.results.examination_record import ExaminationFigures, ExaminedModel
from backstory.results.result_file import Result, as_examination, result_at, write_result
from backstory.storage.atomic import write_atomically
from backstory.storage.provenance import check_place
from backstory.storage.run_files import RESULT
from backstory.utils.arguments import checked
from backstory.utils.errors import UserError
from backstory.utils.terminal import TABLE_WIDTH


@dataclass(frozen=True, eq=False, repr=False)
class ExaminationResult(Result[ExaminationFigures[Any]]):
    """Result of an experiment on one model, or on a set of models that differ in their seed."""

    losses: tuple[Losses, ...] = ()
    """Losses of every target, by model."""

    @staticmethod
    def of(result: Result[Any], losses: Sequence[Losses]) -> "ExaminationResult":
        """Return a result with its losses."""
        return ExaminationResult(**vars(result), losses=tuple(losses))

    def table(self, width: int = TABLE_WIDTH) -> str:
        """Return the conditions as lines for a person, and those of every group; wider tables than this are folded."""
        return "\n".join(table(self, width))

    @checked()
    def plot(self, path: Path | str) -> Path:
        """Draw the experiment as an SVG, PDF or PNG file, in the style of the reports; a second figure is `NAME-2` beside it.

        Raises UserError for a name with another ending, and where there is no plot of it: of experiments on words that came
        before, without the split `class`.
        """
        first = Path(path)
        if (ending := first.suffix[1:].lower()) not in FILES:
            kinds = f"{', '.join(FILES[:-1])} or {FILES[-1]}"
            raise UserError(
                f"a plot is written as {kinds}, and {first.name} is named otherwise; name it {first.stem}.svg"
            )
        plots = examination_plots(self)
        if not plots:
            raise UserError(f"there is no plot of {self.figures.experiment}; use .table(), or .figures")
        for number, plot in enumerate(plots, start=1):
            write_atomically(
                first if number == 1 else first.with_stem(f"{first.stem}-{number}"),
                plot.svg if ending == "svg" else plot.drawn(ending),
            )
        return first

    @checked()
    def save(self, folder: Path | str) -> Path:
        """Write result.json into a folder, and the losses: of several models as `losses-1.npz` and so on. Raises UserError."""
        folder = Path(folder)
        check_place(folder, "examination")
        for older in folder.glob("losses*.npz"):
            older.unlink()
        for number, losses in enumerate(self.losses, 1):
            losses.save(folder / (LOSSES if len(self.losses) == 1 else f"losses-{number}.npz"))
        write_result(folder, self.name, self.figures, self.provenance)
        return folder / RESULT


@checked()
def combine(models: Sequence[ExaminationResult]) -> ExaminationResult:
    """Combine examinations of several models on the same targets: means, with the deviation over the models.

    Raises UserError where they do not compare.
    """
    if not models:
        raise UserError("models must be one examination or more, not none")
    for model in models:
        if missing := _missing(model):
            raise UserError(f"the examination of {model.name} has no {missing}; examine again")
    first = models[0]
    for other in models[1:]:
        _check_comparable(first, other)
    by = list(dict.fromkeys(group.by for group in first.figures.groups))
    losses = [loss for model in models for loss in model.losses]
    origins = [model.provenance for model in models]
    named = [
        ExaminedModel(name=model.name, seed=model.provenance.seed, nats=model.figures.baseline.nats) for model in models
    ]
    effects = figures(losses, by, int(first.figures.seed or 0))
    combined = replace(first.figures, **{k: v for k, v in vars(effects).items() if v is not None}, models=tuple(named))
    origin = replace(
        origins[0],
        seconds=round(sum(one.seconds or 0.0 for one in origins), 1),
        taken_over=sum(one.taken_over or 0 for one in origins),
        **{key: [getattr(one, key) for one in origins] for key in ("seed", "weights", "weights_file")},
    )
    return ExaminationResult.of(
        write_result(None, _set_name([model.name for model in models]), combined, origin), losses
    )


def _missing(examination: ExaminationResult) -> str | None:
    """Return the first field that a set of models needs and this examination lacks: it is older, or of a model in memory."""
    figures, origin = examination.figures, examination.provenance
    needed = {
        "figures.reader": figures.reader,
        "figures.seed": figures.seed,
        "provenance.corpus": origin.corpus,
        "provenance.seconds": origin.seconds,
    }
    return next((name for name, value in needed.items() if value is None), None)


def _check_comparable(first: ExaminationResult, other: ExaminationResult) -> None:
    """Raise UserError unless two examinations have the same settings and the same text."""
    settings = [*ExaminationSettings().recorded(whole=True), "split", "reader", "unit"]
    differing = [key for key in settings if getattr(other.figures, key) != getattr(first.figures, key)]
    if _word_score(other.figures) != _word_score(first.figures):
        differing.append("word_score")
    if differing:
        raise UserError(f"the examinations differ in {differing[0]}; examine the models with the same settings")
    if first.corpus.fingerprint != other.corpus.fingerprint:
        raise UserError("the models were examined on other text; compare models of one corpus")


def _word_score(figures: ExaminationFigures[Any]) -> str | None:
    """Return how words of pieces were scored. Older results do not record it: it was always the plain sum."""
    return figures.word_score or ("sum" if figures.pieces_per_word else None)


def _set_name(names: Sequence[str]) -> str:
    """Return the name of a set of models: their common prefix, and their number."""
    alike = takewhile(lambda letters: len(set(letters)) == 1, zip(*names, strict=False))
    shared = re.sub(r"[-_. ]*(seed)?[-_. ]*$", "", "".join(letters[0] for letters in alike))
    return f"{shared} ({len(names)} models)" if shared not in ("", "hf:") else " + ".join(names)


@checked()
def read_examination(folder: Path | str) -> ExaminationResult:
    """Return the saved examination of one model. Raises UserError."""
    path = Path(folder)
    losses, result = Losses.load(path / LOSSES), result_at(path / RESULT)
    if result.kind != ExaminationFigures.kind:
        raise UserError(f"{path / RESULT} is not an examination; name the folder of one")
    return ExaminationResult.of(as_examination(result), [losses])
