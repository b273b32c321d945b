"""Files that are whole or absent: atomic writes, checkpoints verified by their hashes, result files."""
