"""Contract of every language model, whatever its parts, and of every head."""

import copy
from collections.abc import Callable
from contextlib import nullcontext
from pathlib import Path

import pytest
import torch
from catalogue import HEADS, MODELS, TYPES, VARIANTS, activations
from checks import nan_in_new_memory
from tiers import fast_then_full, several
from torch import Tensor

from backstory.models import ComposedModel, LanguageModel, State, flatten, unflatten
from backstory.models.heads import Head
from backstory.plugins.model_contract import BATCH, MODEL_CHECKS, TIME, example_tokens
from backstory.plugins.model_contract import log_probs as read
from backstory.runs.run import load_weights, weights
from backstory.storage.checkpoint import read_checkpoint, write_checkpoint


@pytest.fixture(params=fast_then_full(MODELS, MODELS.keys() - VARIANTS))
def model(request: pytest.FixtureRequest) -> LanguageModel:
    torch.manual_seed(0)
    return MODELS[request.param]().eval()


@pytest.fixture
def tokens() -> Tensor:
    return example_tokens()


def equal(a: State, b: State) -> bool:
    one, other = flatten(a), flatten(b)
    return one.keys() == other.keys() and all(torch.equal(one[name], other[name]) for name in one)


@pytest.mark.parametrize("check", MODEL_CHECKS)
def test_it_keeps_the_contract(model: LanguageModel, check: str) -> None:
    MODEL_CHECKS[check](model)


# --- predictions ---


def test_the_default_type_of_torch_changes_no_prediction(model: LanguageModel, tokens: Tensor) -> None:
    plain, _ = read(model, tokens, model.start(BATCH), 5, 7)
    torch.set_default_dtype(torch.float64)
    try:
        actual, _ = read(model, tokens, model.start(BATCH), 5, 7)
    finally:
        torch.set_default_dtype(torch.float32)
    assert torch.equal(actual, plain)


def test_predictions_depend_on_what_was_read_before(model: LanguageModel, tokens: Tensor) -> None:
    changed = tokens.clone()
    changed[:, 0] = (changed[:, 0] + 1) % TYPES
    before, after = (read(model, t, model.start(BATCH))[0] for t in (tokens, changed))
    assert (before[:, -1] != after[:, -1]).any(1).all()


def test_a_prediction_carries_its_activations(model: LanguageModel, tokens: Tensor) -> None:
    actual = model(tokens, model.start(BATCH))[0].activations
    assert actual is not None
    for tensor in (actual.embedded, *actual.layers, actual.last_dropped, actual.head_input, actual.head_raw):
        assert tensor.shape[:2] == (BATCH, TIME)
    assert actual.last_raw is actual.layers[-1]
    assert torch.equal(actual.last_raw, actual.last_dropped)  # nothing is dropped in evaluation
    assert torch.equal(actual.head_raw, actual.head_input)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_weights_of_16_bits_read_on(model: LanguageModel, tokens: Tensor, dtype: torch.dtype) -> None:
    """As an export is loaded with --dtype: all parts go together, and nothing underflows to a division by zero."""
    if not isinstance(model, ComposedModel):
        pytest.skip("what a foreign model keeps was measured in its own type")
    narrow = copy.deepcopy(model).to(dtype)
    start = narrow.start(BATCH)
    with torch.no_grad():
        _, state = narrow(tokens[:, :4], start)
        prediction, after = narrow(tokens[:, 4:], state)
    assert prediction.log_probs().isfinite().all()
    assert [t.dtype for t in flatten(after).values()] == [t.dtype for t in flatten(start).values()]


# --- state ---


def test_the_state_has_the_size_that_the_model_declares(model: LanguageModel, tokens: Tensor) -> None:
    start = model.start(BATCH)
    _, after = read(model, tokens, start)
    _, later = read(model, tokens, after)
    if model.capabilities.recurrent:
        shapes = [{name: (t.shape, t.dtype) for name, t in flatten(s).items()} for s in (start, after, later)]
        assert shapes[0] == shapes[1] == shapes[2]
    limit = model.capabilities.maximum_length
    if limit is None:
        long = torch.zeros(1, several(200, 700), dtype=torch.long)
        assert read(model, long, model.start(1))[0].shape == (*long.shape, TYPES)
    else:
        assert limit >= TIME


def test_a_flattened_state_goes_on_where_it_was(model: LanguageModel, tokens: Tensor) -> None:
    _, state = read(model, tokens, model.start(BATCH))
    rebuilt = unflatten(model.start(BATCH), flatten(state))
    assert type(rebuilt) is type(state)
    assert torch.equal(read(model, tokens, rebuilt)[0], read(model, tokens, state)[0])
    for name, tensor in flatten(state).items():
        with pytest.raises(ValueError, match=f"state '{name}' is "):
            unflatten(model.start(BATCH), flatten(state) | {name: tensor[:1]})
    with pytest.raises(ValueError, match="the model expects"):
        unflatten(model.start(BATCH), {})


# --- weights, training and evaluation ---


def test_saved_weights_predict_the_same(model: LanguageModel, tokens: Tensor, tmp_path: Path) -> None:
    other = copy.deepcopy(model)
    with torch.no_grad():
        for parameter in other.parameters():
            parameter.fill_(0.5)
    saved = write_checkpoint(tmp_path, "best-1", {"weights": weights(model)}, {})
    load_weights(other, read_checkpoint(saved).tensors["weights"])
    assert torch.equal(read(other, tokens, other.start(BATCH))[0], read(model, tokens, model.start(BATCH))[0])


@pytest.mark.parametrize("dtype", [torch.uint8, torch.int16])
def test_tokens_of_a_type_that_torch_does_not_look_up_are_refused(
    model: LanguageModel, tokens: Tensor, dtype: torch.dtype
) -> None:
    """A text read as bytes by numpy is of uint8."""
    with pytest.raises(
        TypeError, match=rf"tokens must be of torch.int64 or torch.int32, not {dtype}; use tokens.long()"
    ):
        model(tokens.to(dtype), model.start(len(tokens)))


def test_weights_of_another_model_are_refused(model: LanguageModel) -> None:
    saved = weights(model)
    name = next(iter(saved))
    with pytest.raises(ValueError, match="not those of this model"):
        load_weights(model, {k: v for k, v in saved.items() if k != name})
    with pytest.raises(ValueError, match=name):
        load_weights(model, saved | {name: saved[name][:-1]})


def test_training_passes_differ_and_evaluation_does_not(model: LanguageModel, tokens: Tensor) -> None:
    first, second = (read(model, tokens, model.start(BATCH))[0] for _ in range(2))
    assert torch.equal(first, second)
    model.train()
    first, second = (read(model, tokens, model.start(BATCH))[0] for _ in range(2))
    assert not torch.equal(first, second)


def test_what_memory_held_before_changes_nothing(model: LanguageModel, tokens: Tensor) -> None:
    actual = []
    for context in (nullcontext, nan_in_new_memory):
        torch.manual_seed(3)
        with context():
            prediction, _ = model.train()(tokens, model.start(BATCH))
            prediction.log_prob(tokens.roll(-1, 1)).mean().backward()
        actual.append([prediction.log_probs().detach(), *(p.grad for p in model.parameters())])
        model.zero_grad()
    torch.testing.assert_close(actual[1], actual[0])


# --- heads ---


@pytest.fixture(params=HEADS)
def head(request: pytest.FixtureRequest) -> Head:
    torch.manual_seed(0)
    return HEADS[request.param](torch.nn.Parameter(torch.randn(TYPES, 6)))


def test_a_head_predicts_each_position_from_its_own_vector(head: Head) -> None:
    hidden = torch.randn(2, 5, 6)
    changed = hidden.clone()
    changed[1, 2] += 1
    before, after = (head.eval()(h).log_probs() for h in (hidden, changed))
    same = torch.ones(2, 5, dtype=torch.bool)
    same[1, 2] = False
    assert before.shape == (2, 5, TYPES)
    torch.testing.assert_close(before[same], after[same], rtol=0, atol=1e-6)
    assert (before[1, 2] - after[1, 2]).abs().max() > 1e-3


def test_a_head_passes_gradients_to_its_input_and_all_of_its_weights(head: Head) -> None:
    hidden = torch.randn(2, 5, 6).requires_grad_()
    head.train()(hidden).log_prob(torch.randint(TYPES, (2, 5))).sum().backward()
    assert hidden.grad is not None and (hidden.grad != 0).any(2).all()
    for name, parameter in head.named_parameters():
        assert parameter.grad is not None and parameter.grad.abs().max() > 0, name


def test_a_head_hands_on_the_activations(head: Head) -> None:
    given = activations(2, 5)
    assert head(given.head_input, given).activations is given
    assert head(given.head_input).activations is None


@pytest.mark.parametrize(("name", "tied"), [("softmax", True), ("softmax, untied", False), ("mixture", True)])
def test_a_tied_head_reads_with_the_embedding(name: str, tied: bool) -> None:
    embedding = torch.nn.Parameter(torch.randn(TYPES, 6))
    head: Callable = HEADS[name](embedding)
    assert (head.weight is embedding) == tied
