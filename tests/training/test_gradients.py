"""Compare gradients of a batch computed in parts with those of the whole batch."""

from dataclasses import replace

import pytest
import torch

from backstory.config import (
    EmbeddingConfig,
    GateConfig,
    LSTMConfig,
    MixtureConfig,
    ModelConfig,
    NTMConfig,
    RewardConfig,
    RunConfig,
    SpanBufferConfig,
    TrainingConfig,
)
from backstory.models import build_model, choose_precision, flatten
from backstory.training.gradients import LOSS, NORM, Accumulated, Eager
from backstory.training.objectives import build_objective

CPU = torch.device("cpu")
TYPES, ROWS = 11, 5
PLAIN = LSTMConfig(layers=2, hidden=7, weight_drop=0.0, input_dropout=0.0, layer_dropout=0.0, output_dropout=0.0)
MODELS = {
    "lstm": ModelConfig(core=PLAIN),
    "mixture": ModelConfig(core=PLAIN, head=MixtureConfig(experts=2, latent_dropout=0.0)),
    "span buffer": ModelConfig(
        core=PLAIN, buffer=SpanBufferConfig(size=8, span=2, gate=GateConfig(reward=RewardConfig(weight=0.1)))
    ),
    "ntm": ModelConfig(core=NTMConfig(layers=(8,), slots=6, width=4, heads=1)),
}


@pytest.mark.parametrize("answers_only", [False, True], ids=["all tokens", "answers"])
@pytest.mark.parametrize("name", MODELS)
@pytest.mark.parametrize("parts", [2, 3, 9])
def test_parts_of_a_batch_give_its_figures_gradients_and_states(name: str, parts: int, answers_only: bool) -> None:
    torch.manual_seed(0)
    training = TrainingConfig(accumulate=parts, answer_loss_only=answers_only)
    training.check()
    config = RunConfig(model=replace(MODELS[name], embedding=EmbeddingConfig(size=6, dropout=0.0)), training=training)
    model = build_model(config.model, TYPES)
    eager = Eager(
        model,
        list(model.parameters()),
        build_objective(config, 0.0, model.core.auxiliary_weight),
        choose_precision("float32", CPU),
        clip=0.1,
    )
    state = model.start(ROWS)
    for _ in range(2):  # the second segment goes on from a state
        text = torch.randint(TYPES, (ROWS, 8))
        # A row without any answer, and others with different numbers of them.
        answers = torch.rand(ROWS, 7) < torch.linspace(0, 1, ROWS)[:, None] if answers_only else None
        figures, after = eager(text, state, answers)
        whole = [p.grad.clone() for p in eager.parameters if p.grad is not None]
        in_parts, after_parts = Accumulated(eager, parts)(text, state, answers)
        assert in_parts.keys() == figures.keys() >= {LOSS, NORM}
        for key, value in figures.items():
            assert in_parts[key].item() == pytest.approx(value.item(), rel=1e-5), key
        summed = [p.grad for p in eager.parameters if p.grad is not None]
        for one, other in zip(whole, summed, strict=True):
            torch.testing.assert_close(other, one, rtol=1e-4, atol=1e-7)
        assert type(after_parts) is type(after)
        for key, value in flatten(after).items():
            torch.testing.assert_close(flatten(after_parts)[key], value, rtol=1e-5, atol=1e-7)
        state = after
