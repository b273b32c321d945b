"""Compare dynamic evaluation and its statistics with naive loops, and check that the loaded model stays untouched."""

import copy
import dataclasses
import gc
import math
import weakref
from itertools import product
from typing import Any

import numpy as np
import pytest
import torch
from adapting import BASE, statistics, text
from hypothesis import given, settings
from hypothesis import strategies as st
from small_models import dual, lstm, mixture
from tiers import fast_then_full, several
from torch import Tensor, nn

from backstory.config.readers import DynamicSettings, TemperedSettings
from backstory.evaluation import Audit, block_count, read
from backstory.models import ComposedModel, detach
from backstory.readers import Reader
from backstory.readers.dynamic import DynamicEvaluation
from backstory.readers.gradient_statistics import collect, load_statistics, save_statistics
from backstory.readers.moving_weights import MovingWeights
from backstory.readers.tempered import TemperedReader
from backstory.runs.run import weights_hash
from backstory.utils.errors import NonFiniteError, UserError

MODELS = {"lstm": lstm, "mixture": mixture}


@pytest.mark.parametrize("model", MODELS)
def test_a_segment_that_was_learned_is_freed(model: str) -> None:
    """Else a long text would fill the memory: what a backward pass leaves must not hold the graph that it came from."""
    built = MODELS[model]()
    reader = DynamicEvaluation(built, DynamicSettings(segment=5), statistics(built))
    reader.start(1)
    ids = torch.from_numpy(text(20).astype(np.int64))
    held = []
    with torch.no_grad():
        for begin in (0, 5, 10):
            prediction = reader.predict(ids[None, begin : begin + 5])
            assert prediction.activations is not None
            held.append(weakref.ref(prediction.activations.embedded))
            prediction.log_prob(ids[None, begin + 1 : begin + 6])
            del prediction
            reader.observe(ids[None, begin + 1 : begin + 6])
    gc.collect()
    assert [one() for one in held] == [None] * 3


def naive(
    model: ComposedModel, ids: np.ndarray, how: DynamicSettings, rms: dict[str, Tensor], temperature: float = 1.0
) -> list[float]:
    """Nats of every token, by a plain loop: one token at a time, then a step over the parameters one by one, in float64.

    The temperature is on the scores only.
    """
    pupil = copy.deepcopy(model).double().eval()
    still = {n: p.detach().clone() for n, p in pupil.named_parameters()}
    if how.normalization == "tensors":
        mean = sum(r.mean() for r in rms.values()) / max(1, len(rms))
    else:
        mean = sum(r.sum() for r in rms.values()) / max(1, sum(r.numel() for r in rms.values()))
    optimizer = torch.optim.NAdam(pupil.parameters(), how.rate, (how.beta1, 0.999), how.epsilon)
    state, found, waiting = pupil.start(1), [], []
    for previous, token in zip([0, *ids[:-1]], ids, strict=True):
        prediction, state = pupil(torch.tensor([[int(previous)]]), state)
        waiting.append(-torch.log_softmax(prediction.log_probs(), 2)[0, 0, int(token)])
        power = prediction.log_probs().detach()[0, 0].exp() ** (1 / temperature)
        found.append(-math.log(power[int(token)] / power.sum()))
        if len(waiting) < how.segment:
            continue
        pupil.zero_grad()
        torch.stack(waiting).mean().backward()
        if how.clip:
            nn.utils.clip_grad_norm_(pupil.parameters(), how.clip)
        with torch.no_grad():
            for name, p in pupil.named_parameters():
                share = how.decay if how.rule != "rms" else (how.decay * rms[name] / mean).clamp(max=1)
                p += share * (still[name] - p)
                if how.rule == "sgd":
                    p -= how.rate * p.grad
                elif how.rule == "rms":
                    p -= how.rate * p.grad / (rms[name] + how.epsilon)
        if how.rule == "nadam":
            optimizer.step()
        state, waiting = detach(state), []
    return found


def scores(reader: Reader, ids: np.ndarray, block: int | None = None, reset: bool = True) -> list[float]:
    found: list[Tensor] = []
    read(reader, ids, 0, block=block, reset=reset, each=lambda piece, prediction, log_prob: found.append(-log_prob[0]))
    return torch.cat(found).tolist()


@pytest.mark.full
@settings(max_examples=25, deadline=None)
@given(
    st.sampled_from(sorted(MODELS)),
    st.sampled_from(["rms", "sgd", "nadam"]),
    st.floats(1e-3, 0.03),
    st.floats(0, 0.5),
    st.floats(1e-3, 1e-1),
    st.integers(1, 7),
    st.sampled_from([0.0, 0.05]),
    st.sampled_from([0.0, 0.5]),
    st.sampled_from(["weights", "tensors"]),
    st.integers(1, 40),
)
def test_it_equals_a_plain_loop(
    name: str,
    rule: Any,
    rate: float,
    decay: float,
    epsilon: float,
    segment: int,
    clip: float,
    beta1: float,
    normalization: Any,
    length: int,
) -> None:
    model = MODELS[name]()
    how = DynamicSettings(rule, rate, decay, epsilon, segment, "all", clip, beta1, normalization)
    found = statistics(model)
    rms = {n: v.double().sqrt() for n, v in found.mean_square.items()}
    ids = text(length)
    expected = naive(model, ids, how, rms)
    assert scores(DynamicEvaluation(model, how, found), ids) == pytest.approx(expected, rel=1e-5, abs=1e-5)
    # Blocks that are shorter than a segment wait for each other.
    pieces = scores(DynamicEvaluation(model, how, found), ids, block=1)
    assert pieces == pytest.approx(expected, rel=1e-5, abs=1e-5)


@pytest.mark.full
@settings(max_examples=10)
@given(
    name=st.sampled_from(sorted(MODELS)),
    rule=st.sampled_from(["rms", "nadam"]),
    temperature=st.floats(0.5, 2.0),
    length=st.integers(1, 40),
)
def test_a_temperature_around_it_is_no_part_of_what_it_learns(
    name: str, rule: Any, temperature: float, length: int
) -> None:
    model, ids = MODELS[name](), text(length)
    how, found = DynamicSettings(rule, 0.01, 0.01, 0.01, 4, clip=0.5), statistics(model)
    rms = {n: v.double().sqrt() for n, v in found.mean_square.items()}
    inner = DynamicEvaluation(model, how, found)
    tempered = scores(TemperedReader(inner, TemperedSettings(temperature)), ids)
    assert tempered == pytest.approx(naive(model, ids, how, rms, temperature), rel=1e-5, abs=1e-5)
    alone = DynamicEvaluation(model, how, found)
    scores(alone, ids)
    assert torch.equal(inner.weights.delta, alone.weights.delta)


@pytest.mark.parametrize("rule", ["rms", "sgd", "nadam"])
def test_it_goes_on_after_another_text_from_the_weights_as_they_stand(rule: Any) -> None:
    """Reading after another text equals reading both as one, if the first ends with the start token."""
    model, how = lstm(), DynamicSettings(rule, 0.01, 0.05, 0.01, 4, clip=0.5)
    before, ids, found = np.append(text(39, seed=1), 0).astype(np.uint16), text(30), statistics(model)
    rms = {n: v.double().sqrt() for n, v in found.mean_square.items()}
    reader = DynamicEvaluation(model, how, found)
    scores(reader, before)
    after = scores(reader, ids, reset=False)
    assert after == pytest.approx(naive(model, np.append(before, ids), how, rms)[40:], rel=1e-5, abs=1e-5)
    assert after != pytest.approx(scores(reader, ids), rel=1e-2)


@pytest.mark.parametrize("name", MODELS)
def test_statistics_equal_a_plain_loop(name: str) -> None:
    model, ids = MODELS[name](), text(203)
    found = collect(model, ids, 0, batch_size=4, segment=3)
    pupil = copy.deepcopy(model).double()
    squares = {n: torch.zeros_like(p) for n, p in pupil.named_parameters()}
    length, count, state = math.ceil(203 / 4), 0, pupil.start(4)
    inputs = np.concatenate([[0], ids[:-1]]).astype(np.int64)
    for start in range(0, length, 3):
        rows = [range(r * length + start, min(r * length + start + 3, (r + 1) * length)) for r in range(4)]
        if any(len(places) < 3 or places[-1] >= len(ids) for places in rows):
            break
        tokens = torch.tensor([[inputs[i] if i else 0 for i in p] for p in rows])
        # A row's first input is the last token of the row before, or what comes before the text.
        targets = torch.tensor([[int(ids[i]) for i in p] for p in rows])
        prediction, state = pupil(tokens, detach(state))
        pupil.zero_grad()
        (-prediction.log_prob(targets).mean()).backward()
        for n, p in pupil.named_parameters():
            assert p.grad is not None
            squares[n] += p.grad**2
        count += 1
    assert found.collected.minibatches == count > 10
    for n, square in squares.items():
        torch.testing.assert_close(found.mean_square[n].double(), square / count, rtol=1e-4, atol=1e-9)


@pytest.mark.parametrize("scale", [1e38, 1e22])
def test_statistics_of_a_model_that_broke_down_are_refused(scale: float) -> None:
    """Their gradients are nan, or too large to be squared."""
    model = lstm()
    with torch.no_grad():
        model.embedding.weight.mul_(scale)
    with pytest.raises(
        NonFiniteError, match=r"^the squared gradients of \S+ are not finite numbers: the weights broke"
    ):
        collect(model, text(400), 0, batch_size=4, segment=5)


def test_the_information_of_a_softmax_is_what_is_expected_of_its_rows() -> None:
    model, ids = lstm(), text(400)
    found = collect(model, ids, 0, batch_size=4, segment=5)
    # E over targets of (d -log p_y / d w)^2, by enumeration of all targets, at the minibatches that are looked at.
    from backstory.evaluation import blocks
    from backstory.readers.gradient_statistics import EVERY

    total, tokens, state = torch.zeros_like(model.head.weight), 0, model.start(4)
    for block in blocks(ids, 0, 4, 5, torch.device("cpu")):
        with torch.no_grad():
            prediction, state = model(block.tokens, state)
        if block.index % EVERY == 0 and bool(block.scored.all()):
            p, h = prediction.log_probs().exp().flatten(0, 1), prediction.activations.head_input.flatten(0, 1)
            for target in range(p.shape[1]):
                error = p - torch.eye(p.shape[1])[target]
                total += torch.einsum("n,nv,nd->vd", p[:, target], error**2, h**2)
            tokens += len(h)
    torch.testing.assert_close(found.information["embedding.weight"], total / tokens, rtol=1e-4, atol=1e-8)


@pytest.mark.parametrize(
    ("moving", "rule"),
    fast_then_full(
        product(["all", "last:1", "output", "low-rank:2"], ["rms", "sgd", "nadam"]),
        [("all", "rms"), ("last:1", "sgd"), ("output", "nadam"), ("low-rank:2", "rms")],
    ),
)
def test_any_choice_of_weights_is_honest_and_leaves_the_model(model: ComposedModel, moving: str, rule: Any) -> None:
    before = weights_hash(model)
    how = DynamicSettings(rule, 0.01, 0.01, 0.01, 5, moving, clip=0.1 if rule == "nadam" else 0.0)
    reader = DynamicEvaluation(model, how, statistics(model, moving if "low" in moving else "all"))
    ids = text(90)
    static = read(reader, ids[:5], 0).nats  # nothing has moved yet
    places = several(3, 6)
    audit = Audit(block_count(len(ids), 1, 5), places, seed=1)
    moved = read(reader, ids, 0, observer=audit)
    assert audit.report.failures == [] and audit.report.places == places
    assert weights_hash(model) == before and not any(p.grad is not None for p in model.parameters())
    assert reader.weights.delta.abs().max() > 0
    assert moved.nats != static
    chosen = set(reader.weights.names)
    own = dict(reader.weights.model.named_parameters())
    for name, parameter in model.named_parameters():
        if moving != "low-rank:2" and name not in chosen:
            assert own[name].data_ptr() == parameter.data_ptr()  # what does not move is not copied


@pytest.mark.parametrize("clip", [0.0, 0.05])
@pytest.mark.parametrize("own_from", [1, 1000], ids=["own", "library"])
def test_gradients_in_factors_move_the_weights_as_whole_ones_do(
    own_from: int, clip: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    from backstory.models.kernels import recurrence
    from backstory.readers import dynamic, moving_weights

    monkeypatch.setattr(recurrence, "OWN_FROM", own_from)
    model = lstm()
    how, collected, ids = DynamicSettings("rms", 0.02, 0.1, 0.01, clip=clip), statistics(model), text(23)
    rms = {n: v.double().sqrt() for n, v in collected.mean_square.items()}
    expected, moved = naive(model, ids, how, rms), []
    for few, chunk in ((32, 1 << 16), (32, 17), (0, 1 << 16)):
        monkeypatch.setattr(dynamic, "MOST_FACTORED", few)
        monkeypatch.setattr(moving_weights, "CHUNK", chunk)
        reader = DynamicEvaluation(model, how, collected)
        assert scores(reader, ids) == pytest.approx(expected, rel=1e-5, abs=1e-5)
        assert scores(reader, ids, block=1) == pytest.approx(expected, rel=1e-5, abs=1e-5)
        moved.append(reader.weights.delta.clone())
    for delta in moved[1:]:
        torch.testing.assert_close(delta, moved[0], rtol=1e-4, atol=1e-6)


def test_gradients_that_share_memory_are_clipped_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """The layer for many units adds the two biases, which then have one gradient."""
    from backstory.models.kernels import recurrence

    monkeypatch.setattr(recurrence, "OWN_FROM", 1)
    model, how, ids = lstm(), DynamicSettings("sgd", 1.0, 0.0, segment=5, clip=0.01), text(5)
    reader = DynamicEvaluation(model, how)
    read(reader, ids, 0)
    assert torch.linalg.vector_norm(reader.weights.delta) == pytest.approx(0.01, rel=1e-3)
    assert scores(DynamicEvaluation(model, how), text(30)) == pytest.approx(naive(model, text(30), how, {}), rel=1e-5)


@pytest.mark.parametrize(("tokens", "batch", "minibatches"), [(1700, 100, 3), (750, 100, 0), (499, 100, 0), (23, 8, 0)])
def test_statistics_have_whole_minibatches_or_none(tokens: int, batch: int, minibatches: int) -> None:
    counts: list[tuple[int, int]] = []
    options: dict[str, Any] = {
        "batch_size": batch,
        "segment": 5,
        "progress": lambda done, of: counts.append((done, of)),
    }
    if not minibatches:
        with pytest.raises(UserError, match="too few for minibatches"):
            collect(lstm(), text(tokens), 0, **options)
        return
    found = collect(lstm(), text(tokens), 0, **options)
    assert found.collected.minibatches == minibatches and found.collected.tokens == minibatches * batch * 5
    assert counts == [(done, minibatches) for done in range(1, minibatches + 1)]
    assert all(bool(torch.isfinite(v).all()) for v in found.mean_square.values())


def test_which_weights_move() -> None:
    model = lstm()
    names = [n for n, _ in model.named_parameters()]
    assert MovingWeights(model).names == names
    assert MovingWeights(model, "output").names == ["embedding.weight", "head.bias"]  # tied
    assert MovingWeights(model, "last:1").names == [n for n in names if n.startswith(("core.layers.1", "head"))]
    assert len(MovingWeights(model, "low-rank:2").names) == 5  # the tied matrix once, two of each layer
    assert MovingWeights(model, "output").memory < MovingWeights(model).memory
    for wrong in ("last:3", "last:0", "some", "low-rank:0", "low-rank:x"):
        with pytest.raises(UserError):
            MovingWeights(model, wrong)


def test_low_rank_weights_begin_at_the_model_s_own_and_move_in_few_directions() -> None:
    model, ids = lstm(), text(60)
    reader = DynamicEvaluation(model, DynamicSettings("sgd", 0.1, 0.0, moving="low-rank:2"))
    read(reader, ids, 0)
    moved = reader.weights.model.core.layers[0].weight_hh - model.core.layers[0].weight_hh  # type: ignore[union-attr]
    assert torch.linalg.matrix_rank(moved.detach(), tol=1e-6) == 2
    reader.start(1)
    state = model.start(1)
    tokens = torch.from_numpy(ids.astype(np.int64))[None]
    torch.testing.assert_close(reader.weights.model(tokens, state)[0].log_probs(), model(tokens, state)[0].log_probs())


@torch.no_grad()
def test_low_rank_weights_that_have_not_moved_are_the_model_s_own_in_bfloat16() -> None:
    model, tokens = dual(), torch.from_numpy(text(60).astype(np.int64))[None]
    still = MovingWeights(model, "low-rank:2").model
    with torch.autocast("cpu", torch.bfloat16):
        expected, _ = model(tokens, model.start(1))
        prediction, _ = still(tokens, still.start(1))
        assert torch.equal(prediction.log_probs(), expected.log_probs())


@pytest.mark.full
def test_starting_anew_goes_back_to_the_trained_weights() -> None:
    model = lstm()
    reader = DynamicEvaluation(model, BASE, statistics(model))
    first = read(reader, text(50), 0).nats
    read(reader, text(400, seed=1), 0)
    assert read(reader, text(50), 0).nats == first
    read(reader, text(400, seed=1), 0)
    assert read(reader, text(50), 0, reset=False).nats != first


def test_statistics_are_of_the_model_they_were_collected_of(tmp_path: Any) -> None:
    model = lstm()
    found = statistics(model)
    save_statistics(tmp_path, found)
    again = load_statistics(tmp_path, weights_hash(model), "all", str(tmp_path))
    assert all(torch.equal(again.mean_square[n], v) for n, v in found.mean_square.items())
    assert again.collected == found.collected
    with torch.no_grad():
        model.head.bias.add_(1e-3)
    with pytest.raises(UserError, match="statistics of other weights"):
        load_statistics(tmp_path, weights_hash(model), "all", str(tmp_path))
    with pytest.raises(UserError, match="--moving low-rank:2"):
        load_statistics(tmp_path, weights_hash(model), "low-rank:2", str(tmp_path))
    (tmp_path / "statistics" / "mean_square.safetensors").write_bytes(b"x")
    with pytest.raises(UserError, match="collect them with"):
        load_statistics(tmp_path, weights_hash(lstm()), "all", str(tmp_path))


def test_statistics_that_fit_each_other_but_not_the_model_are_refused() -> None:
    model = lstm()
    found = statistics(model)
    name = next(iter(found.mean_square))
    for other in (found.mean_square[name][:-1], found.mean_square[name].long()):
        wrong = dataclasses.replace(found, mean_square={**found.mean_square, name: other})
        with pytest.raises(UserError, match="do not fit the model"):
            DynamicEvaluation(model, BASE, wrong)
