"""The models, heads and kinds of prediction that the contract tests run over.

A registered core joins by itself; further variants, heads and predictions by a line.
"""

from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import Any

import foreign
import torch
from torch import Tensor

from backstory.config import (
    AuxiliarySoftmaxConfig,
    DNCConfig,
    DualConfig,
    EmbeddingConfig,
    ExternalMemoryConfig,
    GateConfig,
    LSTMConfig,
    MDMConfig,
    MixtureConfig,
    ModelConfig,
    MogrifierConfig,
    NoBufferConfig,
    NoDualConfig,
    NTMConfig,
    SoftmaxConfig,
    SpanBufferConfig,
    TransformerConfig,
    TrellisConfig,
)
from backstory.models import (
    Activations,
    ComposedModel,
    Interpolation,
    LanguageModel,
    MixtureOfSoftmaxes,
    Prediction,
    Softmax,
    Tempered,
    build_model,
)
from backstory.models.cores import CORES
from backstory.models.heads import Head, MixtureHead, SoftmaxHead
from backstory.models.prediction import Pointer

TYPES = 17
MIXTURE = MixtureConfig(experts=3, latent_dropout=0.2)


DUAL = DualConfig(input_dropout=0.2, output_dropout=0.2)


def lstm(
    head: SoftmaxConfig | MixtureConfig | None = None, dual: DualConfig | None = None, **core: Any
) -> ComposedModel:
    """A small AWD-LSTM with every dropout on."""
    settings: dict[str, Any] = {
        "layers": 2,
        "hidden": 8,
        "input_dropout": 0.2,
        "layer_dropout": 0.2,
        "output_dropout": 0.2,
    }
    config = LSTMConfig(**settings | {"weight_drop": 0.3} | core)
    return composed(config, head, dual)


def composed(
    core: LSTMConfig | MogrifierConfig | TransformerConfig | TrellisConfig,
    head: SoftmaxConfig | MixtureConfig | None = None,
    dual: DualConfig | None = None,
    buffer: SpanBufferConfig | AuxiliarySoftmaxConfig | None = None,
) -> ComposedModel:
    """A model of these parts, with a small embedding."""
    parts = EmbeddingConfig(6, 0.1), core, head or SoftmaxConfig(), buffer or NoBufferConfig()
    config = ModelConfig(*parts, dual=dual or NoDualConfig())
    return build_model(config, TYPES)


def mogrifier(
    head: SoftmaxConfig | MixtureConfig | None = None, dual: DualConfig | None = None, **core: Any
) -> ComposedModel:
    """A small Mogrifier with every dropout on."""
    dropouts = dict.fromkeys(
        ("input_dropout", "state_dropout", "round_dropout", "layer_dropout", "output_dropout"), 0.2
    )
    settings: dict[str, Any] = {"layers": 2, "hidden": 8, "rank": 3}
    return composed(MogrifierConfig(**settings | dropouts | core), head, dual)


def transformer(
    head: SoftmaxConfig | MixtureConfig | None = None,
    dual: DualConfig | None = None,
    buffer: SpanBufferConfig | None = None,
    **core: Any,
) -> ComposedModel:
    """A small Transformer with every dropout on; its window is shorter than the texts that tests read."""
    dropouts = dict.fromkeys(("input_dropout", "attention_dropout", "layer_dropout", "output_dropout"), 0.2)
    settings: dict[str, Any] = {"layers": 3, "heads": 2, "hidden": 8, "window": 5}
    return composed(TransformerConfig(**settings | dropouts | core), head, dual, buffer)


def trellis(
    head: SoftmaxConfig | MixtureConfig | None = None,
    dual: DualConfig | None = None,
    buffer: SpanBufferConfig | None = None,
    **core: Any,
) -> ComposedModel:
    """A small trellis network with every dropout on; its levels see as far back as the texts that tests read."""
    dropouts = dict.fromkeys(("input_dropout", "layer_dropout", "output_dropout", "weight_drop"), 0.2)
    return composed(TrellisConfig(**{"levels": 12, "hidden": 8} | dropouts | core), head, dual, buffer)


def buffered(
    head: SoftmaxConfig | MixtureConfig | None = None, dual: DualConfig | None = None, **settings: Any
) -> ComposedModel:
    """A small LSTM with a span buffer, by default of three spans of two words."""
    defaults: dict[str, Any] = {"size": 6, "span": 2, "dropout": 0.2, "gate": GateConfig(training_temperature=5.0)}
    core = LSTMConfig(layers=2, hidden=8, input_dropout=0.2, layer_dropout=0.2, output_dropout=0.2, weight_drop=0.3)
    return composed(core, head, dual, SpanBufferConfig(**defaults | settings))


def auxiliary_softmax() -> ComposedModel:
    """A small LSTM with an auxiliary softmax."""
    return composed(LSTMConfig(layers=1, hidden=8), buffer=AuxiliarySoftmaxConfig(dropout=0.2))


def remembering(
    kind: type[ExternalMemoryConfig], head: SoftmaxConfig | MixtureConfig | None = None, **given: Any
) -> ComposedModel:
    """A small controller with an external memory and every dropout on."""
    settings: dict[str, Any] = {"layers": (8, 5), "slots": 7, "width": 4, "heads": 2}
    dropouts = dict.fromkeys(("input_dropout", "layer_dropout", "output_dropout"), 0.2)
    return composed(kind(**settings | dropouts | given), head)


UNTIED = SoftmaxConfig(tied=False)


MODELS: dict[str, Callable[[], LanguageModel]] = {
    "lstm": lstm,
    "lstm, mixture": lambda: lstm(MIXTURE),
    "lstm, untied": lambda: lstm(SoftmaxConfig(tied=False)),
    "lstm, mixture untied": lambda: lstm(MixtureConfig(experts=2, latent_dropout=0.2, tied=False), output=5),
    "lstm, untied and wider than the embedding": lambda: lstm(SoftmaxConfig(tied=False), output=7),
    "lstm, no bias": lambda: lstm(SoftmaxConfig(bias=False)),
    "lstm, one layer": lambda: lstm(layers=1),
    "lstm, masks of tokens": lambda: lstm(SoftmaxConfig(tied=False), masks="token"),
    "lstm, state dropout, one bias": lambda: lstm(state_dropout=0.2, biases=1),
    "mogrifier": mogrifier,
    "mogrifier, mixture": lambda: mogrifier(MIXTURE),
    "mogrifier, full matrices, three rounds": lambda: mogrifier(rank=None, rounds=3),
    "mogrifier, one round, one layer": lambda: mogrifier(rounds=1, layers=1),
    "mogrifier, no rounds": lambda: mogrifier(rounds=0),
    "dual": lambda: lstm(dual=DUAL),
    "dual, no direct connection": lambda: lstm(dual=replace(DUAL, direct=False)),
    "dual, mixture, of another size": lambda: lstm(MIXTURE, replace(DUAL, size=5)),
    "dual, untied, wider core": lambda: lstm(SoftmaxConfig(tied=False, bias=False), replace(DUAL, size=9), output=7),
    "dual mogrifier": lambda: mogrifier(dual=DUAL, output=9),
    "dual, span buffer": lambda: buffered(dual=DUAL),
    "dual, span buffer, mixture of another size": lambda: buffered(MIXTURE, replace(DUAL, size=5), values="following"),
    "transformer": transformer,
    "transformer, sinusoidal, after, mixture": lambda: transformer(
        MIXTURE, positions="sinusoidal", norm="post", activation="relu", heads=4
    ),
    "transformer, begins anew": lambda: transformer(window=16, chunked=True, positions="sinusoidal"),
    "transformer, of the embedding's size": lambda: transformer(
        hidden=6, heads=3, feed_forward=5, attention_dropout=0.0
    ),
    "transformer, dual": lambda: transformer(dual=DUAL, output=9),
    "transformer, span buffer": lambda: transformer(buffer=SpanBufferConfig(size=6, span=2)),
    "trellis": trellis,
    "trellis, plain weights, all units": lambda: trellis(SoftmaxConfig(tied=False), weight_norm=False),
    "trellis, auxiliary, mixture": lambda: trellis(MIXTURE, auxiliary=4, output=5),
    "trellis, dual, span buffer": lambda: trellis(dual=DUAL, buffer=SpanBufferConfig(size=6, span=2), output=7),
    "auxiliary softmax": auxiliary_softmax,
    "span buffer": buffered,
    "span buffer, mixture": lambda: buffered(MIXTURE),
    "span buffer, present": lambda: buffered(ends="present", vectors="minus-before", attention="bilinear"),
    "span buffer, words": lambda: buffered(vectors="words", attention="linear"),
    "span buffer, longer than its segments": lambda: buffered(size=20, span=4, vectors="end", residual=True),
    "span buffer, what followed": lambda: buffered(values="following", attention="bilinear"),
    "span buffer, pointer": lambda: buffered(
        vectors="words", values="following", attention="bilinear", prediction="pointer", sentinel=True, dropout=0.0
    ),
    "span buffer, last words": lambda: buffered(values="last-words", vectors="words", ends="present"),
    "span buffer, grid": lambda: buffered(alignment="fixed", span=3),
    "span buffer, grid, bilinear": lambda: buffered(alignment="fixed", attention="bilinear", vectors="minus-before"),
    "span buffer, grid, present": lambda: buffered(alignment="fixed", size=20, span=4, ends="present"),
    "ntm": lambda: remembering(NTMConfig),
    "ntm, untied": lambda: remembering(NTMConfig, UNTIED),
    "ntm, localized": lambda: remembering(NTMConfig, UNTIED, addressing="localized:3"),
    "ntm, two windows": lambda: remembering(NTMConfig, addressing="localized:3x2", layers=(8,)),
    "ntm, window": lambda: remembering(NTMConfig, UNTIED, addressing="window:3", slots=9),
    "dnc": lambda: remembering(DNCConfig, UNTIED),
    "dnc, mixture": lambda: remembering(DNCConfig, MIXTURE),
    "dnc, window": lambda: remembering(DNCConfig, addressing="window:3", link=False, allocation=False),
    "mdm": lambda: remembering(MDMConfig),
    "mdm, localized": lambda: remembering(MDMConfig, UNTIED, addressing="localized:3", heads=1),
    "Hugging Face, positions": lambda: foreign.wrapped("GPT2", TYPES),
    "Hugging Face, rotary": lambda: foreign.wrapped("Llama", TYPES),
}

SIZES = {"layers": 2, "hidden": 8}


def small(kind: Any) -> ComposedModel:
    """A model with a core of this kind, of few units."""
    return composed(kind(**{name: size for name, size in SIZES.items() if name in vars(kind)}))


MODELS |= {name: partial(small, kind) for kind in CORES if (name := vars(kind)["kind"]) not in MODELS}

VARIANTS = {
    "lstm, mixture untied", "lstm, untied and wider than the embedding", "lstm, no bias", "lstm, one layer",
    "mogrifier, mixture", "mogrifier, full matrices, three rounds", "mogrifier, one round, one layer",
    "dual, no direct connection", "dual, untied, wider core", "dual mogrifier", "dual, span buffer, mixture of another size",
    "transformer, of the embedding's size", "transformer, dual", "trellis, plain weights, all units",
    "trellis, dual, span buffer", "span buffer, mixture", "span buffer, words", "span buffer, what followed",
    "span buffer, last words", "span buffer, grid, bilinear", "span buffer, grid, present", "ntm, untied", "ntm, localized",
    "ntm, window", "dnc, mixture", "mdm, localized",
}  # fmt: skip
"""Models of a kind that others of the fast tier have; with `--full` they are tested as these are."""

HEADS: dict[str, Callable[[torch.nn.Parameter], Head]] = {
    "softmax": lambda embedding: SoftmaxHead(SoftmaxConfig(), embedding, embedding.shape[1]),
    "softmax, untied": lambda embedding: SoftmaxHead(
        SoftmaxConfig(tied=False, bias=False), embedding, embedding.shape[1]
    ),
    "mixture": lambda embedding: MixtureHead(MIXTURE, embedding, embedding.shape[1]),
    "mixture, untied": lambda embedding: MixtureHead(
        MixtureConfig(experts=2, tied=False), embedding, embedding.shape[1]
    ),
}


def activations(batch: int, time: int, size: int = 6) -> Activations:
    a, b, c, d = (torch.randn(batch, time, size) for _ in range(4))
    return Activations(a, (b, c), d, d, c)


def leaf(*shape: int) -> Tensor:
    """Random numbers that take a gradient."""
    return torch.randn(*shape, dtype=torch.float64).requires_grad_()


def softmax(batch: int, time: int) -> Softmax:
    return Softmax(activations(batch, time), leaf(batch, time, 6), leaf(TYPES, 6), leaf(TYPES))


def mixture(batch: int, time: int) -> MixtureOfSoftmaxes:
    prior = torch.log_softmax(leaf(batch, time, 3), 2)
    return MixtureOfSoftmaxes(activations(batch, time), leaf(batch, time, 3, 6), prior, leaf(TYPES, 6), leaf(TYPES))


def interpolation(p: Prediction, q: Prediction, batch: int, time: int, temperature: float = 1.0) -> Interpolation:
    return Interpolation(p.activations, p, q, leaf(batch, time, 2), temperature)


def pointer(batch: int, time: int) -> Pointer:
    """Two places for every word."""
    order = torch.stack([torch.randperm(2 * TYPES) for _ in range(batch * time)]) % TYPES
    weights = torch.softmax(leaf(batch, time, 2 * TYPES), 2)
    return Pointer(activations(batch, time), weights, order.view(batch, time, -1), TYPES)


PREDICTIONS: dict[str, Callable[[int, int], Prediction]] = {
    "softmax": softmax,
    "softmax, no bias": lambda b, t: Softmax(activations(b, t), leaf(b, t, 6), leaf(TYPES, 6), None),
    "softmax, no activations": lambda b, t: Softmax(None, leaf(b, t, 6), leaf(TYPES, 6), leaf(TYPES)),
    "mixture": mixture,
    "pointer": pointer,
    "interpolation": lambda b, t: interpolation(softmax(b, t), mixture(b, t), b, t, temperature=0.7),
    "interpolation in an interpolation": lambda b, t: interpolation(
        interpolation(softmax(b, t), mixture(b, t), b, t), softmax(b, t), b, t
    ),
    "tempered mixture": lambda b, t: mixture(b, t).tempered(1.5),
    "tempered interpolation": lambda b, t: interpolation(softmax(b, t), mixture(b, t), b, t).tempered(0.8),
    "softmax, tempered outside": lambda b, t: Tempered(None, softmax(b, t), 1.2),
    "tempered softmax": lambda b, t: softmax(b, t).tempered(0.5),
    "interpolation of tempered": lambda b, t: interpolation(Tempered(None, mixture(b, t), 2.0), softmax(b, t), b, t),
}
