"""Corpora made of files: where they are, what they must be, and how they are cut into splits and documents."""
