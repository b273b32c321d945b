"""The meta-learner: untrained it is dynamic evaluation, its gradient is the whole graph's, and training lowers the loss."""

import weakref
from typing import Any

import numpy as np
import pytest
import torch
from adapting import BASE, gates, statistics, text
from small_models import lively, lstm, mixture
from torch import Tensor

from backstory.config import EmbeddingConfig, LSTMConfig, ModelConfig, SoftmaxConfig
from backstory.config.readers import DynamicSettings, GateSettings, LearnedSettings, MetaTraining
from backstory.evaluation import read
from backstory.models import ComposedModel, detach
from backstory.models.kernels import compiled
from backstory.readers import meta_training
from backstory.readers.dynamic import DynamicEvaluation, RootMeanSquare
from backstory.readers.learned import Features, GateNetwork, LearnedReader, Workspace, load_learned, save_learned
from backstory.readers.meta_training import (
    Recording,
    SpreadReader,
    backward,
    follow,
    measure_spread,
    read_segments,
    train_gates,
)
from backstory.readers.moving_weights import MovingWeights
from backstory.runs.run import weights_hash
from backstory.storage.checkpoint import read_checkpoint, write_checkpoint
from backstory.utils.errors import UserError


@pytest.mark.full
@pytest.mark.parametrize(("tied", "decay"), [(True, 0.0), (False, 0.05), (True, 0.9)])
@pytest.mark.usefixtures("torch_passes")
def test_untrained_it_is_dynamic_evaluation_bit_for_bit(model: ComposedModel, tied: bool, decay: float) -> None:
    base = DynamicSettings(rate=0.01, decay=decay, epsilon=1e-2, segment=4)
    found = statistics(model)
    ids = text(60)
    plain = DynamicEvaluation(model, base, found)
    learned = LearnedReader(model, gates(model, GateSettings(tied=tied), base), found)
    assert read(plain, ids, 0).nats == read(learned, ids, 0).nats
    assert torch.equal(plain.weights.delta, learned.weights.delta)
    moved = LearnedReader(model, gates(model, GateSettings(tied=tied), base, size=0.5), found)
    assert read(moved, ids, 0).nats != read(plain, ids, 0).nats


def test_its_steps_can_be_scaled(model: ComposedModel) -> None:
    """An untrained one with scales is dynamic evaluation with other settings; what it reads of the weights stays."""
    base = DynamicSettings(rate=0.01, decay=0.05, epsilon=1e-2, segment=4)
    found, ids = statistics(model), text(60)
    scaled = LearnedReader(model, gates(model, base=base), found, scales=LearnedSettings(rate=2.0, decay=0.5))
    other = DynamicEvaluation(model, DynamicSettings(rate=0.02, decay=0.025, epsilon=1e-2, segment=4), found)
    assert read(scaled, ids, 0).nats == pytest.approx(read(other, ids, 0).nats, rel=1e-5)
    plain = LearnedReader(model, gates(model, base=base), found)
    grad, delta = torch.randn(9), torch.randn(9)
    place = slice(3, 12)
    assert torch.equal(scaled.gated.features(grad, delta, place), plain.gated.features(grad, delta, place))
    assert read(scaled.fork(), ids, 0).nats == read(scaled, ids, 0).nats


@pytest.mark.parametrize("spread", [(-7.0, 2.5), (0.0, 40.0)])
def test_features_and_gates_are_what_they_are_written_as(spread: tuple[float, float]) -> None:
    """Straightforward version, with logarithms clamped afterwards, and gates by tanh."""
    rms, fisher = torch.rand(50) + 1e-3, torch.rand(50)
    base = RootMeanSquare(DynamicSettings(rate=0.01, epsilon=1e-2), rms)
    grad, delta = (torch.randn(50) * 10.0 ** torch.randint(-12, 3, (50,)) for _ in range(2))
    grad[:5], delta[3:8] = 0.0, 0.0
    rows = [
        ((grad / (10 * (rms + 1e-2))).abs().clamp(min=1e-30).log() - spread[0]) / spread[1],
        grad.sign(),
        (delta / (200 * base.rate * rms)).abs().clamp(min=1e-30).log(),
        grad.sign() * delta.sign(),
        *((values.log() - values.log().mean()) / values.log().std() for values in (rms, fisher)),
    ]
    features = Features(base, fisher, spread)(grad, delta, slice(0, 50))
    torch.testing.assert_close(features, torch.stack(rows).clamp(-3, 3), rtol=1e-4, atol=1e-4)
    network = GateNetwork(GateSettings(), 2)
    with torch.no_grad():
        network.output.normal_()
        hidden = (network.weight @ features + (network.bias[1] + 0.5 * network.loss)[:, None]).relu()
        o = network.output @ hidden + network.output_bias[:, None]
        c = network(features, torch.tensor(0.5), 1)
        torch.testing.assert_close(c, 3 * torch.tanh(o / 3), rtol=1e-4, atol=1e-5)
        room = Workspace(torch.empty(6, 50), torch.empty(8, 50), torch.empty(2, 50))
        assert network(features, torch.tensor(0.5), 1, room) is room.c and torch.equal(room.c, c)


@pytest.mark.skipif(compiled.library() is None, reason="no C compiler here")
@pytest.mark.parametrize("segment", [5, 20])
@pytest.mark.parametrize("tied", [True, False])
def test_it_learns_the_same_without_a_compiler(
    model: ComposedModel, segment: int, tied: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Over two segments. Later, readings part: the sign of a gradient is a feature, also of one that is 0 but for rounding."""
    ids, passes = text(2 * segment), compiled.library()
    found, base = statistics(model), DynamicSettings(rate=0.003, decay=0.01, segment=segment)
    network, results = gates(model, GateSettings(tied=tied), base, size=0.5), []
    for available in (passes, None):
        monkeypatch.setattr(compiled, "library", lambda there=available: there)
        reader = LearnedReader(model, network, found)
        results.append((read(reader, ids, 0).nats, reader.weights.delta.clone()))
    (nats, delta), (plain, reference) = results
    assert nats == pytest.approx(plain, rel=1e-6)
    near = torch.isclose(delta, reference, rtol=1e-3, atol=1e-5)
    assert near.double().mean() > 0.99 and reference.abs().max() > 1e-3


@pytest.mark.full
def test_tensors_may_share_their_bias_and_do_without_the_fisher_information(model: ComposedModel) -> None:
    found, ids, place = statistics(model), text(60), slice(3, 12)
    grad, delta, features = torch.randn(9), torch.randn(9), torch.rand(6, 9)
    shared = GateSettings(per_tensor=False, fisher=False)
    plain, alike = (LearnedReader(model, gates(model, settings, size=0.5), found) for settings in (None, shared))
    own, one = plain.gated.network, alike.gated.network
    told = torch.tensor(0.5)
    assert len(one.bias) == 1 < len(own.bias)
    assert torch.equal(one(features, told, 0), one(features, told, 1))
    assert not torch.equal(own(features, told, 0), own(features, told, 1))
    assert plain.gated.features(grad, delta, place)[5].any() and not alike.gated.features(grad, delta, place)[5].any()
    assert read(alike, ids, 0).nats != read(plain, ids, 0).nats
    for learned, fits in ((alike.learned, True), (plain.learned, False)):
        other = lively(ModelConfig(EmbeddingConfig(7), LSTMConfig(layers=3, hidden=9), SoftmaxConfig(tied=False)))
        if fits:
            assert read(LearnedReader(other, learned, statistics(other)), ids, 0).nats > 0
        else:
            with pytest.raises(UserError, match="trained for other weights"):
                LearnedReader(other, learned, statistics(other))


@pytest.mark.full
@pytest.mark.usefixtures("torch_passes")
def test_weights_that_are_not_touched_do_not_set_the_scale() -> None:
    """An untied embedding has no gradient but for the words of the segment."""
    config = ModelConfig(EmbeddingConfig(7), LSTMConfig(layers=2, hidden=9), SoftmaxConfig(tied=False))
    model = lively(config)
    mean, deviation = measure_spread(SpreadReader(model, BASE, statistics(model)), text(200), 0)
    assert -12 < mean < 5 and 0.3 < deviation < 5
    found = statistics(model)
    assert read(LearnedReader(model, gates(model), found), text(60), 0).nats == pytest.approx(
        read(DynamicEvaluation(model, BASE, found), text(60), 0).nats, abs=0
    )


def whole_graph(reader: LearnedReader, model: ComposedModel, ids: np.ndarray, steps: int) -> Tensor:
    """The mean loss of the segments, with the whole graph through the displacements; gradients are data (first order)."""
    gated, weights, base = reader.gated, reader.weights, reader.settings
    network = gated.network
    delta, state, mean, losses = torch.zeros_like(weights.delta).requires_grad_(), model.start(1), None, []
    theta_0 = torch.cat([p.flatten() for p in weights.static])
    for t in range(steps):
        theta = theta_0 + delta
        each = zip(weights.names, weights.regions, weights.static, strict=True)
        named = {name: theta[region].view_as(static) for name, region, static in each}
        at = t * base.segment
        before = [0] if t == 0 else ids[at - 1 : at]
        piece = torch.from_numpy(np.concatenate([before, ids[at : at + base.segment]]).astype(np.int64))[None]
        prediction, state = torch.func.functional_call(model, named, (piece[:, :-1], detach(state)))
        loss = -prediction.log_prob(piece[:, 1:]).mean()
        losses.append(loss)
        (g,) = torch.autograd.grad(loss, theta, retain_graph=True)
        told = loss.detach()
        mean = told if mean is None else mean
        relative, mean = (told - mean).clamp(-2, 1), mean + 0.05 * (told - mean)
        parts = []
        for i, place in enumerate(weights.regions):
            features = gated.features(g[place], delta.detach()[place].contiguous(), place)
            parts.append(network(features, relative, i))
        c = torch.cat(parts, 1)
        r, i = (gated.base.decay * c[1].exp()).clamp(max=1), gated.base.rate * c[0].exp()
        if network.settings.tied:
            delta = (1 - r) * delta - i * g
        else:
            z = (gated.base.decay * c[2].exp()).clamp(max=1)
            theta = (1 - r) * (theta_0 + delta) - i * g + z * theta_0  # eq. 3 as it is printed
            delta = theta - theta_0
    return torch.stack(losses).mean()


@pytest.mark.parametrize("tied", [True, False])
@pytest.mark.parametrize("make", [lstm, mixture])
def test_the_adjoint_is_the_gradient_of_the_whole_graph(make: Any, tied: bool) -> None:
    model, steps, ids = make(), 6, text(24)
    base = DynamicSettings(rate=0.02, decay=0.3, epsilon=1e-2, segment=4)
    found = statistics(model)
    learned = gates(model, GateSettings(hidden=5, tied=tied), base, size=0.3)
    reader = Recording(model, learned, found)
    whole = whole_graph(LearnedReader(model, learned, found), model, ids, steps)
    expected = torch.autograd.grad(whole, list(learned.network.parameters()))
    assert all(g.abs().max() > 0 for g in expected)

    def measured(offset: int, every: int) -> list[Tensor]:
        learned.network.zero_grad()
        reader.start(1)
        reader.unrolled = follow(reader.weights, offset, every, steps)
        read_segments(reader, ids, 0, 0, steps)
        assert sum(m.nats for m in reader.unrolled.updates) / steps == pytest.approx(whole.item(), rel=1e-4)
        backward(reader, reader.unrolled, every)
        return [p.grad.clone() for p in learned.network.parameters() if p.grad is not None]

    for found_, wanted in zip(measured(0, 1), expected, strict=True):
        torch.testing.assert_close(found_, wanted, rtol=2e-3, atol=2e-5 * wanted.abs().max().item())
    # The subsets of every third weight have it as their mean: the estimate is unbiased.
    thirds = [measured(offset, 3) for offset in range(3)]
    for wanted, *three in zip(expected, *thirds, strict=True):
        mean = torch.stack(three).mean(0)
        torch.testing.assert_close(mean, wanted, rtol=2e-3, atol=2e-5 * wanted.abs().max().item())


def test_every_weight_is_followed_once() -> None:
    reader = LearnedReader(lstm(), gates(lstm()), statistics(lstm()))
    seen = torch.zeros(len(reader.weights))
    for offset in range(7):
        unrolled = follow(reader.weights, offset, 7, 1)
        seen[unrolled.indices] += 1
        for tensor, where, inside in unrolled.parts:
            start = reader.weights.regions[tensor].start
            assert torch.equal(unrolled.indices[where], start + inside)
        assert sum(len(p) for *_, p in unrolled.parts) == len(unrolled.indices)
    assert bool((seen == 1).all())


@pytest.mark.full
def test_training_lowers_the_loss_of_what_it_reads() -> None:
    model = lstm()
    found, ids = statistics(model), np.tile(text(40, seed=8), 15)
    base = DynamicSettings(rate=1e-3, decay=0.05, epsilon=1e-2, segment=5)
    before = read(DynamicEvaluation(model, base, found), ids, 0).nats
    told: list[float] = []
    training = MetaTraining(steps=10, every=10, stream=500, streams=3, sample=2, learning_rate=0.1)
    learned = train_gates(
        model, found, ids, 0, base, GateSettings(), training, report=lambda tokens, nats: told.append(nats)
    )
    assert len(told) == 30
    after = read(LearnedReader(model, learned, found), ids, 0).nats
    assert after < before - 0.05  # a text that repeats itself wants larger steps than it was given


def test_training_begins_with_the_numbers_of_its_seed_and_takes_none_of_the_caller() -> None:
    model, ids = lstm(), text(60)
    training = MetaTraining(steps=2, every=2, stream=20, streams=1, sample=2, learning_rate=1e-30, seed=3)
    before = torch.get_rng_state()
    learned = train_gates(model, statistics(model), ids, 0, BASE, GateSettings(), training)
    assert torch.equal(torch.get_rng_state(), before)
    torch.manual_seed(3)
    begun = GateNetwork(GateSettings(), len(list(model.parameters())))
    for name in ("weight", "loss", "bias"):  # so small a rate moves only what is 0
        assert torch.equal(getattr(learned.network, name), getattr(begun, name))


def test_a_stream_may_begin_at_any_place_where_it_fits(monkeypatch: pytest.MonkeyPatch) -> None:
    model, ids, begun = lstm(), text(10), []
    read_on = meta_training.read_segments

    def noted(reader: LearnedReader, ids: np.ndarray, first: int, start: int, segments: int) -> None:
        if isinstance(reader, Recording):
            begun.append(start)
        read_on(reader, ids, first, start, segments)

    monkeypatch.setattr(meta_training, "read_segments", noted)
    training = MetaTraining(steps=2, every=2, stream=8, streams=12, sample=2)
    train_gates(model, statistics(model), ids, 0, BASE, GateSettings(), training)
    assert set(begun) == {0, 1, 2}  # of 10 tokens, 8 at a time


def test_the_model_is_copied_for_one_reader_at_a_time(monkeypatch: pytest.MonkeyPatch) -> None:
    """Once to measure the gradients, and once to train: each takes about three times the model's memory."""
    model, alive, most = lstm(), weakref.WeakSet[MovingWeights](), []
    found, begin = statistics(model), MovingWeights.__init__

    def counted(self: MovingWeights, *arguments: Any) -> None:
        alive.add(self)
        most.append(len(alive))
        begin(self, *arguments)

    monkeypatch.setattr(MovingWeights, "__init__", counted)
    training = MetaTraining(steps=2, every=2, stream=20, streams=1, sample=2)
    train_gates(model, found, text(60), 0, BASE, GateSettings(), training)
    assert most == [1, 1]


def test_saved_it_is_the_same_and_another_model_s_is_refused(tmp_path: Any) -> None:
    model = lstm()
    learned, found, ids = gates(model, size=0.4), statistics(model), text(80)
    save_learned(tmp_path, "mine", weights_hash(model), learned)
    again = load_learned(tmp_path, "mine", weights_hash(model), tmp_path)
    assert (
        read(LearnedReader(model, again, found), ids, 0).nats == read(LearnedReader(model, learned, found), ids, 0).nats
    )
    with pytest.raises(UserError, match="no meta-learner called 'other'; there is mine"):
        load_learned(tmp_path, "other", weights_hash(model), tmp_path)
    with torch.no_grad():
        model.head.bias.add_(1e-3)
    with pytest.raises(UserError, match="trained for other weights"):
        load_learned(tmp_path, "mine", weights_hash(model), tmp_path)


def test_one_saved_before_the_mean_rms_could_be_chosen_goes_around_that_of_all_weights(tmp_path: Any) -> None:
    model = lstm()
    path = save_learned(tmp_path, "mine", weights_hash(model), gates(model, size=0.4))
    saved = read_checkpoint(path)
    assert saved.documents["gates"]["base"].pop("normalization") == "weights"
    write_checkpoint(tmp_path, path.name, saved.tensors, saved.documents)
    assert load_learned(tmp_path, "mine", weights_hash(model), tmp_path).base.normalization == "weights"


@pytest.mark.parametrize("normalization", ["weights", "tensors"])
@pytest.mark.usefixtures("torch_passes")
def test_untrained_it_is_dynamic_evaluation_with_either_mean_rms(normalization: Any) -> None:
    model = lstm()
    base = DynamicSettings(rate=0.01, decay=0.05, epsilon=1e-2, segment=4, normalization=normalization)
    learned, found, ids = gates(model, base=base), statistics(model), text(40)
    plain = DynamicEvaluation(model, base, found)
    assert read(LearnedReader(model, learned, found), ids, 0).nats == read(plain, ids, 0).nats


def test_what_cannot_be_trained() -> None:
    model, ids = lstm(), text(300)
    with pytest.raises(UserError, match="no clip, not the rule sgd"):
        train_gates(model, statistics(model), ids, 0, DynamicSettings("sgd"), GateSettings(), MetaTraining())
    with pytest.raises(UserError, match="shorter than 20 segments of 20"):
        train_gates(model, statistics(model), ids, 0, DynamicSettings(segment=20), GateSettings(), MetaTraining())
    assert BASE.rule == "rms"


@pytest.mark.parametrize("what", ["another rule", "no deviation", "a bias without rows"])
def test_a_file_that_no_training_wrote_is_refused(what: str, tmp_path: Any) -> None:
    model = lstm()
    path = save_learned(tmp_path, "mine", weights_hash(model), gates(model, size=0.4))
    found = read_checkpoint(path)
    document: Any = found.documents["gates"]
    if what == "another rule":
        document["base"]["rule"] = "sgd"
    elif what == "no deviation":
        document["spread"][1] = 0.0
    else:
        found.tensors["gates"]["bias"] = torch.tensor(1.0)
    write_checkpoint(tmp_path, path.name, found.tensors, found.documents)
    with pytest.raises(UserError, match="is damaged"):
        load_learned(tmp_path, "mine", weights_hash(model), tmp_path)


def test_a_mean_that_is_not_one_number_is_not_gone_on_with() -> None:
    model = lstm()
    reader = LearnedReader(model, gates(model, size=0.4), statistics(model))
    reader.start(1)
    with pytest.raises(ValueError, match="not one number"):
        reader.restore(reader.snapshot() | {"mean": torch.zeros(0)})
