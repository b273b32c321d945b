"""Names of a run and of the files that make it up, and checks of folders: that they are runs, or lie outside of runs."""

import os
import re
from pathlib import Path

from backstory.config.recipes import CONFIG, holds_model_elsewhere
from backstory.utils.errors import UserError, nearest, pasted
from backstory.utils.small_file import user_path

RESULT = "result.json"
LOG = "metrics.jsonl"
PROVENANCE = "run.json"
CHECKPOINTS = "checkpoints"
"""Folder of a run with its checkpoints: `last-STEP` to resume from, `best-EPOCH` to evaluate."""
SAVED = "readers"
"""Folder of a run with the settings and statistics of its readers."""
TENSORBOARD = "tensorboard"
OURS = (SAVED, RESULT, PROVENANCE, CHECKPOINTS, LOG, TENSORBOARD)
"""Files and folders that are removed when a run is overwritten, in this order: interrupted anywhere, the rest can be resumed or
overwritten. The settings, by which a folder is recognised as a run, are replaced last."""
SWEEP = "sweep.yaml"
"""The file of what is searched; a folder that has it is a sweep's."""
SUITE, EARLIER_SUITE = "suite.yaml", "grid.yaml"
"""Copy of the suite, which marks the folder as a reproduction's."""
A_RUN = "a run"
_MARKS = {
    A_RUN: ((CONFIG, CHECKPOINTS), (CONFIG, PROVENANCE)),
    "a sweep": ((SWEEP, "trials", "recipes", "logs"),),
    # A user's own folder may well hold a suite and runs.
    "a reproduction": tuple((file, "runs", "recipes", "logs") for file in (SUITE, EARLIER_SUITE)),
}
"""A file and all that lies beside it, by the kind of folder that has them."""


def kind_of_runs(folder: Path) -> str | None:
    """Return `a run`, `a sweep` or `a reproduction` for the folder of one; None for others, and for what cannot be read."""
    for kind, marks in _MARKS.items():
        if any(
            os.path.isfile(folder / file) and all(os.path.exists(folder / b) for b in beside) for file, *beside in marks
        ):
            return kind
    return None


def run_name(folder: Path) -> str:
    """Return the name of a run in results: that of its folder, also where the path is `.` or ends in `..`."""
    return folder.resolve().name if folder.name in ("", "..") else folder.name


def check_outside_runs(path: Path) -> None:
    """Raise UserError if what is written to the path would replace a file of a run, or lie among its checkpoints."""
    target = Path(os.path.realpath(path))
    for folder in target.parents:
        name = target.relative_to(folder).parts[0]
        if name in (CONFIG, *OURS) and (folder / CONFIG).is_file() and (folder / PROVENANCE).is_file():
            raise UserError(f"{path} is among the files of the run {folder.name}; choose another place")


def check_run_exists(folder: Path, trained_here: bool = False) -> None:
    """Raise UserError where there is no folder of a run, with the command that trains one.

    `trained_here`: a model of Hugging Face would be of no use.
    """
    if folder.is_file():
        if (folder.parent / CONFIG).is_file():
            beside = f", {folder.parent}"
        elif holds_model_elsewhere(folder.parent):
            beside = f", or a model of Hugging Face, hf:{folder.parent}"
        else:
            beside = ", and a text after it"
        raise UserError(f"{folder} is a file; name the folder of a run first{beside}")
    is_elsewhere = holds_model_elsewhere(folder)
    if str(folder).lower().startswith("hf:") or (is_elsewhere and trained_here):
        raise UserError(
            f"{folder} is a model of Hugging Face, which can only be read (hf:...); name a run trained here"
        )
    if is_elsewhere:
        raise UserError(f"{folder} is a model of Hugging Face, it seems; write hf: before it: hf:{folder}")
    if not folder.is_dir():
        train = (
            f"there is no run folder {folder}{_similar_run(folder)}; train one with "
            f"`backstory train RECIPE --out {pasted(folder)}`"
        )
        on_hub = "/" not in str(folder) or (str(folder).count("/") == 1 and not folder.parent.is_dir())
        hub = f"; a model of Hugging Face is named hf:{folder}" if on_hub and not trained_here else ""
        raise UserError(train + hub)


def check_results_exist(folder: Path) -> None:
    """Raise UserError where there is no folder that could hold results."""
    if folder.is_dir():
        return
    if str(folder).startswith("hf:"):
        raise UserError(f"{folder} is a model; name the folder of its results, which --out kept")
    problem = "is not a folder" if folder.exists() else "does not exist"
    raise UserError(f"{folder} {problem}{_similar_run(folder)}; name the folder of a run")


def _similar_run(folder: Path) -> str:
    """Return ` (did you mean 'runs/x'?)` for the run of this name in `runs`, or the closest name beside it; else ''."""
    if (Path("runs") / folder / CONFIG).is_file():
        return f" (did you mean '{Path('runs') / folder}'?)"
    return nearest(str(folder), (str(config.parent) for config in folder.parent.glob(f"*/{CONFIG}")))


def check_source_exists(source: str) -> None:
    """Raise UserError where `hf:SOURCE` is neither a folder nor can be a name on the hub."""
    folder = user_path(source)
    if not source or not (folder.is_dir() or re.fullmatch(r"[\w-][\w.-]*(/[\w-][\w.-]*)?", source)):
        raise UserError(f"there is no folder {source!r}; give hf: with the folder of a model, or its name on the hub")
