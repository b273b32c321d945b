"""Runs that were stopped in the middle, for the cases to break."""

import hashlib
import io
import json
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any

from rich.console import Console
from runs import tiny_config, tiny_corpus, with_model, with_training
from torch.optim.optimizer import register_optimizer_step_post_hook

from backstory.config import MixtureConfig, RunConfig, to_yaml
from backstory.training import Stopped, train

KINDS: dict[str, Callable[[RunConfig], RunConfig]] = {
    "averaged": lambda c: with_training(c, epochs=2, averaging="always"),
    "fine-tuned": lambda c: with_training(c, epochs=1, finetune_epochs=1, averaging="none"),
    "adam": lambda c: with_training(
        with_model(c, head=MixtureConfig(experts=2)),
        epochs=2,
        optimizer="adam",
        learning_rate=0.01,
        averaging="none",
    ),
}
"""Settings of two epochs that leave checkpoints with different things in them."""


def stopped_run(kind: str, folder: Path) -> tuple[Path, Path]:
    """A run that was stopped in its second epoch, and the file with its settings; the corpus is beside them."""
    config, steps = KINDS[kind](tiny_config(tiny_corpus(folder / "corpus", lines=20))), 0

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
