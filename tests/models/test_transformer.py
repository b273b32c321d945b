"""The Transformer against loops over its equations, PyTorch's own, what its window lets it see, and its dropout."""

from typing import Any

import pytest
import torch
from catalogue import transformer
from checks import check_bfloat16, check_dropout
from hypothesis import given
from hypothesis import strategies as st
from references import transformer as naive
from torch import Tensor, nn

from backstory.config import SpanBufferConfig, TransformerConfig
from backstory.models import dropout, flatten
from backstory.models.cores import Transformer
from backstory.models.cores import transformer as module
from backstory.utils.errors import UserError

ROWS, INPUTS = 2, 3
DROPOUTS = ("input_dropout", "attention_dropout", "layer_dropout", "output_dropout")
QUIET = dict.fromkeys(DROPOUTS, 0.0)

SETTINGS = st.fixed_dictionaries(
    {
        "layers": st.integers(1, 2),
        "heads": st.sampled_from([1, 2]),
        "feed_forward": st.none() | st.integers(1, 5),
        "window": st.integers(2, 6),
        "chunked": st.booleans(),
        "positions": st.sampled_from(["rotary", "sinusoidal"]),
        "norm": st.sampled_from(["pre", "post"]),
        "activation": st.sampled_from(["gelu", "relu"]),
    }
)


def core(output: int, **settings: Any) -> Transformer:
    torch.manual_seed(0)
    chosen: dict[str, Any] = {"heads": 2, "hidden": 4}
    made = Transformer(TransformerConfig(**chosen | settings), INPUTS, output).double()
    with torch.no_grad():
        for p in made.parameters():  # also those that begin as ones or zeros
            p.add_(torch.randn_like(p) * 0.3)
    return made


def embedded(steps: int) -> Tensor:
    return torch.randn(ROWS, steps, INPUTS, dtype=torch.float64, generator=torch.Generator().manual_seed(1))


@pytest.mark.full
@given(SETTINGS, st.integers(1, 5), st.sampled_from([4, 5]), st.sampled_from([0.0, 0.3]))
def test_values_and_gradients_are_the_equations(
    settings: dict[str, Any], steps: int, output: int, probability: float
) -> None:
    made = core(output, **settings, **dict.fromkeys(DROPOUTS, probability)).train()
    xs, masks, draw = embedded(steps).requires_grad_(), [], dropout.keep_mask
    with pytest.MonkeyPatch.context() as patch:
        for place in (dropout, module):
            patch.setattr(place, "keep_mask", lambda *a: masks.append(draw(*a)) or masks[-1])
        actual = made(xs, made.start(ROWS))
    config = made.config
    if not probability:
        shapes = [(ROWS, config.heads, steps, steps), (ROWS, steps, 4), (ROWS, steps, 4)] * config.layers
        masks = [torch.ones(shape, dtype=torch.float64) for shape in ((ROWS, 1, 4), *shapes, (ROWS, 1, output))]
    masks[0] = masks[0][:, 0]
    weights, rows = dict(made.named_parameters()), range(ROWS)
    slow = [naive(config, weights, xs[row], [mask[row] for mask in masks]) for row in rows]
    for number, layer in enumerate(actual.layers):
        expected = torch.stack([torch.stack(slow[row][number]) for row in rows])
        torch.testing.assert_close(layer, expected, rtol=0, atol=1e-10)
    torch.testing.assert_close(actual.dropped, expected * masks[-1], rtol=0, atol=1e-10)
    every = [xs, *made.parameters()]
    gradients = (torch.autograd.grad(y.sin().sum(), every) for y in (actual.layers[-1], expected))
    for mine, reference in zip(*gradients, strict=True):
        torch.testing.assert_close(mine, reference, rtol=0, atol=1e-10)


@given(SETTINGS, st.lists(st.integers(1, 9), min_size=1, max_size=6))
def test_a_text_in_pieces_is_the_text(settings: dict[str, Any], sizes: list[int]) -> None:
    made = core(4, **settings).eval()
    text = embedded(sum(sizes))
    whole, state, pieces = made(text, made.start(ROWS)), made.start(ROWS), []
    for piece in text.split(sizes, 1):
        output = made(piece, state)
        state = output.state
        pieces.append(output.dropped)
    torch.testing.assert_close(torch.cat(pieces, 1), whole.dropped, rtol=0, atol=1e-12)
    torch.testing.assert_close(flatten(state), flatten(whole.state), rtol=0, atol=1e-12)


def test_it_is_pytorchs_transformer() -> None:
    """Norms after, biases, ReLU: the encoder of PyTorch with a causal mask, which the word language model is made of."""
    settings: dict[str, Any] = {
        "heads": 4,
        "norm": "post",
        "activation": "relu",
        "positions": "sinusoidal",
        "chunked": True,
    }
    config = TransformerConfig(layers=2, hidden=52, feed_forward=16, window=9, **settings, **QUIET)
    torch.manual_seed(0)
    made = Transformer(config, 52, 52)
    theirs = nn.TransformerEncoder(
        nn.TransformerEncoderLayer(52, 4, 16, dropout=0.0, batch_first=True), 2, enable_nested_tensor=False
    )
    names = {
        "attending": "self_attn.in_proj_",
        "attended": "self_attn.out_proj.",
        "inner": "linear1.",
        "outer": "linear2.",
    }
    names |= {"attention_norm": "norm1.", "feed_forward_norm": "norm2."}
    weights = {}
    for name, p in made.named_parameters():
        layers, number, part, kind = name.split(".")
        weights[f"{layers}.{number}.{names[part]}{kind}"] = p.detach()
    theirs.load_state_dict(weights)
    words = torch.randn(2, 9, 52)
    position, rate = torch.arange(9.0).unsqueeze(1), torch.exp(-torch.arange(0, 52, 2) * (torch.tensor(1e4).log() / 52))
    waves = torch.zeros(9, 52)
    waves[:, ::2], waves[:, 1::2] = (position * rate).sin(), (position * rate).cos()
    causal = nn.Transformer.generate_square_subsequent_mask(9)
    expected = theirs(words * 52**0.5 + waves, mask=causal, is_causal=True)
    torch.testing.assert_close(made(words, made.start(2)).dropped, expected, rtol=0, atol=1e-4)


@pytest.mark.parametrize("layers", [1, 3])
def test_every_layer_sees_the_window(layers: int) -> None:
    made, steps = core(4, layers=layers, window=4).eval(), 14
    first, other = embedded(steps), embedded(steps)
    other[:, 1] += 1
    changed = (made(first, made.start(ROWS)).dropped != made(other, made.start(ROWS)).dropped).any(2).all(0)
    assert changed.tolist() == [0 < t <= 1 + 3 * layers for t in range(steps)]


def test_a_window_that_begins_anew_forgets_what_was_before_it() -> None:
    made, text = core(4, layers=2, window=5, chunked=True, positions="sinusoidal").eval(), embedded(13)
    whole = made(text, made.start(ROWS)).dropped
    for first in (0, 5, 10):
        piece = text[:, first : first + 5]
        torch.testing.assert_close(
            made(piece, made.start(ROWS)).dropped, whole[:, first : first + 5], rtol=0, atol=1e-12
        )
    assert made.capabilities.maximum_length == 5 and core(4).capabilities.maximum_length is None


def test_a_long_text_is_scored_a_window_at_a_time(monkeypatch: pytest.MonkeyPatch) -> None:
    made, text, shapes = core(4, layers=1, window=6).eval(), embedded(300), []
    attend = torch.nn.functional.scaled_dot_product_attention
    monkeypatch.setattr(
        module.F, "scaled_dot_product_attention", lambda q, k, v, m: shapes.append(m.shape[-2:]) or attend(q, k, v, m)
    )
    actual = made(text, made.start(ROWS)).dropped
    assert [tuple(s) for s in shapes] == [(128, 133), (128, 133), (44, 49)]
    monkeypatch.setattr(module, "QUERIES", 1000)
    torch.testing.assert_close(made(text, made.start(ROWS)).dropped, actual, rtol=0, atol=1e-12)
    assert tuple(shapes[-1]) == (300, 305)


def test_bfloat16_stays_near_float32() -> None:
    check_bfloat16(lambda: Transformer(TransformerConfig(hidden=32, window=16, **QUIET), 24, 24), 0.05, 0.05)


@pytest.mark.parametrize("name", DROPOUTS)
def test_every_dropout_alone_makes_training_differ_from_evaluation(name: str) -> None:
    check_dropout(transformer, DROPOUTS, name)


@pytest.mark.parametrize(
    ("hidden", "positions", "told"),
    [
        (50, "sinusoidal", "a multiple of 4 for 4 heads, and 50 is not; use 52"),
        (
            52,
            "rotary",
            "a multiple of 8 for 4 heads of an even size, which rotary positions need, and 52 is not; use 56",
        ),
    ],
)
def test_heads_that_do_not_share_the_units_evenly_are_refused(hidden: int, positions: Any, told: str) -> None:
    with pytest.raises(UserError, match=told):
        Transformer(TransformerConfig(hidden=hidden, positions=positions), 4, 4)


def test_one_that_begins_anew_declares_its_window_and_that_none_slides() -> None:
    can = core(4, layers=1, window=5, chunked=True).capabilities
    assert (can.maximum_length, can.slides, can.exact_state) == (5, False, True)
    assert core(4, layers=1, window=5).capabilities.maximum_length is None


def test_a_buffer_reaches_beyond_the_longest_context_of_a_core() -> None:
    """The limit of the core is none of the model: a laboratory that cut contexts to it would not see the buffer."""
    limited = transformer(window=5, chunked=True, positions="sinusoidal")
    buffered = transformer(window=5, chunked=True, positions="sinusoidal", buffer=SpanBufferConfig(size=6, span=2))
    assert (limited.capabilities.maximum_length, buffered.capabilities.maximum_length) == (5, None)
