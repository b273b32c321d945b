"""A tiny corpus and model to train, changes of its settings, and the contents of a run's folder."""

import dataclasses
import hashlib
import io
import json
import random
import warnings
from contextlib import redirect_stderr, redirect_stdout
from pathlib import Path
from typing import Any

import torch

from backstory.cli.main import main
from backstory.config import EmbeddingConfig, LSTMConfig, ModelConfig, RunConfig, TextConfig, TrainingConfig
from backstory.storage.checkpoint import read_checkpoint

TIMINGS = ("seconds", "tokens_per_second")
ADVERSARIAL = {
    "model.head.adversarial": 0.005,
    "model.head.finetune_adversarial": 0.028,
    "model.embedding.noise": 0.15,
    "model.embedding.finetune_noise": 0.0,
}
"""Settings of adversarial training that differ while fine-tuning."""


def sentences(count: int, seed: int) -> str:
    """Lines of a small grammar, so that there is something to learn."""
    chosen = random.Random(seed)
    people, things = ("ann", "bob", "carl", "dora"), ("tea", "jam", "oil", "ink")
    verbs = ("saw", "took", "found", "sold")
    lines = []
    for _ in range(count):
        who, what = chosen.choice(people), chosen.choice(things)
        lines.append(f"{who} {chosen.choice(verbs)} the {what} and {who} {chosen.choice(verbs)} more {what}\n")
    return "".join(lines)


def tiny_corpus(folder: Path, lines: int = 60) -> Path:
    """A folder, made if need be, with about 10 words to train on for each line, and a quarter in each other split."""
    folder.mkdir(parents=True, exist_ok=True)
    for seed, (split, count) in enumerate({"train": lines, "valid": lines // 4, "test": lines // 4}.items()):
        (folder / f"{split}.txt").write_text(sentences(count, seed), encoding="utf-8")
    return folder


def tiny_config(corpus: Path) -> RunConfig:
    """Settings of a run that takes half a second; sizes are odd on purpose, as no kernel likes them."""
    core = LSTMConfig(layers=2, hidden=9, input_dropout=0.1, layer_dropout=0.1, output_dropout=0.1, weight_drop=0.2)
    training = TrainingConfig(
        epochs=1,
        batch_size=3,
        segment=10,
        segment_deviation=2.0,
        learning_rate=2.0,
        clip=1.0,
        precision="float32",
        device="cpu",
    )
    model = ModelConfig(embedding=EmbeddingConfig(size=7, dropout=0.1), core=core)
    return RunConfig(text=TextConfig(corpus=str(corpus)), model=model, training=training)


def with_training(config: RunConfig, **changes: Any) -> RunConfig:
    return dataclasses.replace(config, training=dataclasses.replace(config.training, **changes))


def with_settings(config: Any, settings: dict[str, Any]) -> Any:
    """Return settings with replacements by dotted name."""
    for name, value in settings.items():
        first, _, rest = name.partition(".")
        inner = with_settings(getattr(config, first), {rest: value}) if rest else value
        config = dataclasses.replace(config, **{first: inner})
    return config


def with_model(config: RunConfig, **changes: Any) -> RunConfig:
    model: ModelConfig = dataclasses.replace(config.model, **changes)
    return dataclasses.replace(config, model=model)


def events(folder: Path, event: str | None = None) -> list[dict[str, Any]]:
    """The lines of metrics.jsonl without their timings."""
    lines = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
    chosen = [line for line in lines if event is None or line["event"] == event]
    return [{k: v for k, v in line.items() if k not in TIMINGS} for line in chosen]


def checkpoints(folder: Path, prefix: str) -> list[Path]:
    """A run's checkpoints, newest first."""
    return sorted((folder / "checkpoints").glob(f"{prefix}-*"), key=lambda p: -int(p.name.split("-")[1]))


def outcome(folder: Path) -> dict[str, Any]:
    """Return everything that equal runs must share, with tensors as bytes."""
    found: dict[str, Any] = {"events": events(folder)}
    for prefix in ("last", "best"):
        path = checkpoints(folder, prefix)[0]
        saved = read_checkpoint(path)
        found[prefix] = path.name
        for file, group in saved.tensors.items():
            for name, tensor in group.items():
                # Viewed as bytes, as NaNs are to be equal and 0 is not -0.
                raw = tensor.contiguous().flatten().view(torch.uint8)
                found[f"{prefix}/{file}/{name}"] = (str(tensor.dtype), tuple(tensor.shape), bytes(raw.tolist()))
    progress = saved_progress(folder)
    found["progress"] = {k: v for k, v in progress.items() if "seconds" not in k and k != "log_bytes"}
    figures = json.loads((folder / "result.json").read_text())["figures"]
    figures["curve"] = [{k: v for k, v in epoch.items() if k not in TIMINGS} for epoch in figures["curve"]]
    found["figures"] = {k: v for k, v in figures.items() if k not in TIMINGS}
    return found


def saved_progress(folder: Path) -> dict[str, Any]:
    """The plain numbers of a run's newest checkpoint."""
    return json.loads((checkpoints(folder, "last")[0] / "progress.json").read_text())["progress"]


def contents(folder: Path) -> dict[str, str]:
    """The SHA-256 of every file below a folder."""
    files = sorted(p for p in folder.rglob("*") if p.is_file())
    return {str(p.relative_to(folder)): hashlib.sha256(p.read_bytes()).hexdigest() for p in files}


def command(*arguments: str) -> tuple[int, str, str]:
    """Exit code, standard output and standard error of `backstory ARGUMENTS`, in this process, which has loaded torch."""
    out, err = io.StringIO(), io.StringIO()
    with warnings.catch_warnings(), redirect_stdout(out), redirect_stderr(err):
        warnings.simplefilter("default")
        code = main(arguments)
    return code, out.getvalue(), err.getvalue()
