"""Identity of the weights that a run folder holds now, by the manifests of its checkpoints; needs no torch."""

from collections.abc import Iterator
from pathlib import Path

from backstory.config.errors import UserError
from backstory.storage.atomic import within
from backstory.storage.manifest import DamagedCheckpoint, numbered, read_manifest, verify_checkpoint

CHECKPOINTS = "checkpoints"
"""Folder of a run that holds `last-STEP` (to resume from) and `best-EPOCH` (to read with)."""
BEST = "best"
WEIGHTS_FILE = "weights.safetensors"


def best_file(run: Path) -> str | None:
    """Return the SHA-256 (hex) of the file of a run's best weights, as its manifest has it; None where there is none."""
    return next((sha256 for _, sha256 in _best_files(run)), None)


def still_holds(run: Path, sha256: str) -> bool:
    """Check that a run would be read with the weights of this file: the newest, but for those that are damaged."""
    for path, newest in _best_files(run):
        if newest == sha256:
            return True
        try:
            verify_checkpoint(path)
        except DamagedCheckpoint:
            continue
        return False
    return False


def _best_files(run: Path) -> Iterator[tuple[Path, str]]:
    """The checkpoints of best weights, newest first, with the hash of their weights."""
    try:
        found = numbered(within(run, CHECKPOINTS), BEST)
    except UserError:
        return
    for path in found:
        if path.is_symlink():
            continue
        try:
            sha256 = read_manifest(path).get(WEIGHTS_FILE, {}).get("sha256")
        except (DamagedCheckpoint, UserError):
            continue
        if isinstance(sha256, str):
            yield path, sha256
