"""Files that are whole or absent: atomic writes, locks, a cache on disk, checkpoints verified by their hashes."""
