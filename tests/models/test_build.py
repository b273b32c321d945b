"""Models from settings: parts that do not fit are told, and the same seed makes the same model."""

import pytest
import torch
from catalogue import TYPES

from backstory.config import EmbeddingConfig, LSTMConfig, MixtureConfig, ModelConfig, SoftmaxConfig, UserError
from backstory.models import build_model, choose_device, choose_precision


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


def test_the_seed_makes_the_weights() -> None:
    config, models = ModelConfig(EmbeddingConfig(6), LSTMConfig(layers=2, hidden=8)), []
    for seed in (1, 1, 2):
        torch.manual_seed(seed)
        models.append(torch.cat([p.flatten() for p in build_model(config, TYPES).parameters()]))
    assert torch.equal(models[0], models[1]) and not torch.equal(models[0], models[2])


def test_devices_and_precisions_are_chosen_with_a_reason() -> None:
    cpu = choose_device("cpu")
    assert choose_precision("bfloat16", cpu).dtype == torch.bfloat16
    assert choose_precision("float32", cpu).reason == "it was asked for"
    assert "processor" in choose_precision("auto", cpu).reason
    for wanted in ("gpu", "meta"):
        with pytest.raises(UserError, match=wanted):
            choose_device(wanted)
