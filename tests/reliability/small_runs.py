"""Recipes of runs that take a second and have much state to save, and their folders."""

import dataclasses
from pathlib import Path

from runs import tiny_config, with_model, with_training

from backstory.config import MixtureConfig, RunConfig, to_yaml

SAVE_OFTEN = 1e-9
"""Minutes between checkpoints: one after every step."""


def recipes(corpus: Path) -> dict[str, RunConfig]:
    """Settings by name: SGD that comes to average and to fine-tune, Adam on a mixture, and characters."""
    plain = with_training(
        tiny_config(corpus),
        epochs=4,
        batch_size=6,
        # Too high for the last epochs to be better, so that averaging is triggered.
        learning_rate=40.0,
        trigger=1,
        finetune_epochs=2,
        finetune_learning_rate=1.0,
        save_minutes=SAVE_OFTEN,
    )
    other = with_training(plain, epochs=3, finetune_epochs=0, averaging="none", schedule="plateau", decay_factor=0.5)
    adam = with_training(other, optimizer="adam", learning_rate=0.05, partial_shuffle=True)
    nadam = with_training(other, epochs=2, optimizer="nadam", learning_rate=0.02, batch_size=12, segment=20)
    characters = dataclasses.replace(nadam, text=dataclasses.replace(plain.text, tokenizer="characters"))
    return {
        "averaged and fine-tuned": plain,
        "mixture, Adam": with_model(adam, head=MixtureConfig(experts=3)),
        "characters, NAdam": characters,
    }


def write_recipe(config: RunConfig, path: Path) -> Path:
    """The settings as a file to train by."""
    path.write_text(to_yaml(config), encoding="utf-8")
    return path
