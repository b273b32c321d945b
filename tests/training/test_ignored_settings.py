"""Settings that have no effect are exactly those that `ignored_settings` names: every setting of a run is varied and trained.

A rehearsal is a real training with a clock of its own, and with validation scores that get worse from epoch to epoch, so that
schedules, triggers and fine-tuning are reached in a few steps. It is recorded bit for bit.
"""

import itertools
import typing
import warnings
from collections.abc import Iterator
from contextlib import nullcontext
from dataclasses import replace
from functools import cache, reduce
from pathlib import Path
from types import SimpleNamespace
from typing import Any, Literal
from unittest.mock import MagicMock

import pytest
import torch
from runs import with_settings

import backstory as bs
from backstory.cli.main import main
from backstory.config import (
    AlgorithmConfig,
    AuxiliarySoftmaxConfig,
    DNCConfig,
    DualConfig,
    EmbeddingConfig,
    GateConfig,
    LSTMConfig,
    MDMConfig,
    MixtureConfig,
    ModelConfig,
    MogrifierConfig,
    NTMConfig,
    RecallConfig,
    RewardConfig,
    RunConfig,
    SoftmaxConfig,
    SpanBufferConfig,
    TextConfig,
    TrainingConfig,
    TransformerConfig,
    TrellisConfig,
    recipes,
    to_dict,
)
from backstory.config.ignored_settings import dotted_names, ignored_settings
from backstory.config.strict import conforming
from backstory.data import Dataset, check_synthetic, prepare
from backstory.models import build_model, choose_precision
from backstory.runs.run import weights
from backstory.runs.run_folder import RunFolder
from backstory.training import checkpointing, loop
from backstory.training.loop import Trainer
from backstory.training.word_vectors import initialise_from_counts
from backstory.utils import clock as clock_module
from backstory.utils.errors import UserError
from backstory.utils.process import StopRequest

CPU = torch.device("cpu")
TEXT = "Ann saw the tea and Bob sold the jam\nann took more ink\nThe jam saw Bob and the tea\n"

WORDS = TextConfig(corpus="words")
EMBEDDING = EmbeddingConfig(size=6, dropout=0.1, noise=0.1)
FEW: dict[str, Any] = {"frequent": 2}
"""So few words take part in every step of a sampled softmax that others are left to draw."""
UNTIED = SoftmaxConfig(tied=False, adversarial=0.01, **FEW)
MIXTURE = MixtureConfig(experts=2, adversarial=0.01, **FEW)
TRAINING = TrainingConfig(
    epochs=4,
    batch_size=2,
    segment=5,
    segment_deviation=1.0,
    short_probability=0.4,
    minimum_segment=2,
    learning_rate=0.5,
    clip=0.5,
    trigger=1,
    precision="float32",
)
ADAM: dict[str, Any] = {"optimizer": "adam", "learning_rate": 0.01}
SPANS = SpanBufferConfig(size=6, span=2, dropout=0.2, gate=GateConfig(training_temperature=5.0))
POINTER: dict[str, Any] = {
    "vectors": "words", "values": "following", "attention": "bilinear", "prediction": "pointer", "dropout": None
}  # fmt: skip
REWARD = GateConfig(training_temperature=2.0, reward=RewardConfig(weight=0.5, power=1.0, baseline=1.5))
MEMORY: dict[str, Any] = {"slots": 5, "width": 3, "output_dropout": 0.1}
LSTM = LSTMConfig(layers=1, hidden=9)


def case(
    core: Any,
    head: Any = UNTIED,
    text: TextConfig = WORDS,
    dual: DualConfig | None = None,
    buffer: Any = None,
    **training: Any,
) -> RunConfig:
    parts: dict[str, Any] = {"dual": dual, "buffer": buffer}
    model = ModelConfig(EMBEDDING, core, head=head, **{name: part for name, part in parts.items() if part is not None})
    return RunConfig(text, model, replace(TRAINING, **training))


def undropped(core: Any) -> RunConfig:
    """Return a case in which nothing is random."""
    dropouts = ("input_dropout", "layer_dropout", "output_dropout", "weight_drop")
    config = case(replace(core, **dict.fromkeys(dropouts, 0.0)))
    return replace(config, model=replace(config.model, embedding=EmbeddingConfig(size=6, dropout=0.0)))


CASES = {
    "one layer": case(LSTM, SoftmaxConfig(**FEW)),
    "two layers, fine-tuned, plateau": case(LSTMConfig(layers=2, hidden=9), finetune_epochs=2, schedule="plateau"),
    "one layer of its own size, step": case(LSTM, MIXTURE, schedule="step", decay_epochs=(1,), averaging="none"),
    "one layer of a given size, step without epochs": case(
        replace(LSTM, output=7), MIXTURE, schedule="step", averaging="always"
    ),
    "sampled softmax": case(LSTM, replace(UNTIED, sampled=2)),
    "linear": case(LSTM, schedule="linear", decay_start=0.5),
    "cosine, Adam": case(LSTM, schedule="cosine", **ADAM),
    "steps": case(LSTM, steps=12, averaging="none"),
    "steps, fine-tuned": case(LSTM, steps=12, finetune_epochs=2, averaging="none"),
    "steps, step": case(LSTM, steps=12, schedule="step", decay_epochs=(2,)),
    "minutes, cosine": case(LSTM, minutes=0.5, schedule="cosine", warmup_steps=2),
    "early stopping, fine-tuned, without averaging": case(
        LSTM, averaging="none", early_stopping=1, finetune_epochs=4, finetune_learning_rate=0.2
    ),
    "mogrifier without rounds": case(MogrifierConfig(layers=1, hidden=9, rounds=0), SoftmaxConfig(**FEW), **ADAM),
    "mogrifier": case(MogrifierConfig(layers=2, hidden=9, rank=3)),
    "dual": case(LSTM, SoftmaxConfig(**FEW), dual=DualConfig(), optimizer="nadam", learning_rate=0.01),
    "one row, fixed segments": case(
        LSTM, batch_size=1, segment=4, minimum_segment=4, segment_deviation=0.0, partial_shuffle=True
    ),
    "span buffer": case(LSTM, buffer=SPANS),
    "span buffer, reward": case(LSTM, MIXTURE, buffer=replace(SPANS, gate=REWARD, attention="bilinear")),
    "pointer, gate that does not learn": case(
        LSTM, buffer=replace(SPANS, **POINTER, gate=GateConfig(rate=0.0, training_temperature=2.0))
    ),
    "words of a buffer": case(LSTM, buffer=replace(SPANS, vectors="words")),
    "auxiliary softmax": case(LSTM, buffer=AuxiliarySoftmaxConfig(gate=GateConfig(training_temperature=2.0))),
    "ntm": case(NTMConfig(layers=(5,), **MEMORY), **ADAM),
    "ntm, two layers": case(NTMConfig(layers=(5, 4), **MEMORY), SoftmaxConfig(**FEW)),
    "dnc": case(DNCConfig(layers=(5,), **MEMORY), **ADAM),
    "dnc, no link": case(DNCConfig(layers=(5,), link=False, **MEMORY), **ADAM),
    "mdm": case(MDMConfig(layers=(5, 4), **MEMORY), **ADAM),
    "transformer": case(
        TransformerConfig(layers=1, heads=2, hidden=8, window=4), optimizer="adamw", learning_rate=0.01, averaging="none"
    ),
    "trellis": case(TrellisConfig(levels=3, hidden=8, auxiliary=1, auxiliary_weight=0.3), **ADAM),
    # Dropout draws from the same numbers for levels that are not trained to predict.
    "trellis, no auxiliary weight": case(TrellisConfig(levels=3, hidden=8, auxiliary=2, output_dropout=0.0)),
    "trellis, one level": undropped(TrellisConfig(levels=1, hidden=8)),
    "recall": case(
        LSTM, text=TextConfig(corpus="recall", recall=RecallConfig(4, 2, 0.3, 0.2, 2, 2, 3, 20, 2, 1)), segment=10
    ),
    "copy": case(
        LSTM,
        text=TextConfig(corpus="copy", algorithm=AlgorithmConfig(2, 2, 3, documents=8, held_out=2)),
        segment=10,
        answer_loss_only=True,
    ),
}  # fmt: skip

FAST = {
    "one layer",
    "steps, fine-tuned",
    "pointer, gate that does not learn",
    "trellis, no auxiliary weight",
}

VALUES: dict[str, tuple[Any, ...]] = {
    "text.tokenizer": ("characters", "bytes"),
    "model.core.addressing": ("literal", "localized:3"),
    "model.core.layers": (4, 2, 1, (6, 4), (3,)),
    "training.decay_epochs": ((1,), (1, 2)),
    "training.precision": ("bfloat16",),
    "training.minimum_segment": (20, 1),
}
WHOLE, REAL = (2, 1, 3), (0.5, 0.01, -0.01)
BY_NATURE = ("kind", "corpus", "device")
"""Last names of settings that choose other settings, or the machine."""


class Differs(Exception):
    """A rehearsal is not that of a record."""


class Rehearsal(Trainer):
    """A training that writes nothing, with a worse validation after every epoch; it ends where another's record differs."""

    other: list[Any] | None = None

    def __post_init__(self) -> None:
        self.record: list[Any] = []
        super().__post_init__()

    def note(self, *entries: Any) -> None:
        """Record the weights, and other things. Raises Differs."""
        weights = [p.detach().numpy().tobytes() for p in self.parameters]
        self.record += [self.progress.step, *weights, *entries]
        if self.other is not None and self.record != self.other[: len(self.record)]:
            raise Differs

    def _step(self, text: torch.Tensor, answer_mask: torch.Tensor | None, rate: float) -> dict[str, float]:
        figures = super()._step(text, answer_mask, rate)
        self.note(rate)
        return figures

    def _validate(self) -> tuple[float, dict[str, Any], bool]:
        progress = self.progress
        with nullcontext() if self.average is None else self.average.applied():
            self.note(self.read_validation()[0])
        best = progress.best_nats is None
        if best or self.config.training.keep == "last":
            progress.best_nats, progress.best_epoch = 1.0, progress.epoch
            self.best = {name: tensor.clone() for name, tensor in weights(self.model).items()}
        return 1.0 + progress.epoch / 100, {}, best

    def save(self, log: Any) -> None:
        self.note("saved")
        self.saved_at = loop.time.monotonic()


@cache
def dataset(text: TextConfig) -> Dataset:
    return prepare(text)


def rehearse(config: RunConfig, corpus: Path, other: list[Any] | None = None) -> list[Any]:
    """Return the record of a training. Raises UserError for settings that cannot be trained, Differs from the other record."""
    config = conforming(config, "settings")
    config.training.check()
    check_synthetic(config.text)
    text = replace(config.text, corpus=str(corpus)) if config.text.corpus == WORDS.corpus else config.text
    data, ticks = dataset(text), itertools.count()
    torch.manual_seed(config.seed)
    model = build_model(config.model, len(data.vocabulary))
    if config.model.embedding.initialisation == "ppmi":
        initialise_from_counts(model.embedding, data.splits["train"].ids, config.seed)
    with pytest.MonkeyPatch.context() as patched:
        clock = SimpleNamespace(perf_counter=lambda: next(ticks), monotonic=lambda: next(ticks))
        for module in (loop, clock_module):
            patched.setattr(module, "time", clock)
        precision = choose_precision(config.training.precision, CPU)
        trainer = Rehearsal(config, data, RunFolder(corpus), model, CPU, precision)
        best = lambda *_: SimpleNamespace(tensors={"weights": trainer.best})  # noqa: E731
        patched.setattr(checkpointing, "read_best", best)
        trainer.other = other
        trainer.note(data.splits["train"].ids.tobytes())
        trainer.train(MagicMock(), MagicMock(), StopRequest(lambda: None))
        trainer.note("finished", *(tensor.numpy().tobytes() for tensor in trainer.best.values()))
    return trainer.record


def settings(config: RunConfig) -> Iterator[str]:
    """Yield the dotted names of the settings that can be varied."""
    for name in dotted_names(to_dict(config)):
        if name.rpartition(".")[2] not in BY_NATURE:
            yield name


def alternatives(config: RunConfig, name: str) -> Iterator[Any]:
    """Yield other values of a setting, some of which it may not have."""
    *path, last = name.split(".")
    part = reduce(getattr, path, config)
    value, hint = getattr(part, last), typing.get_type_hints(type(part))[last]
    kinds = typing.get_args(hint) if typing.get_origin(hint) is not Literal else (hint,)
    for kind in kinds or (hint,):
        literal = typing.get_args(kind) if typing.get_origin(kind) is Literal else ()
        values = {bool: (True, False), int: WHOLE, float: REAL, type(None): (None,)}.get(kind, literal)
        yield from (other for other in VALUES.get(name, values) if other != value)


def changes(config: RunConfig, name: str, before: list[Any], corpus: Path) -> bool | None:
    """Return whether any other value of a setting changes the training; None if it can have no other value."""
    valid = None
    for value in alternatives(config, name):
        try:
            rehearse(with_settings(config, {name: value}), corpus, before)
            valid = False
        except Differs:
            return True
        except UserError:
            continue
    return valid


@pytest.fixture(scope="module")
def corpus(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("words")
    for split in ("train", "valid", "test"):
        (folder / f"{split}.txt").write_text(TEXT)
    return folder


@pytest.mark.full
@pytest.mark.parametrize("name", CASES)
def test_the_settings_without_effect_are_those_that_are_declared(name: str, corpus: Path) -> None:
    config = CASES[name]
    before, declared = rehearse(config, corpus), ignored_settings(config)
    assert before == rehearse(config, corpus)
    changed = {setting: changes(config, setting, before, corpus) for setting in settings(config)}
    assert declared.keys() <= changed.keys()
    fixed = {setting for setting, change in changed.items() if change is None}
    assert {setting for setting, change in changed.items() if change is False} == declared.keys() - fixed


@pytest.mark.parametrize("name", CASES)
def test_a_core_names_settings_that_it_has(name: str) -> None:
    assert ignored_settings(CASES[name]).keys() <= set(settings(CASES[name]))


def test_recipes_do_not_warn_and_an_override_does() -> None:
    for name in recipes.names():
        bs.recipe(name)  # a warning is an error here
    with pytest.warns(UserWarning) as caught:
        config = bs.recipe("demo", {"training": {"trigger": 3, "short_probability": 0.1}, "model.core.layers": 1})
    assert [str(warning.message) for warning in caught] == [
        "training.trigger has no effect without training.averaging triggered (of sgd) or a fine-tuning of epochs; set one"
    ]
    assert "model.core.hidden" in ignored_settings(config)


def test_rare_words_are_cut_from_no_vocabulary_that_is_fixed() -> None:
    pieces = bs.recipe("demo", {"text.tokenizer": "bpe:300"})  # no warning: the recipe says so, and not the user
    assert pieces.text.minimum_count == 2
    with pytest.warns(
        UserWarning, match=r"^text\.minimum_count has no effect with text\.tokenizer bytes, which has a vo"
    ):
        bs.recipe("demo", {"text.tokenizer": "bytes", "text.minimum_count": 3})
    bs.recipe("demo", {"text.tokenizer": "unigram:300", "text.minimum_count": 1})


def test_what_is_off_is_as_requested() -> None:
    bs.recipe(
        "demo", {"training.optimizer": "adam", "training.averaging": "none", "training.finetune_learning_rate": None}
    )


def test_a_flag_that_has_no_effect_is_named_as_typed(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    flags = ["--layers", "1", "--hidden=30", "--training.decay_patience", "2"]
    places = ["--corpus", str(tmp_path / "nowhere"), "--out", str(tmp_path / "run")]
    with warnings.catch_warnings():
        warnings.simplefilter("always")
        assert main(["train", "ptb-small", *places, *flags]) == 2  # after the warnings: there is no such corpus
    first, second, error = capsys.readouterr().err.splitlines()
    assert first.startswith("backstory: warning: --hidden has no effect with one layer: the last has ")
    assert second.startswith("backstory: warning: --training.decay_patience has no effect with training.schedule ")
    assert "nowhere" in error
