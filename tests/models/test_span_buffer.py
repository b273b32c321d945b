"""The span buffer against its equations, its control, and what it must refuse."""

import math
from typing import Any

import pytest
import torch
from catalogue import MIXTURE, TYPES, auxiliary_softmax, buffered, composed
from hypothesis import given, settings
from hypothesis import strategies as st
from naive_span_buffer import head_states, probabilities, score, spans_of
from tiers import several
from torch.utils._python_dispatch import TorchDispatchMode

from backstory.config import AuxiliarySoftmaxConfig, DualConfig, GateConfig, LSTMConfig, SpanBufferConfig
from backstory.models import ComposedModel, Interpolation, detach, map_state
from backstory.models.kernels.span_attention import additive_scores
from backstory.models.prediction import Pointer
from backstory.models.span_buffer import SpanBuffer
from backstory.readers.shuffled_buffer import shuffled_prediction
from backstory.utils.errors import UserError

GATE = GateConfig(temperature=0.7)


@st.composite
def buffers(draw: st.DrawFn) -> dict[str, Any]:
    """Settings that go together."""
    length = draw(st.integers(1, 4))
    alignment = draw(st.sampled_from(["sliding", "fixed"]))
    vectors = [
        "minus-before",
        "end",
        *(["minus"] if length > 1 else []),
        *(["words"] if alignment == "sliding" else []),
    ]
    chosen = draw(st.sampled_from(vectors))
    ends = draw(st.sampled_from(["previous", "present"]))
    values = ["spans", *(["last-words"] if alignment == "sliding" else [])]
    values += ["following"] if alignment == "sliding" and ends == "previous" else []
    chosen_values = draw(st.sampled_from(values))
    pointer = chosen_values != "spans" and draw(st.booleans())
    return {
        "prediction": "pointer" if pointer else "softmax",
        "size": length * draw(st.integers(1, 5)),
        "span": length,
        "alignment": alignment,
        "vectors": chosen,
        "ends": ends,
        "attention": draw(st.sampled_from(["additive", "linear", "bilinear"])),
        "attention_size": draw(st.sampled_from([None, 5])),
        "values": chosen_values,
        "residual": not pointer and draw(st.booleans()),
        "sentinel": draw(st.booleans()),
        "dropout": 0.0 if pointer else 0.2,
    }


def made(
    options: dict[str, Any], mixture: bool = False, dual: DualConfig | None = None
) -> tuple[ComposedModel, SpanBufferConfig]:
    model = buffered(MIXTURE if mixture else None, dual, gate=GATE, **options).double().eval()
    assert model.gated is not None and isinstance(model.gated.config, SpanBufferConfig)
    with torch.no_grad():  # so that spans, gates and attention differ
        for parameter in model.parameters():
            parameter.mul_(2)
    return model, model.gated.config


@pytest.mark.full
@settings(max_examples=60, deadline=None)
@given(
    options=buffers(),
    mixture=st.booleans(),
    dual=st.sampled_from([None, DualConfig(), DualConfig(direct=False)]),
    shuffled=st.booleans(),
    seed=st.integers(0, 1000),
)
def test_values_and_gradients_are_those_of_the_equations(
    options: dict[str, Any], mixture: bool, dual: DualConfig | None, shuffled: bool, seed: int
) -> None:
    torch.manual_seed(seed)
    model, config = made(options, mixture, dual)
    tokens = torch.randint(TYPES, (2, 11))
    expected, gates = probabilities(model, config, tokens, shuffled)
    read = shuffled_prediction if shuffled else ComposedModel.__call__
    prediction, _ = read(model, tokens, model.start(2))
    assert isinstance(prediction, Interpolation)
    torch.testing.assert_close(prediction.log_probs().exp(), expected, rtol=0, atol=1e-10)
    torch.testing.assert_close(prediction.log_gates()[0].exp(), gates, rtol=0, atol=1e-10)
    weights, parameters = torch.randn_like(expected), dict(model.named_parameters())
    wanted, actual = (
        torch.autograd.grad((p * weights).sum(), list(parameters.values()), allow_unused=True)
        for p in (expected, prediction.log_probs().exp())
    )
    for name, a, b in zip(parameters, wanted, actual, strict=True):
        zero = torch.zeros_like(parameters[name])  # nothing was attended to
        torch.testing.assert_close(zero if b is None else b, zero if a is None else a, rtol=0, atol=1e-9, msg=name)


@settings(max_examples=several(8, 30), deadline=None)
@given(options=buffers(), cuts=st.lists(st.integers(1, 8), min_size=1, max_size=8), seed=st.integers(0, 1000))
def test_a_buffer_that_spans_many_segments_reads_as_the_equations_do(
    options: dict[str, Any], cuts: list[int], seed: int
) -> None:
    torch.manual_seed(seed)
    model, config = made(options)
    tokens = torch.randint(TYPES, (2, sum(cuts)))
    expected, _ = probabilities(model, config, tokens)
    state, actual = model.start(2), []
    for piece in tokens.split(cuts, 1):
        prediction, state = model(piece, detach(state))
        actual.append(prediction.log_probs().exp())
    torch.testing.assert_close(torch.cat(actual, 1), expected, rtol=0, atol=1e-10)


@pytest.mark.parametrize("attention", ["additive", "linear", "bilinear"])
@pytest.mark.parametrize("steps", [1, 3, 5])
def test_a_saved_state_goes_on_to_the_same_bits(attention: Any, steps: int) -> None:
    torch.manual_seed(0)
    buffer = SpanBuffer(SpanBufferConfig(size=2, span=1, vectors="end", ends="present", attention=attention), 9, 6)
    embedding, state = torch.randn(TYPES, 6), buffer.start(4)
    for _ in range(6):
        hidden, tokens, outcomes = torch.randn(4, steps, 9), torch.randint(TYPES, (4, steps)), []
        for before in (state, map_state(lambda tensor: tensor.clone(memory_format=torch.contiguous_format), state)):
            output = buffer(hidden, tokens, embedding, before)
            assert output.vectors is not None
            gradients = torch.autograd.grad(output.vectors.square().sum(), list(buffer.parameters()))
            outcomes.append((output.vectors, *gradients))
        assert all(map(torch.equal, *outcomes))
        state = detach(output.state)


@settings(max_examples=several(12, 60), deadline=None)
@given(options=buffers(), cuts=st.lists(st.integers(1, 8), min_size=1, max_size=8), seed=st.integers(0, 1000))
def test_each_weight_of_the_attention_is_that_of_the_words_it_is_said_to_cover(
    options: dict[str, Any], cuts: list[int], seed: int
) -> None:
    """Each weight is the softmax over the equations' scores of spans, for any segmentation."""
    torch.manual_seed(seed)
    model, config = made(options)
    buffer = model.gated.auxiliary  # type: ignore[union-attr]
    assert isinstance(buffer, SpanBuffer)
    tokens, length = torch.randint(TYPES, (1, sum(cuts))), 1 if config.vectors == "words" else config.span
    states = head_states(model, tokens)[0]
    state, begun = model.start(1), 0
    for piece in tokens.split(cuts, 1):
        prediction, state = model(piece, state)
        assert isinstance(prediction, Interpolation) and prediction.attention is not None
        for time in range(piece.shape[1]):
            position, weights = begun + time, prediction.attention[0, time]
            covered = buffer.covered(position, begun)
            spans = spans_of(config, states, position)
            assert sorted(covered.values()) == [(end - length + 1, end) for end, _ in spans]
            if spans:
                expected = torch.softmax(torch.stack([score(model, config, states[position], s) for _, s in spans]), 0)
                actual = weights[sorted(covered, key=lambda place: covered[place])]
                torch.testing.assert_close(actual, expected, rtol=0, atol=1e-10)
            others = [place for place in range(len(weights)) if place not in covered]
            assert not weights[others].any()
        begun += piece.shape[1]


@pytest.mark.parametrize("width", [1, 5])
def test_the_gradient_of_additive_scores(width: int) -> None:
    torch.manual_seed(0)
    q, k, v = (torch.randn(*shape, dtype=torch.float64).requires_grad_() for shape in ((2, 5, 3), (2, 9, 3), (3,)))
    starts = [3, 1, 0]
    assert torch.autograd.gradcheck(lambda q, k, v: additive_scores(q, k, v, starts, width), (q, k, v))


def test_additive_scores_of_extreme_arguments_are_finite_and_right() -> None:
    at = torch.tensor([-1e4, -30.0, -1.0, 0.0, 1e-3, 2.0, 30.0, 1e4])
    q, k = at.view(1, -1, 1), torch.zeros(1, 1, 1)
    actual = additive_scores(q, k, torch.ones(1), [0], 1)[0, :, 0]
    torch.testing.assert_close(actual, torch.tanh(at), rtol=0, atol=2e-7)


def test_nothing_comes_of_a_buffer_that_holds_nothing() -> None:
    model = buffered(size=8, span=4).eval()
    tokens = torch.randint(TYPES, (2, 9))
    prediction, _ = model(tokens, model.start(2))
    gates = prediction.log_gates()[0].exp()
    assert (gates[:, :4] == 0).all() and (
        gates[:, 4:] > 0
    ).all()  # the first span of four ends at 3, and is seen from 4 on
    assert torch.equal(prediction.log_probs()[:, :4], prediction.p.log_probs()[:, :4])


@pytest.mark.parametrize("theta", [0.0, 0.5, 1.0])
def test_a_bilinear_pointer_begins_as_a_cache_with_its_theta(theta: float) -> None:
    options: dict[str, Any] = {
        "values": "following",
        "prediction": "pointer",
        "attention": "bilinear",
        "vectors": "words",
    }
    buffer = SpanBuffer(SpanBufferConfig(size=4, theta=theta, **options), 5, 5)
    assert torch.equal(buffer.query.weight, theta * torch.eye(5))


@pytest.mark.parametrize("power", range(-150, 1, 5))
def test_gradients_of_a_pointer_stay_finite_however_little_mass_there_is(power: int) -> None:
    scores = torch.tensor([[[0.0, float(power)]]], requires_grad=True)
    pointer = Pointer(None, scores.softmax(2), torch.tensor([[[3, 5]]]), TYPES)
    log_prob = pointer.log_prob(torch.tensor([[5]]))
    torch.logaddexp(log_prob, torch.tensor(-1.0)).sum().backward()
    assert scores.grad is not None and torch.isfinite(scores.grad).all()
    # Below the smallest number that has an inverse (1.2e-38, e^-87) there is nothing.
    assert log_prob.item() == (
        pytest.approx(power - math.log1p(math.exp(power)), abs=1e-4) if power > -87 else -math.inf
    )


def test_the_gate_is_blunter_in_training() -> None:
    model = auxiliary_softmax()
    tokens = torch.randint(TYPES, (2, 9))
    assert model.train()(tokens, model.start(2))[0].temperature == 100.0
    assert model.eval()(tokens, model.start(2))[0].temperature == 0.1


def test_a_shuffled_buffer_is_another_texts() -> None:
    torch.manual_seed(0)
    model = buffered(gate=GATE).double().eval()
    tokens = torch.randint(TYPES, (3, 9))
    changed = tokens.clone()
    changed[0] = (changed[0] + 1) % TYPES
    before, after = (shuffled_prediction(model, t, model.start(3))[0] for t in (tokens, changed))
    same = (before.q.log_probs() == after.q.log_probs()).all(2)
    assert same[2].all() and not same[1, 2:].any()  # row 1 remembers row 0
    assert torch.equal(before.p.log_probs()[1:], after.p.log_probs()[1:])


@pytest.mark.parametrize(
    ("options", "told"),
    [
        ({"size": 10, "span": 4}, "must be a multiple of model.buffer.span, which is 4, and 10 is not; use 8"),
        ({"size": 3, "span": 4}, "use 4"),
        ({"size": 4, "span": 1}, "no difference"),
        ({"size": 4, "span": 2, "values": "following", "ends": "present"}, "is unknown if the span ends"),
        ({"size": 4, "span": 2, "prediction": "pointer"}, "points to words"),
        ({"size": 4, "span": 2, "values": "following", "prediction": "pointer", "residual": True}, "no residual"),
        (
            {"size": 4, "span": 2, "values": "following", "prediction": "pointer", "theta": 0.1},
            "theta is the initial scale",
        ),
        ({"size": 4, "span": 2, "attention": "bilinear", "theta": 0.1}, "theta is the initial scale"),
        ({"size": 4, "span": 2, "alignment": "fixed", "vectors": "words"}, "stores spans only"),
        ({"size": 4, "span": 2, "alignment": "fixed", "values": "last-words"}, "stores spans only"),
    ],
)
def test_settings_that_do_not_go_together(options: dict[str, Any], told: str) -> None:
    with pytest.raises(UserError, match=told):
        SpanBuffer(SpanBufferConfig(**options), 4, 4)


class Largest(TorchDispatchMode):
    """The most elements of any tensor that came out of an operation."""

    elements = 0

    def __torch_dispatch__(self, operation, kinds, arguments=(), options=None):
        made = operation(*arguments, **(options or {}))
        for tensor in made if isinstance(made, tuple | list) else (made,):
            if isinstance(tensor, torch.Tensor):
                self.elements = max(self.elements, tensor.numel())
        return made


@pytest.mark.parametrize("alignment", ["sliding", "fixed"])
def test_no_intermediate_is_of_positions_times_spans_times_attention(alignment: Any) -> None:
    time, spans, size = 20, 64, 32
    buffer = SpanBuffer(SpanBufferConfig(size=spans * 2, span=2, alignment=alignment), size, size)
    hidden, tokens = torch.randn(2, time, size), torch.zeros(2, time, dtype=torch.long)
    with Largest() as largest:
        buffer(hidden, tokens, torch.zeros(1), buffer.start(2)).vectors.sum().backward()
    assert 2 * time * size <= largest.elements < 2 * time * spans * size / 4


@pytest.mark.parametrize("kind", [SpanBufferConfig, AuxiliarySoftmaxConfig])
@pytest.mark.parametrize("rate", [None, 0.0, 0.75])
def test_q_is_trained_with_the_dropout_of_p_unless_it_has_its_own(
    kind: type[SpanBufferConfig] | type[AuxiliarySoftmaxConfig], rate: float | None
) -> None:
    """Count the share of zeros among the inputs of the head; those for p come first."""
    torch.manual_seed(1)
    settings: dict[str, Any] = {"size": 6, "span": 2} if kind is SpanBufferConfig else {}
    model = composed(LSTMConfig(layers=1, hidden=8, output_dropout=0.5), buffer=kind(dropout=rate, **settings))
    tokens, zeros = torch.randint(TYPES, (400, 5)), []
    model.head.register_forward_pre_hook(lambda _, inputs: zeros.append((inputs[0][:, -1] == 0).double().mean().item()))
    model.train()(tokens, model.start(400))
    assert zeros == [pytest.approx(0.5, abs=0.06), pytest.approx(0.5 if rate is None else rate, abs=0.06)]


def test_a_dual_connection_tells_q_its_dropout() -> None:
    dual = DualConfig(output_dropout=0.25)
    model = composed(LSTMConfig(layers=1, hidden=8, output_dropout=0.5), dual=dual, buffer=AuxiliarySoftmaxConfig())
    assert model.gated is not None and model.gated.dropout == 0.25
