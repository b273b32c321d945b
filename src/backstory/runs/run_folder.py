"""A run's folder: settings, metrics and checkpoints; begun once, resumed or overwritten only when asked."""

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

from backstory.config import RunConfig, UserError, from_saved, to_dict, to_yaml
from backstory.config.small_file import read_small_text
from backstory.config.strict import from_file, plain_yaml
from backstory.runs.run import CHECKPOINTS, CONFIG
from backstory.storage.atomic import (
    TEMPORARY,
    check_writable,
    fsync_folder,
    sweep_temporaries,
    write_atomically,
)
from backstory.storage.checkpoint import sweep_removals
from backstory.storage.lock import LOCK
from backstory.storage.manifest import BEST
from backstory.storage.provenance import RESULT

Mode = Literal["new", "resume", "overwrite"]
SAVED = "readers"
"""Folder of a run that holds what readers have learned or were given: settings, statistics."""


TENSORBOARD = "tensorboard"
OURS = (SAVED, RESULT, "run.json", CHECKPOINTS, "metrics.jsonl", TENSORBOARD)
"""What goes when a run is overwritten, in this order: interrupted anywhere, what is left can be resumed or overwritten. The
settings, by which a folder is known for a run, are replaced after it."""


@dataclass(frozen=True)
class RunFolder:
    """The folder of a run and its paths."""

    path: Path
    stands: Callable[[], bool] | None = None
    """Returns True if the folder that a training has locked is still in its place."""

    def check_stands(self) -> None:
        """Raise UserError if the folder was removed or moved: another folder may be there now."""
        if self.stands is not None and not self.stands():
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
        return any(self.checkpoints.glob("last-*"))

    @property
    def metrics(self) -> Path:
        return self.path / "metrics.jsonl"

    @property
    def provenance(self) -> Path:
        return self.path / "run.json"

    @property
    def config(self) -> Path:
        return self.path / CONFIG


def check_folder(path: Path, config: RunConfig, mode: Mode, accept: frozenset[str] = frozenset()) -> None:
    """Raise UserError unless a run of this config may start, or resume, in the folder; nothing is written.

    A folder that holds anything needs mode `resume` or `overwrite`; `resume` needs the same settings unless `config` is in
    `accept`.
    """
    folder = RunFolder(path)
    if path.exists() and not path.is_dir():
        raise UserError(f"{path} is a file; choose another folder with --out")
    # A start that was killed before its settings stood leaves nothing but these.
    occupied = path.is_dir() and any(p.name != LOCK and not p.name.startswith(TEMPORARY) for p in path.iterdir())
    stands = folder.config.is_file()
    if mode == "new" and occupied and stands:
        raise UserError(f"{path} is not empty; use --resume to go on, --overwrite to start again, or another --out")
    if mode == "new" and occupied:
        raise UserError(f"{path} is not empty, and holds no run; empty it, or choose another folder with --out")
    if mode == "resume" and not stands:
        again = "choose another folder with --out" if occupied else "leave --resume out to start one"
        raise UserError(f"{path} holds no run to resume; {again}")
    odd = next((p for n in (RESULT, "run.json", "metrics.jsonl") if (p := path / n).exists() and not p.is_file()), None)
    if mode == "resume" and odd is not None:
        raise UserError(f"{odd} is no regular file; remove it, or choose another --out")
    if mode == "resume" and "config" not in accept:
        _same_settings(folder, config)
    if mode != "new" and (link := next((p for p in (path / n for n in OURS) if p.is_symlink()), None)):
        touched = "removed" if mode == "overwrite" else "written to"
        raise UserError(f"{link} is a link, and what it leads to is not {touched}; remove it, or choose another --out")
    if mode == "overwrite" and occupied and not stands:
        raise UserError(
            f"{path} holds something other than a run; it is not overwritten: choose another folder with --out"
        )
    check_writable(path)
    for place in _replaced(path) if mode == "overwrite" else [folder.checkpoints]:
        _check_changeable(place)


def _check_changeable(place: Path) -> None:
    """Raise UserError if something in or below a folder may not be replaced or removed."""
    for inner in (place, *(Path(top, name) for top, names, _ in os.walk(place) for name in names)):
        if inner.is_dir() and not inner.is_symlink() and not os.access(inner, os.R_OK | os.W_OK | os.X_OK):
            raise UserError(
                f"cannot write to {inner}: {os.strerror(errno.EACCES)}; have its owner permit it, or choose another --out"
            )


def open_folder(path: Path, config: RunConfig, mode: Mode, stands: Callable[[], bool] | None = None) -> RunFolder:
    """Make or open the folder of a run, after `check_folder`."""
    folder = RunFolder(path, stands)
    if mode == "overwrite":
        # What was read and examined with the old weights goes with them, and first: with no run it would be for new ones.
        for target in _replaced(path):
            shutil.rmtree(target) if target.is_dir() else target.unlink(missing_ok=True)
    path.mkdir(parents=True, exist_ok=True)
    sweep_temporaries(path)
    # One that means the same stays as it is: checkpoints of earlier versions are known by it (`trained_with`).
    if mode != "resume" or not _mean(_written(folder), config):
        write_atomically(folder.config, to_yaml(config))
    folder.checkpoints.mkdir(exist_ok=True)
    fsync_folder(path)
    sweep_temporaries(folder.checkpoints)
    for prefix in ("last", BEST):
        sweep_removals(folder.checkpoints, prefix)
    return folder


def _replaced(path: Path) -> list[Path]:
    """Return what is removed when a run is overwritten, in this order: results of its weights, and the run itself.

    The former are folders of our names, and results in folders of the user's names.
    """
    ours = re.compile(r"(evaluate|examine|explain)-.*|sample")
    results = [p for p in sorted(path.glob(f"*/{RESULT}")) if not p.parent.is_symlink()]
    readings = [p.parent if ours.fullmatch(p.parent.name) else p for p in results]
    return [*readings, *(path / name for name in OURS)]


def _same_settings(folder: RunFolder, config: RunConfig) -> None:
    different = differences(to_dict(from_file(RunConfig, folder.config, folder.path)), to_dict(config))
    if different:
        raise UserError(
            f"{folder.path} was trained with other settings ({', '.join(different)}); "
            "give the same ones, or --accept config to go on with the new ones"
        )


def differences(a: dict[str, Any], b: dict[str, Any], path: str = "") -> list[str]:
    """Return the differences between saved settings and present ones, one line each."""
    found = []
    for key in sorted(a.keys() | b.keys()):
        old, new = a.get(key), b.get(key)
        if isinstance(old, dict) and isinstance(new, dict):
            found += differences(old, new, f"{path}{key}.")
        elif old != new:
            found.append(f"{path}{key}: {old} there, {new} here")
    return found


def trained_with(saved: dict[str, Any] | str, folder: RunFolder, config: RunConfig) -> bool:
    """Return True if a checkpoint was trained with this config, whatever settings were added since.

    Those that it does not know have their defaults. Earlier versions saved a SHA-256 (hex) of the settings, which is that of
    the settings file as it was written then.
    """
    if isinstance(saved, dict):
        return _mean(saved, config)
    written = _written(folder)
    return saved == _hash(to_dict(config)) or (saved == _hash(written) and _mean(written, config))


def _mean(settings: dict[str, Any] | None, config: RunConfig) -> bool:
    """Return True if saved settings mean this config: a setting that they lack has its default."""
    if settings is None:
        return False
    try:
        return not differences(to_dict(from_saved(RunConfig, settings, "the saved settings")), to_dict(config))
    except UserError:  # settings of another version
        return False


def _written(folder: RunFolder) -> dict[str, Any] | None:
    """Return the content of the run's settings file; None if it is not valid."""
    try:
        found = plain_yaml(read_small_text(folder.config, inside=folder.path), str(folder.config))
        from_saved(RunConfig, found, str(folder.config))
        return found
    except (UserError, OSError):
        return None


def _hash(settings: dict[str, Any] | None) -> str:
    return hashlib.sha256(json.dumps(settings, sort_keys=True).encode()).hexdigest()
