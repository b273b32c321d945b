"""Models from settings: parts that do not fit are told, and the same seed makes the same model."""

from dataclasses import replace
from typing import Any

import pytest
import torch
from catalogue import TYPES

from backstory.config import (
    DualConfig,
    EmbeddingConfig,
    LSTMConfig,
    MixtureConfig,
    ModelConfig,
    NoDualConfig,
    SoftmaxConfig,
    SpanBufferConfig,
    TransformerConfig,
)
from backstory.models import build_model, choose_device, choose_precision, outline
from backstory.runs import run as loading
from backstory.runs.run import check_state
from backstory.utils.errors import UserError


def test_a_tied_softmax_needs_vectors_of_the_embeddings_size() -> None:
    config = ModelConfig(EmbeddingConfig(6), LSTMConfig(hidden=8, output=7), SoftmaxConfig())
    with pytest.raises(UserError, match=r"tied to the embedding, of size 6.*must be 6 or none, not 7"):
        build_model(config, TYPES)


@pytest.mark.parametrize(
    ("head", "output", "size"),
    [
        (SoftmaxConfig(), None, 6),
        (SoftmaxConfig(tied=False), None, 8),
        (SoftmaxConfig(tied=False), 5, 5),
        (MixtureConfig(experts=2), None, 8),
        (MixtureConfig(experts=2), 5, 5),
    ],
)
def test_the_last_layer_has_the_size_that_the_head_reads(head, output: int | None, size: int) -> None:
    model = build_model(ModelConfig(EmbeddingConfig(6), LSTMConfig(layers=2, hidden=8, output=output), head), TYPES)
    assert model.core.output_size == size
    prediction, _ = model(torch.zeros(1, 1, dtype=torch.long), model.start(1))
    assert prediction.activations is not None and prediction.activations.head_input.shape == (1, 1, size)
    assert model.head_size == size


def test_a_dual_layer_has_the_embeddings_size_and_the_core_any() -> None:
    dual = DualConfig(size=5)
    for head, core, size in (
        (SoftmaxConfig(), 7, 6),
        (MixtureConfig(experts=2), 8, 6),
        (SoftmaxConfig(tied=False), 8, 6),
    ):
        output = 7 if core == 7 else None
        config = ModelConfig(EmbeddingConfig(6), LSTMConfig(hidden=8, output=output), head, dual=DualConfig())
        model = build_model(config, TYPES)
        assert (model.core.output_size, model.head_size) == (core, size)
        if core == 7:
            with pytest.raises(UserError, match=r"so model\.dual\.size must be 6 or none, not 5; or set"):
                build_model(replace(config, dual=dual), TYPES)
        else:
            assert build_model(replace(config, dual=dual), TYPES).head_size == 5


def test_a_dual_connection_leaves_the_core_as_it_was() -> None:
    models = []
    for dual in (NoDualConfig(), DualConfig()):
        torch.manual_seed(1)
        models.append(build_model(ModelConfig(EmbeddingConfig(6), LSTMConfig(layers=2, hidden=8), dual=dual), TYPES))
    plain, dual = (dict(model.named_parameters()) for model in models)
    assert dual.keys() - plain.keys() == {"dual.weight_de", "dual.weight_dh", "dual.bias"}
    assert all(torch.equal(p, dual[name]) for name, p in plain.items())


def test_the_seed_makes_the_weights() -> None:
    config, models = ModelConfig(EmbeddingConfig(6), LSTMConfig(layers=2, hidden=8)), []
    for seed in (1, 1, 2):
        torch.manual_seed(seed)
        models.append(torch.cat([p.flatten() for p in build_model(config, TYPES).parameters()]))
    assert torch.equal(models[0], models[1]) and not torch.equal(models[0], models[2])


def test_devices_and_precisions_are_chosen_with_a_reason() -> None:
    cpu = choose_device("cpu")
    assert choose_precision("bfloat16", cpu).dtype == torch.bfloat16
    assert choose_precision("float32", cpu).reason == "requested"
    assert "processor" in choose_precision("auto", cpu).reason
    for expected in ("gpu", "meta"):
        with pytest.raises(UserError, match=expected):
            choose_device(expected)


def test_a_gpu_is_chosen_by_its_number_if_it_is_there(monkeypatch: pytest.MonkeyPatch) -> None:
    used: list[torch.device] = []
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    monkeypatch.setattr(torch.cuda, "set_device", used.append)
    with pytest.raises(UserError, match=r"device 'cuda:2' is not available here; use cuda:0 to cuda:1"):
        choose_device("cuda:2")
    assert choose_device("cuda") == torch.device("cuda") and not used
    assert choose_device("cuda:1") == torch.device("cuda:1") and used == [torch.device("cuda:1")]


@pytest.mark.parametrize(
    "parts",
    [
        {"core": TransformerConfig(layers=1, heads=1, hidden=8, window=10**9)},
        {"buffer": SpanBufferConfig(size=2**34, span=4, prediction="pointer", values="last-words")},
    ],
    ids=["a window", "a buffer"],
)
def test_a_state_that_no_machine_holds_is_refused_before_it_is_made(
    parts: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    outlined = outline(ModelConfig(embedding=EmbeddingConfig(size=8), **parts), 10)
    assert outlined is not None
    monkeypatch.setattr(loading, "available", lambda device: 16 << 30)
    with pytest.raises(UserError, match=r"for one text, and 16 GiB are free"):
        check_state(outlined, torch.device("cpu"), "the run")
