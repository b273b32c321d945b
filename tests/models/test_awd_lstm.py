"""The AWD-LSTM against a loop over its equations, its weight drop, and its evaluation against torch's own LSTM."""

import pytest
import torch
from catalogue import MODELS, TYPES, lstm
from references import awd_lstm
from torch import Tensor, nn

from backstory.models import ComposedModel, dropout
from backstory.models.cores import LSTM, LSTMState

BATCH, TIME = 2, 4


@pytest.fixture(
    params=[
        name
        for name, make in MODELS.items()
        if isinstance(getattr(made := make(), "core", None), LSTM) and made.gated is None and made.dual is None  # type: ignore[union-attr]
    ]
)
def model(request: pytest.FixtureRequest) -> ComposedModel:
    torch.manual_seed(0)
    made = MODELS[request.param]()
    assert isinstance(made, ComposedModel)
    return made


@pytest.fixture
def masks(monkeypatch: pytest.MonkeyPatch) -> list[Tensor]:
    """Every dropout mask, in the order in which they are drawn."""
    drawn: list[Tensor] = []
    draw = dropout.keep_mask

    def note(shape: tuple[int, ...], probability: float, like: Tensor) -> Tensor:
        drawn.append(draw(shape, probability, like))
        return drawn[-1]

    monkeypatch.setattr(dropout, "keep_mask", note)
    return drawn


def tokens(batch: int = BATCH, time: int = TIME) -> Tensor:
    return torch.randint(TYPES, (batch, time), generator=torch.Generator().manual_seed(1))


def recurrent_weights(model: ComposedModel) -> list[nn.Parameter]:
    assert isinstance(model.core, LSTM)
    return [layer.weight_hh for layer in model.core.layers]  # type: ignore[misc]


def test_training_is_the_equations_with_the_same_masks(model: ComposedModel, masks: list[Tensor]) -> None:
    model.double().train()
    start = model.start(BATCH)
    given = LSTMState(*(tuple(torch.randn_like(t).requires_grad_() for t in part) for part in start))
    text, targets = tokens(), tokens().roll(1, 1)
    fast = model(text, given)[0].log_prob(targets)
    leaves = [*given.hidden, *given.cell, *model.parameters()]
    actual = torch.autograd.grad(fast.cos().sum(), leaves)

    layers, of_states = list(zip(*given, strict=True)), any(m.shape == given.hidden[0].shape for m in masks)
    table = awd_lstm(dict(model.named_parameters()), len(layers), text, layers, masks, of_states)
    slow = table.gather(2, targets[..., None])[..., 0].log()
    expected = torch.autograd.grad(slow.cos().sum(), leaves)
    torch.testing.assert_close(fast, slow, rtol=0, atol=1e-10)
    assert any((mask == 0).any() for mask in masks)
    for mine, reference in zip(actual, expected, strict=True):
        torch.testing.assert_close(mine, reference, rtol=0, atol=1e-10)


def test_evaluation_is_the_librarys_lstm_with_undropped_weights(model: ComposedModel) -> None:
    model.eval()
    text, state = tokens(), model.start(BATCH)
    prediction, after = model(text, state)
    assert isinstance(model.core, LSTM)
    x = model.embedding.weight[text]
    for number, layer in enumerate(model.core.layers):
        library = nn.LSTM(layer.weight_ih.shape[1], layer.weight_hh.shape[1], batch_first=True).eval()
        weights = {"bias_hh": torch.zeros(len(layer.bias_ih))} | dict(layer.named_parameters())
        library.load_state_dict({f"{name}_l0": p for name, p in weights.items()})
        x, (h, c) = library(x)
        torch.testing.assert_close(after.hidden[number], h[0])
        torch.testing.assert_close(after.cell[number], c[0])
    torch.testing.assert_close(prediction.activations.head_input, x)
    torch.testing.assert_close(prediction.log_probs(), model.head.eval()(x).log_probs())


def test_gradients_flow_from_chunk_to_chunk(model: ComposedModel) -> None:
    model.double().eval()
    text, actual = tokens(2, 6), []
    for sizes in ([6], [2, 4]):
        scores, state = [], model.start(2)
        for chunk in text.split(sizes, 1):
            prediction, state = model(chunk, state)
            scores.append(prediction.log_prob(chunk))
        actual.append(torch.autograd.grad(torch.cat(scores, 1)[:, -1].sum(), recurrent_weights(model)))
    for whole, pieces in zip(*actual, strict=True):
        torch.testing.assert_close(pieces, whole, rtol=0, atol=1e-12)


def test_dropped_weights_get_no_gradient_and_the_others_do(model: ComposedModel, masks: list[Tensor]) -> None:
    raw = recurrent_weights(model)
    dropped = []
    for _ in range(2):
        masks.clear()
        model.zero_grad()
        prediction, _ = model.train()(tokens(4, 12), model.start(4))
        prediction.log_prob(tokens(4, 12)).sum().backward()
        drawn = [m for m in masks if any(m.shape == w.shape for w in raw)]
        assert len(drawn) == len(raw)
        for weight, mask in zip(raw, drawn, strict=True):
            assert weight.grad is not None
            assert (weight.grad[mask == 0] == 0).all()
            assert (weight.grad[mask != 0] != 0).all()
        dropped.append(drawn)
    assert all(not torch.equal(one, other) for one, other in zip(*dropped, strict=True))


def test_one_mask_serves_all_steps_of_a_segment(model: ComposedModel, masks: list[Tensor]) -> None:
    model.train()(tokens(2, 12), model.start(2))
    counts = [sum(m.shape == shape for m in masks) for shape in {w.shape for w in recurrent_weights(model)}]
    assert sum(counts) == len(recurrent_weights(model))


def test_a_training_pass_leaves_the_raw_weights_as_they_were(model: ComposedModel) -> None:
    before = [p.detach().clone() for p in model.parameters()]
    prediction, _ = model.train()(tokens(), model.start(BATCH))
    prediction.log_prob(tokens()).sum().backward()
    assert all(torch.equal(a, b) for a, b in zip(before, model.parameters(), strict=True))


def test_weight_drop_alone_makes_training_differ_from_evaluation() -> None:
    torch.manual_seed(0)
    quiet = {"input_dropout": 0.0, "layer_dropout": 0.0, "output_dropout": 0.0}
    actual = {}
    for drop in (0.0, 0.5):
        model = lstm(weight_drop=drop, **quiet)
        model.embedding.dropout = 0.0
        passes = [model.train(training)(tokens(), model.start(BATCH))[0].log_probs() for training in (True, False)]
        actual[drop] = torch.equal(*passes)
    assert actual == {0.0: True, 0.5: False}


def test_noise_on_the_words_is_in_training_alone() -> None:
    torch.manual_seed(0)
    model = lstm(weight_drop=0.0, input_dropout=0.0, layer_dropout=0.0, output_dropout=0.0)
    model.embedding.dropout, model.embedding.noise = 0.0, 0.15
    text, start = tokens(), model.start(BATCH)
    clean, *noisy = (model.train(training)(text, start)[0] for training in (False, True, True))
    vectors = []
    for prediction in (clean, *noisy):
        assert prediction.activations is not None
        vectors.append(prediction.activations.embedded)
    assert torch.equal(vectors[0], model.embedding.weight[text])
    for one, other in ((0, 1), (0, 2), (1, 2)):
        assert (vectors[one] != vectors[other]).all()
    model.embedding.noise = 0.0
    assert torch.equal(model.train()(text, start)[0].log_probs(), clean.log_probs())
