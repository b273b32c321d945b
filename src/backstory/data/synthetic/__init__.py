"""Synthetic corpora: documents made by a rule, so that the answers or the exact cost of every token are known."""
