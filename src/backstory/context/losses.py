"""Losses of every target under every condition, in one compressed file from which any split or plot can be made later."""

import errno
import io
import json
import zipfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from backstory.context.bootstrap import clusters_of
from backstory.context.examination import Groups
from backstory.storage.atomic import sweep_abandoned, write_atomically
from backstory.utils.errors import FolderConflict, UserError
from backstory.utils.small_file import open_regular

LOSSES = "losses.npz"
UNFINISHED = "unfinished.npz"
LARGEST = 1 << 34
"""Maximum size of all arrays in a file, in bytes; a file that unpacks to more is refused."""
ADAPTING = ("cache", "dynamic", "learned")
"""Readers that learn from the text as they read it."""
_MEASURED = ("format", "weights", "model", "device", "torch", "training", "tags")
"""Settings that are not options. Earlier losses that differ only in these are out of date."""


@dataclass(frozen=True, eq=False)
class Losses:
    """Losses of one model on each of N targets under C conditions."""

    positions: np.ndarray
    """(N,) position of each target in the split, ascending."""
    targets: np.ndarray
    """(N,) its token."""
    baseline: np.ndarray
    """(N,) nats under the baseline."""
    baseline_context: int | None
    """Tokens of the baseline's contexts; None for all tokens before a target."""
    nats: np.ndarray
    """(C, N) nats under each condition."""
    lengths: np.ndarray
    """(C,) mean length of the contexts after the perturbation; nan for the whole text before a target."""
    conditions: Sequence[Mapping[str, Any]]
    """Parameters of each condition, including its `name`."""
    settings: Mapping[str, Any] = field(default_factory=dict)
    """Everything that the losses depend on, as JSON values: equal settings give equal losses."""
    splits: Mapping[str, Groups] = field(default_factory=dict)
    clusters: np.ndarray | None = None
    """(N,) document or block of each target, resampled as a whole; None if the reader does not adapt."""

    def save(self, path: Path) -> None:
        """Write the file whole; the same losses give the same bytes. docs/results.md describes it."""
        about = {
            "settings": dict(self.settings),
            "baseline_context": self.baseline_context,
            "conditions": [dict(condition) for condition in self.conditions],
        }
        arrays: dict[str, np.ndarray] = {
            "positions": self.positions.astype(np.int64),
            "targets": self.targets.astype(np.int32),
            "baseline": self.baseline,
            "nats": self.nats,
            "names": np.array([condition["name"] for condition in self.conditions], np.str_),
            "lengths": self.lengths,
            "about": np.array(json.dumps(about)),
        }
        for name, groups in self.splits.items():
            arrays[f"by_{name}"] = groups.codes
            arrays[f"by_{name}_groups"] = np.array(groups.names, np.str_)
        if self.clusters is not None:
            arrays["clusters"] = self.clusters.astype(np.int64)
        content = io.BytesIO()
        np.savez_compressed(content, allow_pickle=False, **arrays)  # type: ignore[arg-type]
        path.parent.mkdir(parents=True, exist_ok=True)
        sweep_abandoned(path)
        write_atomically(path, content.getvalue())

    @staticmethod
    def load(path: Path) -> "Losses":
        """Read a file that `save` wrote. Raises UserError if it is absent, damaged or something else."""
        try:
            losses = _from_arrays(_read_arrays(path))
        except FileNotFoundError:
            raise UserError(f"there is no {path}; make it with `backstory examine`") from None
        except (OSError, EOFError, KeyError, TypeError, ValueError, MemoryError, zipfile.BadZipFile) as error:
            raise UserError(f"{path} holds no losses of an examination, or is damaged; examine again") from error
        many, shape = len(losses.positions), (len(losses.conditions), len(losses.positions))
        if losses.nats.shape != shape or losses.baseline.shape != (many,) or losses.targets.shape != (many,):
            raise UserError(f"{path} is damaged: its arrays do not fit each other; examine again")
        return losses


def _read_arrays(path: Path) -> dict[str, np.ndarray]:
    """Return the arrays of a file by their names. Raises OSError if they are too large."""
    with open_regular(path, path.parent) as file:
        if sum(part.file_size for part in zipfile.ZipFile(file).infolist()) > LARGEST:
            raise OSError(errno.EFBIG, "it unfolds to too much", str(path))
        file.seek(0)
        with np.load(file, allow_pickle=False) as archive:
            return dict(archive)


def _from_arrays(arrays: Mapping[str, np.ndarray]) -> Losses:
    about = json.loads(str(arrays["about"]))
    names = [n.removesuffix("_groups") for n in arrays if n.startswith("by_") and n.endswith("_groups")]
    return Losses(
        positions=arrays["positions"],
        targets=arrays["targets"],
        baseline=arrays["baseline"],
        baseline_context=about["baseline_context"],
        nats=arrays["nats"],
        lengths=arrays["lengths"],
        conditions=about["conditions"],
        settings=about["settings"],
        splits={n.removeprefix("by_"): Groups(arrays[n], tuple(map(str, arrays[f"{n}_groups"]))) for n in names},
        clusters=arrays.get("clusters", _blocks(arrays["positions"], about["settings"])),
    )


def _blocks(positions: np.ndarray, settings: Mapping[str, Any]) -> np.ndarray | None:
    """Return the blocks (N,) of targets in a file that is older than clusters; None if the reader does not adapt."""
    adapts = any(layer["name"] in ADAPTING for layer in settings.get("readers", []))
    return clusters_of(positions) if adapts else None


class LossStore:
    """Losses of an experiment on disk, condition by condition: a stopped experiment resumes with the next condition."""

    def __init__(self, folder: Path | None, settings: Mapping[str, Any], again: bool = False) -> None:
        """Load the losses of equal settings from the folder of the result; with None nothing is loaded or saved.

        `again` takes nothing over. Raises UserError if the folder holds finished losses of other options, unless `again`.
        """
        self.folder, self.settings = folder, json.loads(json.dumps(settings))
        self.earlier = None if folder is None or again else self._load(folder)
        self.taken = 0
        """Conditions that were taken over."""

    def _load(self, folder: Path) -> Losses | None:
        for name in (UNFINISHED, LOSSES):
            try:
                losses = Losses.load(folder / name)
            except UserError:
                continue
            if losses.settings == self.settings:
                return losses
            if name == LOSSES:
                self._check_replaceable(folder, losses.settings)
        return None

    def _check_replaceable(self, folder: Path, theirs: Mapping[str, Any]) -> None:
        """Raise UserError if the finished losses are of other options."""
        for name, value in theirs.items():
            if name in _MEASURED or name not in self.settings or value == self.settings[name]:
                continue
            plain = isinstance(value, int | None) and isinstance(self.settings[name], int | None)
            called = name.replace("_", " ")
            differs = f"{called} {value}, not {self.settings[name]}" if plain else f"another {called.removesuffix('s')}"
            raise FolderConflict(
                f"{folder} holds an examination with {differs}, which would be lost",
                "choose another folder with --out, or replace it with --again",
            )

    def baseline(self, positions: np.ndarray) -> np.ndarray | None:
        """Return the baseline's nats (N,), if they are known."""
        same = self.earlier is not None and np.array_equal(self.earlier.positions, positions)
        return self.earlier.baseline if same and self.earlier is not None else None

    def condition(self, described: Mapping[str, Any], positions: np.ndarray) -> tuple[np.ndarray, float] | None:
        """Return the nats (N,) and the contexts' mean length of a condition, if they are known."""
        if self.earlier is None or not np.array_equal(self.earlier.positions, positions):
            return None
        for nats, length, known in zip(self.earlier.nats, self.earlier.lengths, self.earlier.conditions, strict=True):
            if {k: known.get(k) for k in described} == dict(described):
                self.taken += 1
                return nats, float(length)
        return None

    def save(self, losses: Losses) -> None:
        """Save the conditions that are finished so far."""
        if self.folder is not None:
            losses.save(self.folder / UNFINISHED)

    def finish(self, losses: Losses) -> None:
        """Save all conditions, in place of the unfinished file."""
        if self.folder is not None:
            losses.save(self.folder / LOSSES)
            (self.folder / UNFINISHED).unlink(missing_ok=True)
