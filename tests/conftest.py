"""What all tests share: one thread, a cache of their own, `--full`, and a tiny corpus with a model trained on it."""

import io
import os
from collections.abc import Iterator
from pathlib import Path

import hypothesis
import pytest
import torch
from rich.console import Console
from runs import sentences

from backstory.config import EmbeddingConfig, LSTMConfig, ModelConfig, RunConfig, TextConfig, TrainingConfig
from backstory.text import Dataset, prepare
from backstory.training import train

# Results are compared bit for bit, and small products are faster so.
torch.set_num_threads(1)
os.environ["OMP_NUM_THREADS"] = "1"  # for the processes that tests start

hypothesis.settings.register_profile("backstory", deadline=None, derandomize=True, max_examples=30)
hypothesis.settings.load_profile("backstory")


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--full", action="store_true", help="also run the long tests, marked full")


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    if not config.getoption("--full"):
        for item in items:
            if item.get_closest_marker("full"):
                item.add_marker(pytest.mark.skip(reason="a long test; --full runs it"))


@pytest.fixture(scope="session", autouse=True)
def isolated_cache(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """Nothing is read from or left in the user's cache."""
    with pytest.MonkeyPatch.context() as patch:
        folder = tmp_path_factory.mktemp("cache")
        patch.setenv("BACKSTORY_CACHE", str(folder))
        yield folder


@pytest.fixture(scope="session")
def data_dir() -> Path:
    """The folder with the real corpora, or the test is skipped."""
    named = os.environ.get("BACKSTORY_DATA")
    if not named or not Path(named).is_dir():
        pytest.skip("needs the real corpora: set BACKSTORY_DATA to the folder that holds them")
    return Path(named)


@pytest.fixture(scope="session")
def tiny_corpus(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with about 600 words to train on and 150 in each other split."""
    folder = tmp_path_factory.mktemp("corpus")
    for seed, (split, count) in enumerate({"train": 60, "valid": 15, "test": 15}.items()):
        (folder / f"{split}.txt").write_text(sentences(count, seed))
    return folder


@pytest.fixture(scope="session")
def tiny_config(tiny_corpus: Path) -> RunConfig:
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
    return RunConfig(text=TextConfig(corpus=str(tiny_corpus)), model=model, training=training)


@pytest.fixture(scope="session")
def tiny_dataset(tiny_config: RunConfig) -> Dataset:
    return prepare(tiny_config.text)


@pytest.fixture(scope="session")
def tiny_run(tiny_config: RunConfig, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of a finished run of `tiny_config`."""
    folder = tmp_path_factory.mktemp("run") / "tiny"
    train(tiny_config, folder, console=Console(file=io.StringIO()))
    return folder
