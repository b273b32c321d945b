"""Runs of a second for the cases to break: a corpus of a small grammar, and models whose sizes no kernel likes."""

import dataclasses
import hashlib
import io
import json
import random
import signal
from pathlib import Path
from typing import Any

from rich.console import Console
from torch.optim.optimizer import register_optimizer_step_post_hook

from backstory.config import (
    EmbeddingConfig,
    LSTMConfig,
    MixtureConfig,
    ModelConfig,
    RunConfig,
    TextConfig,
    TrainingConfig,
    to_yaml,
)
from backstory.training import Stopped, train

CORE = LSTMConfig(layers=2, hidden=9, input_dropout=0.1, layer_dropout=0.1, output_dropout=0.1, weight_drop=0.2)
MODEL = ModelConfig(embedding=EmbeddingConfig(size=7, dropout=0.1), core=CORE)
TRAINING = TrainingConfig(
    epochs=2,
    batch_size=3,
    segment=10,
    segment_deviation=2.0,
    learning_rate=2.0,
    clip=1.0,
    averaging="always",
    precision="float32",
    device="cpu",
)
TUNED = dataclasses.replace(TRAINING, epochs=1, finetune_epochs=1, averaging="none")
MIXED = dataclasses.replace(MODEL, head=MixtureConfig(experts=2))
ADAM = dataclasses.replace(TRAINING, optimizer="adam", learning_rate=0.01, averaging="none")
KINDS = {"averaged": (MODEL, TRAINING), "fine-tuned": (MODEL, TUNED), "adam": (MIXED, ADAM)}
"""Models and trainings of two epochs that leave checkpoints with different things in them."""


def write_corpus(folder: Path) -> Path:
    """A folder with about 200 words to train on and 50 in each other split."""
    folder.mkdir()
    for seed, (split, count) in enumerate({"train": 40, "valid": 10, "test": 10}.items()):
        chosen = random.Random(seed)
        lines = (
            f"{chosen.choice(('ann', 'bob'))} saw {chosen.choice(('tea', 'jam', 'ink'))} and more\n"
            for _ in range(count)
        )
        (folder / f"{split}.txt").write_text("".join(lines))
    return folder


def stopped_run(kind: str, folder: Path) -> tuple[Path, Path]:
    """A run that was stopped in its second epoch, and the file with its settings; the corpus is beside them."""
    model, training = KINDS[kind]
    corpus = folder / "corpus" if (folder / "corpus").exists() else write_corpus(folder / "corpus")
    config, steps = RunConfig(TextConfig(corpus=str(corpus)), model, training), 0

    def count(*_: object) -> None:
        nonlocal steps
        steps += 1
        if steps == 12:
            signal.raise_signal(signal.SIGTERM)

    handle = register_optimizer_step_post_hook(count)
    try:
        train(config, folder / kind, console=Console(file=io.StringIO()))
    except Stopped:
        (folder / f"{kind}.yaml").write_text(to_yaml(config))
        return folder / kind, folder / f"{kind}.yaml"
    finally:
        handle.remove()
    raise AssertionError("the run came to its end")


def newest(run: Path, prefix: str) -> Path:
    """The newest checkpoint of a run."""
    return max((run / "checkpoints").glob(f"{prefix}-*"), key=lambda p: int(p.name.split("-")[1]))


def sign(checkpoint: Path) -> None:
    """Write the manifest anew, so that sizes and hashes are those of the files that are there."""
    files = {
        p.name: {"bytes": p.stat().st_size, "sha256": hashlib.sha256(p.read_bytes()).hexdigest()}
        for p in sorted(checkpoint.iterdir())
        if p.is_file() and p.name != "manifest.json"
    }
    manifest: dict[str, Any] = {"schema": 1, "files": files}
    (checkpoint / "manifest.json").write_text(json.dumps(manifest))
