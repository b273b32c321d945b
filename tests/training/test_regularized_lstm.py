"""The recipes of the LSTM of Zaremba et al. (2014) train as the paper says, in a plain loop over torch's own LSTM."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from runs import checkpoints, with_settings
from torch import Tensor, nn

from backstory.config import LSTMConfig, RunConfig, recipes
from backstory.data import Dataset, rows
from backstory.models import build_model
from backstory.storage.checkpoint import read_checkpoint

UNITS, ROWS, EPOCHS = 7, 3, 7
SMALL = {
    "model.embedding.size": UNITS,
    "model.core.hidden": UNITS,
    "training.batch_size": ROWS,
    "training.epochs": EPOCHS,
    "training.precision": "float32",
    "training.device": "cpu",
}
PAPER = {  # steps of a segment, largest norm, epochs at the first rate, divisor after each later one, range, dropout
    "ptb-lstm-200": (20, 5, 4, 2, 0.1, 0.0),
    "ptb-lstm-650": (35, 5, 6, 1.2, 0.05, 0.5),
    "ptb-lstm-1500": (35, 10, 14, 1.15, 0.04, 0.65),
}


@pytest.mark.parametrize("name", PAPER)
def test_a_recipe_has_the_settings_of_the_paper(name: str) -> None:
    steps, norm, constant, divisor, initial, dropout = PAPER[name]
    config = recipes.load(name)
    core, training = config.model.core, config.training
    assert isinstance(core, LSTMConfig)
    assert (training.batch_size, training.segment, training.segment_deviation, training.short_probability) == (
        *(20, steps),
        *(0, 0),
    )
    # The paper's loss is summed over the steps of a segment, ours is their mean.
    assert training.learning_rate / steps == pytest.approx(1)
    assert training.clip * steps == pytest.approx(norm)
    assert training.decay_epochs == tuple(range(constant, training.epochs))
    assert training.decay_factor == pytest.approx(1 / divisor)
    assert config.model.initial == initial
    assert training.keep == "last"
    assert {core.input_dropout, core.layer_dropout, core.output_dropout} == {dropout}
    assert core.masks == ("token" if dropout else "segment")
    others = (core.weight_drop, core.state_dropout, config.model.embedding.dropout)
    assert not any((*others, training.weight_decay, training.activation_l2, training.temporal_l2))


@pytest.mark.full
def test_training_is_the_papers(
    tiny_corpus: Path, tiny_dataset: Dataset, quietly: Callable[..., Any], tmp_path: Path
) -> None:
    steps, _, constant, divisor, *_ = PAPER["ptb-lstm-200"]
    largest = 3.0  # so that some gradients of this small model are longer, and some are not
    config = recipes.load("ptb-lstm-200")
    config = with_settings(
        config,
        SMALL
        | {
            "text.corpus": str(tiny_corpus),
            "training.clip": largest / steps,
            "training.decay_epochs": tuple(range(constant, EPOCHS)),
        },
    )
    quietly(config, tmp_path / "run")
    trained = read_checkpoint(checkpoints(tmp_path / "run", "best")[0]).tensors["weights"]
    text = torch.from_numpy(rows(tiny_dataset.splits["train"].ids, ROWS).astype(np.int64))
    expected, clipped = naive(config, text, len(tiny_dataset.vocabulary), largest, constant, divisor)
    assert 0.1 < np.mean(clipped) < 0.9
    for parameter, weights in expected.items():
        torch.testing.assert_close(trained[parameter], weights, rtol=0, atol=2e-5)


def naive(
    config: RunConfig, text: Tensor, types: int, largest: float, constant: int, divisor: float
) -> tuple[dict[str, Tensor], list[bool]]:
    """Return the trained weights by the names that they have here, and which steps were clipped."""
    torch.manual_seed(config.seed)
    begin = dict(build_model(config.model, types).named_parameters())
    lstm = nn.LSTM(UNITS, UNITS, num_layers=2, batch_first=True)
    embedding, softmax = nn.Embedding(types, UNITS), nn.Linear(UNITS, types)
    names = {"embedding.weight": embedding.weight, "head.weight": softmax.weight, "head.bias": softmax.bias}
    names |= {
        f"core.layers.{layer}.{name}": getattr(lstm, f"{name}_l{layer}")
        for layer in range(2)
        for name in ("weight_ih", "weight_hh", "bias_ih", "bias_hh")
    }
    with torch.no_grad():
        for name, parameter in names.items():
            parameter.copy_(begin[name])
    clipped = []
    for epoch in range(1, EPOCHS + 1):
        rate, state = divisor ** -max(epoch - constant, 0), None
        for first in range(0, text.shape[1] - 1, config.training.segment):
            read = text[:, first : first + config.training.segment + 1]
            outputs, state = lstm(embedding(read[:, :-1]), state)
            state = tuple(part.detach() for part in state)
            loss = nn.functional.cross_entropy(softmax(outputs).flatten(0, 1), read[:, 1:].flatten(), reduction="sum")
            gradients = torch.autograd.grad(loss / ROWS, list(names.values()))
            # The authors leave out the short segment at the end of an epoch; here its norm is bounded by its share.
            bound = largest * (read.shape[1] - 1) / config.training.segment
            norm = torch.cat([g.flatten() for g in gradients]).norm().item()
            clipped.append(norm > bound)
            with torch.no_grad():
                for parameter, gradient in zip(names.values(), gradients, strict=True):
                    parameter -= rate * min(1, bound / norm) * gradient
    return {name: parameter.detach() for name, parameter in names.items()}, clipped
