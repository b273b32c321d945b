"""Files that are whole or absent: atomic writes, and checkpoints verified by their hashes."""

from backstory.storage.atomic import fsync_folder, sweep_temporaries, write_atomically
from backstory.storage.checkpoint import (
    Checkpoint,
    DamagedCheckpoint,
    newest_checkpoint,
    read_checkpoint,
    rotate_checkpoints,
    write_checkpoint,
)

__all__ = [
    "Checkpoint",
    "DamagedCheckpoint",
    "fsync_folder",
    "newest_checkpoint",
    "read_checkpoint",
    "rotate_checkpoints",
    "sweep_temporaries",
    "write_atomically",
    "write_checkpoint",
]
