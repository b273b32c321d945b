"""Small models to read with, a stream to read, and runs of every tokenizer."""

import dataclasses
import io
from collections.abc import Callable
from functools import cache
from pathlib import Path

import adaptive
import numpy as np
import pytest
from rich.console import Console
from small_models import TYPES, lstm, mixture
from subwords import byte_level

from backstory.config import MixtureConfig, RunConfig
from backstory.models import ComposedModel
from backstory.readers import READERS
from backstory.training import train


@pytest.fixture(params=[lstm, mixture])
def model(request: pytest.FixtureRequest) -> ComposedModel:
    return request.param()


@pytest.fixture
def small_lstm() -> ComposedModel:
    return lstm()


@pytest.fixture
def stream() -> Callable[[int], np.ndarray]:
    """A stream of this many random ids."""
    return lambda count: np.random.default_rng(0).integers(0, TYPES, count).astype(np.uint16)


@pytest.fixture(scope="session")
def tokenized_run(tiny_config: RunConfig, tmp_path_factory: pytest.TempPathFactory) -> Callable[..., Path]:
    """The folder of a finished run with a tokenizer by its name, `pieces` for those of a tokenizer.json."""

    @cache
    def made(name: str, head: MixtureConfig | None = None) -> Path:
        folder = tmp_path_factory.mktemp(name)
        named = str(pieces(folder / "tokenizer.json", Path(tiny_config.text.corpus))) if name == "pieces" else name
        text = dataclasses.replace(tiny_config.text, tokenizer=named)
        model = tiny_config.model if head is None else dataclasses.replace(tiny_config.model, head=head)
        config = dataclasses.replace(tiny_config, text=text, model=model)
        train(config, folder / "run", console=Console(file=io.StringIO()))
        return folder / "run"

    return made


def pieces(path: Path, corpus: Path) -> Path:
    """A small byte-level tokenizer.json, as GPT-2's is."""
    byte_level((corpus / "train.txt").read_text(), 280).save(str(path))
    return path


@pytest.fixture
def adaptive_readers(monkeypatch: pytest.MonkeyPatch) -> None:
    """The small readers of `adaptive`, by name."""
    for name, kind in adaptive.KINDS.items():
        monkeypatch.setitem(READERS, name, kind)
