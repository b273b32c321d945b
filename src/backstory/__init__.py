"""Backstory: language models that remember."""
