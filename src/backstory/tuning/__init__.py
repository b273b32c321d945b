"""Tuning: settings of readers, and sweeps over the settings of recipes (Optuna)."""
