"""Names of a run and of the files that make it up, and the check that nothing else is written among them."""

import os
from pathlib import Path

from backstory.config import UserError
from backstory.config.recipes import CONFIG

RESULT = "result.json"
CHECKPOINTS = "checkpoints"
"""Folder of a run with its checkpoints: `last-STEP` to resume from, `best-EPOCH` to evaluate."""
SAVED = "readers"
"""Folder of a run with the settings and statistics of its readers."""
TENSORBOARD = "tensorboard"
OURS = (SAVED, RESULT, "run.json", CHECKPOINTS, "metrics.jsonl", TENSORBOARD)
"""Files and folders that are removed when a run is overwritten, in this order: interrupted anywhere, the rest can be resumed or
overwritten. The settings, by which a folder is recognised as a run, are replaced last."""
SWEEP = "sweep.yaml"
"""The file of what is searched; a folder that has it is a sweep's."""
SUITE, EARLIER_SUITE = "suite.yaml", "grid.yaml"
"""Copy of the suite, which marks the folder as a reproduction's."""
A_RUN = "a run"
_MARKS = {
    A_RUN: ((CONFIG, CHECKPOINTS), (CONFIG, "run.json")),
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
        if name in (CONFIG, *OURS) and (folder / CONFIG).is_file() and (folder / "run.json").is_file():
            raise UserError(f"{path} is among the files of the run {folder.name}; choose another place")
