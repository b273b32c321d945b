"""Tools of every other package: errors, files, processes, output, and how numbers are written; no torch."""
