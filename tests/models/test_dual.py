"""The dual connection against its equation, with its dropouts, and what reads it."""

from dataclasses import replace

import pytest
import torch
from catalogue import DUAL, TYPES, buffered, lstm, mogrifier
from references import times
from torch import Tensor

from backstory.config import DualConfig
from backstory.models import ComposedModel, dropout
from backstory.models.heads import Dual
from backstory.readers import StaticReader
from backstory.readers.neural_cache import head_input
from backstory.training.objectives import Likelihood

ROWS, STEPS = 2, 3


def tokens() -> Tensor:
    return torch.randint(TYPES, (ROWS, STEPS), generator=torch.Generator().manual_seed(1))


def named(model: ComposedModel) -> Dual:
    assert model.dual is not None
    return model.dual


@pytest.mark.parametrize("direct", [True, False])
def test_values_and_gradients_are_the_equation_with_the_same_masks(
    direct: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    torch.manual_seed(0)
    dual = Dual(DualConfig(direct=direct), 3, 5, 4).double().train()
    with torch.no_grad():
        dual.bias.normal_()
    e, h = (torch.randn(ROWS, STEPS, size, dtype=torch.float64, requires_grad=True) for size in (3, 5))
    masks: list[Tensor] = []
    draw = dropout.keep_mask
    monkeypatch.setattr(dropout, "keep_mask", lambda *a: masks.append(draw(*a)) or masks[-1])
    actual = dual(e, h)
    assert [m.shape for m in masks] == [(ROWS, 1, size) for size in ((5, 3, 4) if direct else (5, 4))]
    of_h, of_d = masks[0], masks[-1]
    rows = []
    for row in range(ROWS):
        for t in range(STEPS):
            summed = times(dual.weight_dh, h[row, t] * of_h[row, 0]) + dual.bias
            if dual.weight_de is not None:
                summed = summed + times(dual.weight_de, e[row, t] * masks[1][row, 0])
            rows.append(torch.where(summed > 0, summed, 0))
    raw = torch.stack(rows).view(ROWS, STEPS, 4)
    leaves = [h, *dual.parameters(), *([e] if direct else [])]
    for mine, reference in zip(actual, (raw, raw * of_d), strict=True):
        torch.testing.assert_close(mine, reference, rtol=0, atol=1e-12)
        got, expected = (torch.autograd.grad(y.sin().sum(), leaves, retain_graph=True) for y in (mine, reference))
        for one, other in zip(got, expected, strict=True):
            torch.testing.assert_close(one, other, rtol=0, atol=1e-12)


def test_the_head_reads_it_in_the_place_of_the_cores_output() -> None:
    torch.manual_seed(0)
    model = mogrifier(dual=DUAL, output=9).double().eval()
    prediction, _ = model(tokens(), model.start(ROWS))
    assert prediction.activations is not None
    embedded = model.embedding(tokens())
    output = model.core(embedded, model.core.start(ROWS))
    d, _ = named(model)(embedded, output.dropped)
    assert torch.equal(prediction.activations.head_input, d)
    assert torch.equal(prediction.log_probs(), model.head(d).log_probs())
    assert torch.equal(prediction.activations.last_raw, output.layers[-1])


@pytest.mark.parametrize("direct", [True, False])
def test_without_the_direct_term_the_words_reach_the_head_through_the_core_alone(direct: bool) -> None:
    """With a core that says nothing, the prediction depends on the word only where the word has its own way."""
    torch.manual_seed(0)
    model = lstm(dual=replace(DUAL, direct=direct)).eval()
    with torch.no_grad():
        named(model).weight_dh.zero_()
        named(model).bias.fill_(0.5)
    text = torch.tensor([[1], [2]])
    first, second = model(text, model.start(2))[0].log_probs()[:, 0]
    assert torch.equal(first, second) != direct


def test_spans_gate_and_cache_are_of_what_the_head_reads() -> None:
    torch.manual_seed(0)
    model = buffered(dual=replace(DUAL, size=None), values="spans").eval()
    with (
        torch.no_grad()
    ):  # as a reader reads: on some processors the library rounds otherwise where gradients are wanted
        prediction, state = model(tokens(), model.start(ROWS))
    assert prediction.activations is not None
    d = prediction.activations.head_input
    assert torch.equal(state.auxiliary.states[:, -STEPS:], d)
    gates = prediction.parts()["gate_logits"][:, 2:]  # of positions that have a span
    torch.testing.assert_close(gates, model.gated.policy(d)[:, 2:])  # type: ignore[union-attr]
    reader = StaticReader(model)
    reader.start(ROWS)
    assert torch.equal(head_input(reader.predict(tokens())), d)


def test_spans_are_of_it_before_its_dropout() -> None:
    torch.manual_seed(0)
    model = buffered(dual=DualConfig(input_dropout=0.0, output_dropout=0.9)).train()
    prediction, state = model(tokens(), model.start(ROWS))
    actual = prediction.activations
    assert actual is not None and not torch.equal(actual.head_raw, actual.head_input)
    assert torch.equal(state.auxiliary.states[:, -STEPS:], actual.head_raw)


def test_ar_and_tar_are_of_the_cores_output() -> None:
    torch.manual_seed(0)
    model = lstm(dual=DUAL).train()
    prediction, _ = model(tokens(), model.start(ROWS))
    with_penalties, plain = (Likelihood(*weights)(prediction, tokens())[0] for weights in ((2.0, 1.0), (0.0, 0.0)))
    actual = torch.autograd.grad(with_penalties - plain, list(model.parameters()), allow_unused=True)
    for (name, _), grad in zip(model.named_parameters(), actual, strict=True):
        reached = grad is not None and bool(grad.abs().max() > 1e-6)
        assert reached == name.startswith(("core.", "embedding.")), name
