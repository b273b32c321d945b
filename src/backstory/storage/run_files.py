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
