"""A run's folder: settings, metrics and checkpoints; resumed or overwritten only on request."""

import errno
import hashlib
import json
import os
import re
import shutil
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from backstory.config import RunConfig, from_saved, to_dict, to_yaml
from backstory.config.recipes import CONFIG
from backstory.config.strict import from_file, plain_yaml
from backstory.storage.atomic import (
    TEMPORARY,
    check_writable,
    fsync_folder,
    only_by_owner,
    sweep_temporaries,
    write_atomically,
)
from backstory.storage.lock import LOCK
from backstory.storage.manifest import BEST, LAST
from backstory.storage.run_files import CHECKPOINTS, LOG, OURS, PROVENANCE, RESULT, check_outside_runs
from backstory.utils.errors import FolderConflict, UserError
from backstory.utils.small_file import read_small_text

Mode = Literal["new", "resume", "overwrite"]


@dataclass(frozen=True)
class RunFolder:
    """The folder of a run and its paths."""

    path: Path
    in_place: Callable[[], bool] | None = None
    """Returns True if the folder that a training has locked was neither removed nor moved."""

    def check_in_place(self) -> None:
        """Raise UserError if the folder was removed or moved: another folder may be there now."""
        if self.in_place is not None and not self.in_place():
            raise UserError(
                f"{self.path} was removed or moved while it was trained, so the training has ended; "
                "go on with --resume where it is now, or start again"
            )

    @property
    def checkpoints(self) -> Path:
        return self.path / CHECKPOINTS

    @property
    def resumable(self) -> bool:
        """True if there is a checkpoint to resume from."""
        return any(self.checkpoints.glob(f"{LAST}-*"))

    @property
    def metrics(self) -> Path:
        return self.path / LOG

    @property
    def provenance(self) -> Path:
        return self.path / PROVENANCE

    @property
    def config(self) -> Path:
        return self.path / CONFIG

    @property
    def remedy(self) -> str:
        """Advice after a training run that broke off: resume it if it had begun."""
        return "go on with the same command and --resume" if self.config.is_file() else "start again"


def check_folder(path: Path, config: RunConfig, mode: Mode, accept: frozenset[str] = frozenset()) -> None:
    """Raise UserError unless a run of this config may start, or resume, in the folder; nothing is written.

    A folder that holds anything needs mode `resume` or `overwrite`; `resume` needs the same settings unless `config` is in
    `accept`.
    """
    folder = RunFolder(path)
    if path.exists() and not path.is_dir():
        raise UserError(f"{path} is a file; choose another folder with --out")
    # A training that was killed before it wrote its settings leaves nothing but these.
    occupied = path.is_dir() and any(p.name != LOCK and not p.name.startswith(TEMPORARY) for p in path.iterdir())
    is_run = folder.config.is_file()
    if mode == "new" and occupied and is_run:
        raise UserError(f"{path} is not empty; use --resume to go on, --overwrite to start again, or another --out")
    if mode == "new" and occupied:
        raise UserError(f"{path} is not empty, and holds no run; empty it, or choose another folder with --out")
    if mode == "resume" and not is_run:
        again = "choose another folder with --out" if occupied else "leave --resume out to start one"
        raise UserError(f"{path} holds no run to resume; {again}")
    odd = next((p for n in (RESULT, PROVENANCE, LOG) if (p := path / n).exists() and not p.is_file()), None)
    if mode == "resume" and odd is not None:
        raise UserError(f"{odd} is not a regular file; remove it, or choose another --out")
    if mode == "resume" and "config" not in accept:
        _check_settings(folder, config)
    if mode != "new" and (link := next((p for p in (path / n for n in OURS) if p.is_symlink()), None)):
        touched = "removed" if mode == "overwrite" else "written to"
        raise UserError(f"{link} is a link, and what it leads to is not {touched}; remove it, or choose another --out")
    if mode == "overwrite" and occupied and not is_run:
        raise UserError(
            f"{path} holds something other than a run; it is not overwritten: choose another folder with --out"
        )
    check_outside_runs(path)
    copied = {"remedy": "copy the run, and resume the copy"} if mode == "resume" else {}
    check_writable(path, **copied)
    for changed in _replaced(path) if mode == "overwrite" else [folder.checkpoints]:
        _check_permitted(changed, removed=mode == "overwrite")


def _check_settings(folder: RunFolder, config: RunConfig) -> None:
    """Raise UserError unless a run was trained with these settings."""
    saved = from_file(RunConfig, folder.config, folder.path)
    if different := differences(to_dict(saved), to_dict(config)):
        raise FolderConflict(
            f"{folder.path} was trained with other settings ({', '.join(different)})",
            "give the same ones, or --accept config to go on with the new ones",
        )


def _check_permitted(path: Path, removed: bool) -> None:
    """Raise UserError unless every folder at and below a path can be written to and, if `removed`, all of it be removed."""
    below = (Path(top, name) for top, folders, files in os.walk(path) for name in (*folders, *files))
    for inner in (path, *below):
        if inner.is_dir() and not inner.is_symlink() and not os.access(inner, os.R_OK | os.W_OK | os.X_OK):
            denied = os.strerror(errno.EACCES)
            raise UserError(f"cannot write to {inner}: {denied}; have its owner permit it, or choose another --out")
        if removed and only_by_owner(inner):
            raise UserError(
                f"cannot remove {inner}: only its owner can, as {inner.parent} has the sticky bit; "
                "have its owner remove it, or choose another --out"
            )


def open_folder(
    path: Path,
    config: RunConfig,
    mode: Mode,
    in_place: Callable[[], bool] | None = None,
    provenance: str | None = None,
) -> RunFolder:
    """Make or open the folder of a run, after `check_folder`.

    `provenance` is written before the settings: a run that is killed in between is no run yet, and cannot be resumed without
    what its provenance says.
    """
    folder = RunFolder(path, in_place)
    if mode == "overwrite":
        # Results of the old weights go first: without the run they would be taken for results of the new ones.
        for target in _replaced(path):
            shutil.rmtree(target) if target.is_dir() else target.unlink(missing_ok=True)
    path.mkdir(parents=True, exist_ok=True)
    sweep_temporaries(path)
    if provenance is not None:
        write_atomically(folder.provenance, provenance)
    # Equivalent settings stay as they were written: checkpoints of earlier versions hold their hash (`trained_with`).
    if mode != "resume" or not _equivalent(_written(folder), config):
        write_atomically(folder.config, to_yaml(config))
    folder.checkpoints.mkdir(exist_ok=True)
    fsync_folder(path)
    sweep_temporaries(folder.checkpoints)
    from backstory.storage.checkpoint import sweep_removals  # which loads torch

    for prefix in (LAST, BEST):
        sweep_removals(folder.checkpoints, prefix)
    return folder


def _replaced(path: Path) -> list[Path]:
    """Return the paths that overwriting a run removes, in this order: results of its weights, and the run itself.

    Results are whole folders under our names, and the result files in folders under the user's names.
    """
    ours = re.compile(r"(evaluate|examine|explain)-.*|sample")
    results = [p for p in sorted(path.glob(f"*/{RESULT}")) if not p.parent.is_symlink()]
    evaluations = [p.parent if ours.fullmatch(p.parent.name) else p for p in results]
    return [*evaluations, *(path / name for name in OURS)]


def differences(a: dict[str, Any], b: dict[str, Any], path: str = "") -> list[str]:
    """Return the differences between saved settings and present ones, one line each."""
    lines = []
    for key in sorted(a.keys() | b.keys()):
        old, new = a.get(key), b.get(key)
        if isinstance(old, dict) and isinstance(new, dict):
            lines += differences(old, new, f"{path}{key}.")
        elif old != new:
            lines.append(f"{path}{key}: {old} there, {new} here")
    return lines


def trained_with(saved: dict[str, Any] | str, folder: RunFolder, config: RunConfig) -> bool:
    """Return True if a checkpoint was trained with this config; settings that it lacks have their defaults.

    Earlier versions saved the SHA-256 (hex) of the settings file as it was written then.
    """
    if isinstance(saved, dict):
        return _equivalent(saved, config)
    written = _written(folder)
    return saved == _hash(to_dict(config)) or (saved == _hash(written) and _equivalent(written, config))


def _equivalent(settings: dict[str, Any] | None, config: RunConfig) -> bool:
    """Return True if saved settings are those of this config; a setting that they lack has its default."""
    if settings is None:
        return False
    try:
        return not differences(to_dict(from_saved(RunConfig, settings, "the saved settings")), to_dict(config))
    except UserError:  # settings of another version
        return False


def _written(folder: RunFolder) -> dict[str, Any] | None:
    """Return the content of the run's settings file; None if it is not valid."""
    try:
        settings = plain_yaml(read_small_text(folder.config, inside=folder.path), str(folder.config))
        from_saved(RunConfig, settings, str(folder.config))
        return settings
    except (UserError, OSError):
        return None


def _hash(settings: dict[str, Any] | None) -> str:
    return hashlib.sha256(json.dumps(settings, sort_keys=True).encode()).hexdigest()
