"""Runs: the folder of a training, and the trained model loaded from it."""
