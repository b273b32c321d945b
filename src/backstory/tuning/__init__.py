"""The search for settings: a space of them, trials that are trainings, and what is found (Optuna)."""
