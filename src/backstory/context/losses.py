"""Losses of every target under every condition, as one compressed file from which any split or plot can be made later."""

import errno
import io
import json
import zipfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from backstory.config import UserError
from backstory.config.small_file import open_regular
from backstory.context.bootstrap import clusters_of
from backstory.context.splits import Groups
from backstory.storage.atomic import write_atomically

LOSSES = "losses.npz"
UNFINISHED = "unfinished.npz"
LARGEST = 1 << 34
"""Bytes of all arrays in a file; one that unfolds to more is refused."""
ADAPTING = ("cache", "dynamic", "learned")
"""Readers that learn from the text as they read it."""
_MEASURED = ("format", "weights", "model", "device", "torch", "training", "tags")
"""Settings that nobody asks for: where these alone differ, what was found before is out of date."""


@dataclass(frozen=True, eq=False)
class Losses:
    """What one model paid for each of N targets under C conditions."""

    positions: np.ndarray
    """(N,) where each target stands in the split, ascending."""
    targets: np.ndarray
    """(N,) its token."""
    baseline: np.ndarray
    """(N,) nats under the baseline."""
    baseline_context: int | None
    """The tokens that the baseline read; None for all there are."""
    nats: np.ndarray
    """(C, N) nats under each condition."""
    lengths: np.ndarray
    """(C,) mean length of the contexts after the perturbation; nan for all there is."""
    conditions: Sequence[Mapping[str, Any]]
    """The parameters of each, its `name` among them."""
    settings: Mapping[str, Any] = field(default_factory=dict)
    """What the losses are of, as JSON values: losses of equal settings are equal."""
    splits: Mapping[str, Groups] = field(default_factory=dict)
    clusters: np.ndarray | None = None
    """(N,) the document or block of each target, which are drawn as wholes; None where the reader does not adapt."""

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
        write_atomically(path, content.getvalue())

    @staticmethod
    def load(path: Path) -> "Losses":
        """What `save` wrote. Raises UserError for a file that is absent, damaged or something else."""
        try:
            with open_regular(path, path.parent) as file:
                if sum(part.file_size for part in zipfile.ZipFile(file).infolist()) > LARGEST:
                    raise OSError(errno.EFBIG, "it unfolds to too much", str(path))
                file.seek(0)
                with np.load(file, allow_pickle=False) as found:
                    arrays = dict(found)
            about = json.loads(str(arrays["about"]))
            splits = {
                name.removeprefix("by_").removesuffix("_groups"): Groups(
                    arrays[name.removesuffix("_groups")], tuple(map(str, groups))
                )
                for name, groups in arrays.items()
                if name.startswith("by_") and name.endswith("_groups")
            }
            losses = Losses(
                arrays["positions"],
                arrays["targets"],
                arrays["baseline"],
                about["baseline_context"],
                arrays["nats"],
                arrays["lengths"],
                about["conditions"],
                about["settings"],
                splits,
                arrays.get("clusters", _blocks(arrays["positions"], about["settings"])),
            )
        except FileNotFoundError:
            raise UserError(f"there is no {path}; make it with `backstory examine`") from None
        except (OSError, EOFError, KeyError, TypeError, ValueError, MemoryError, zipfile.BadZipFile) as error:
            raise UserError(f"{path} holds no losses of an examination, or is damaged; examine again") from error
        many, shape = len(losses.positions), (len(losses.conditions), len(losses.positions))
        if losses.nats.shape != shape or losses.baseline.shape != (many,) or losses.targets.shape != (many,):
            raise UserError(f"{path} is damaged: its arrays do not fit each other; examine again")
        return losses


def _blocks(positions: np.ndarray, settings: Mapping[str, Any]) -> np.ndarray | None:
    """The blocks (N,) of targets in a file that is older than clusters; None where the reader does not adapt."""
    adapts = any(layer["name"] in ADAPTING for layer in settings.get("readers", []))
    return clusters_of(positions) if adapts else None


class Progress:
    """The losses of an experiment as they come, kept on disk so that a stopped one goes on with its next condition."""

    def __init__(self, folder: Path | None, settings: Mapping[str, Any], again: bool = False) -> None:
        """`folder` is where the result goes; with None nothing is kept. Only losses of equal settings are taken over.

        `again` takes nothing over. Raises UserError where losses that are finished were asked for otherwise and `again` does
        not give them up.
        """
        self.folder, self.settings = folder, json.loads(json.dumps(settings))
        self.found = None if folder is None or again else self._found(folder)
        self.taken = 0
        """Conditions that were taken over."""

    def _found(self, folder: Path) -> Losses | None:
        for name in (UNFINISHED, LOSSES):
            try:
                losses = Losses.load(folder / name)
            except UserError:
                continue
            if losses.settings == self.settings:
                return losses
            if name == LOSSES:
                self._check_given_up(folder, losses.settings)
        return None

    def _check_given_up(self, folder: Path, theirs: Mapping[str, Any]) -> None:
        """Raise UserError where what is here was asked for otherwise."""
        for name, value in theirs.items():
            if name in _MEASURED or name not in self.settings or value == self.settings[name]:
                continue
            plain = isinstance(value, int | None) and isinstance(self.settings[name], int | None)
            called = name.replace("_", " ")
            differs = f"{called} {value}, not {self.settings[name]}" if plain else f"another {called.removesuffix('s')}"
            raise UserError(
                f"{folder} holds an examination with {differs}, which would be lost; choose another folder with --out, or "
                "replace it with --again"
            )

    def baseline(self, positions: np.ndarray) -> np.ndarray | None:
        """The baseline's nats, if they are known."""
        known = self.found is not None and np.array_equal(self.found.positions, positions)
        return self.found.baseline if known and self.found is not None else None

    def condition(self, described: Mapping[str, Any], positions: np.ndarray) -> tuple[np.ndarray, float] | None:
        """The nats and the mean length of a condition, if they are known."""
        if self.found is None or not np.array_equal(self.found.positions, positions):
            return None
        for place, known in enumerate(self.found.conditions):
            if {k: known.get(k) for k in described} == dict(described):
                self.taken += 1
                return self.found.nats[place], float(self.found.lengths[place])
        return None

    def keep(self, losses: Losses) -> None:
        """Save what is finished so far."""
        if self.folder is not None:
            losses.save(self.folder / UNFINISHED)

    def finish(self, losses: Losses) -> None:
        """Save the whole, in place of what was unfinished."""
        if self.folder is not None:
            losses.save(self.folder / LOSSES)
            (self.folder / UNFINISHED).unlink(missing_ok=True)
