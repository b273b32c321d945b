"""The neural cache is its equation, token by token, and honest at any window, block and number of rows."""

from collections.abc import Callable
from itertools import product

import numpy as np
import pytest
import torch
from cheats import CACHE_CHEATS, CACHE_CHEATS_WITH_ROWS
from hypothesis import given, settings
from hypothesis import strategies as st
from naive_cache import cached_tables
from small_models import TYPES, lstm, mixture
from tiers import fast_then_full, several
from torch import Tensor

from backstory.config.readers import CacheSettings
from backstory.evaluation import Audit, Block, block_count, blocks, read
from backstory.models import ComposedModel, Precision, Prediction
from backstory.models import devices as memory_room
from backstory.readers import Reader, StaticReader
from backstory.readers import neural_cache as pairs_module
from backstory.readers.neural_cache import NeuralCache
from backstory.utils.errors import UserError

Stream = Callable[[int], np.ndarray]
FIRST = 3
MODELS = {"lstm": lstm(), "mixture": mixture()}


def random_ids(count: int, seed: int) -> np.ndarray:
    """Ids of which some come often."""
    return np.random.default_rng(seed).choice(TYPES, count, p=np.arange(TYPES, 0, -1) / 91).astype(np.uint16)


def tables(reader: Reader, ids: np.ndarray, batch_size: int, block: int) -> list[Tensor]:
    """The whole distributions (N, V) along each row."""
    found: list[Tensor] = []
    read(reader, ids, FIRST, batch_size=batch_size, block=block, each=lambda b, p, s: found.append(p.log_probs()))
    return list(torch.cat(found, 1).exp().double())


@st.composite
def cache_settings(draw: st.DrawFn) -> CacheSettings:
    return CacheSettings(
        window=draw(st.integers(1, 40)),
        theta=draw(st.sampled_from([0.0, 0.3, 1.0, 4.0])),
        weight=draw(st.sampled_from([0.0, 0.1, 0.6])),
        # not a share of many equal pairs, which rounding would put on either side
        confidence=draw(st.sampled_from([0.0, 0.051, 0.203, 0.507])),
    )


@pytest.mark.full
@given(
    name=st.sampled_from(sorted(MODELS)),
    chosen=cache_settings(),
    batch_size=st.integers(1, 4),
    block=st.integers(1, 50),
    count=st.integers(1, 60),
    seed=st.integers(0, 9),
)
@settings(max_examples=60)
def test_it_is_the_equation(
    name: str, chosen: CacheSettings, batch_size: int, block: int, count: int, seed: int
) -> None:
    ids, states, inner = random_ids(count, seed), [], []

    def each(b: Block, prediction: Prediction, score: Tensor) -> None:
        assert prediction.activations is not None
        states.append(prediction.activations.head_input)
        inner.append(prediction.log_probs().exp())

    read(StaticReader(MODELS[name]), ids, FIRST, batch_size=batch_size, block=block, each=each)
    expected_scores: list[Tensor] = []
    found_scores: list[Tensor] = []
    by_row = [torch.cat(parts, 1) for parts in (states, inner)]
    pieces = list(blocks(ids, FIRST, batch_size, block, torch.device("cpu")))
    targets, scored = (torch.cat([piece[i] for piece in pieces], 1) for i in (1, 2))
    found = tables(NeuralCache(StaticReader(MODELS[name]), chosen), ids, batch_size, block)
    for row, table in enumerate(found):
        mixed, _ = cached_tables(by_row[0][row], by_row[1][row], targets[row].tolist(), chosen)
        torch.testing.assert_close(table, mixed, rtol=1e-5, atol=1e-6)
        expected_scores.append(mixed.gather(1, targets[row][:, None])[:, 0].log())
    read(
        NeuralCache(StaticReader(MODELS[name]), chosen),
        ids,
        FIRST,
        batch_size=batch_size,
        block=block,
        each=lambda b, p, score: found_scores.append(score),
    )
    torch.testing.assert_close(
        torch.cat(found_scores, 1).double()[scored], torch.stack(expected_scores)[scored], rtol=1e-5, atol=1e-5
    )


@pytest.mark.parametrize("theta", [0.5, 30.0])
def test_the_cache_s_own_distribution(small_lstm: ComposedModel, stream: Stream, theta: float) -> None:
    """Log-probabilities of words under `q` alone, in log space however sharp it is."""
    ids = stream(30)
    reader = NeuralCache(StaticReader(small_lstm), CacheSettings(window=12, theta=theta))
    reader.start(1)
    tokens, targets = (torch.from_numpy(part.astype(np.int64))[None] for part in (ids[:-1], ids[1:]))
    prediction = reader.predict(tokens)
    q = prediction.parts()["q"]
    states = prediction.activations.head_input[0].double()  # type: ignore[union-attr]
    table = q.log_probs()[0]
    for t in range(1, 29):
        seen = range(max(0, t - 12), t)
        scores = torch.stack([theta * states[i] @ states[t] for i in seen])
        weights = torch.log_softmax(scores, 0)
        words = {int(ids[i + 1]) for i in seen}
        assert set(table[t].isfinite().nonzero()[:, 0].tolist()) <= words
        for word in words:
            mass = torch.logsumexp(weights[[int(ids[i + 1]) == word for i in seen]], 0)
            assert q.log_prob(torch.full_like(targets, word))[0, t].item() == pytest.approx(
                mass.item(), rel=1e-4, abs=1e-4
            )
        absent = next(w for w in range(TYPES) if w not in words)
        assert q.log_prob(torch.full_like(targets, absent))[0, t] == -torch.inf
    assert q.log_prob(targets)[0, 0] == -torch.inf and (table[0] == -torch.inf).all()
    torch.testing.assert_close(q.log_prob(targets).exp(), q.log_probs().exp().gather(2, targets[..., None])[..., 0])


def test_where_it_is_empty_the_prediction_is_the_inner_one(model: ComposedModel) -> None:
    tokens = torch.tensor([[1, 1, 1], [2, 3, 2]])
    reader, inner = NeuralCache(StaticReader(model), CacheSettings(weight=0.5)), StaticReader(model)
    reader.start(2), inner.start(2)
    mixed, plain = reader.predict(tokens), inner.predict(tokens)
    assert torch.equal(mixed.log_probs()[:, 0], plain.log_probs()[:, 0])
    assert torch.equal(mixed.log_prob(tokens)[:, 0], plain.log_prob(tokens)[:, 0])
    assert (mixed.log_probs()[:, 1:] != plain.log_probs()[:, 1:]).any(2).all()
    # After one pair all of the cache's mass is on its word.
    expected = (0.5 * plain.log_probs()[:, 1].exp()).scatter_add(1, tokens[:, 1:2], torch.full((2, 1), 0.5))
    torch.testing.assert_close(mixed.log_probs()[:, 1].exp(), expected)


def test_what_is_off_leaves_every_bit_of_the_inner_prediction(model: ComposedModel, stream: Stream) -> None:
    plain = tables(StaticReader(model), stream(50), 1, 9)[0]
    off = tables(NeuralCache(StaticReader(model), CacheSettings(weight=0.0)), stream(50), 1, 9)[0]
    assert torch.equal(off, plain)
    # A window of many pairs, all alike, never gives one of them nearly all the mass.
    shy = tables(NeuralCache(StaticReader(model), CacheSettings(theta=0.0, confidence=0.99)), stream(50), 1, 9)[0]
    assert torch.equal(shy[2:], plain[2:]) and not torch.equal(shy[1], plain[1])


def test_the_largest_theta_has_finite_scores(model: ComposedModel, stream: Stream) -> None:
    reader = NeuralCache(StaticReader(model), CacheSettings(window=8, theta=1e6))
    table = tables(reader, stream(50), 1, 9)[0]
    torch.testing.assert_close(table.sum(1), torch.ones(50, dtype=torch.float64), atol=1e-5, rtol=0)


def test_theta_nought_counts_words() -> None:
    ids = np.array([5, 5, 2, 5, 2, 7], dtype=np.uint16)
    reader = NeuralCache(StaticReader(MODELS["lstm"]), CacheSettings(window=4, theta=0.0))
    found: list[Tensor] = []
    read(reader, ids, 0, each=lambda b, p, s: found.append(p.parts()["q"].log_probs().exp()[0]))
    assert found[0][1].tolist() == [1.0 if w == 5 else 0.0 for w in range(TYPES)]
    assert found[0][5].tolist() == [0.5 if w in (2, 5) else 0.0 for w in range(TYPES)]  # 5 2 5 2


def test_a_window_of_one_knows_the_last_word(stream: Stream) -> None:
    ids, found = stream(20), []
    reader = NeuralCache(StaticReader(MODELS["lstm"]), CacheSettings(window=1))
    read(reader, ids, FIRST, block=6, each=lambda b, p, s: found.append(p.parts()["q"].log_probs()[0]))
    assert torch.cat(found)[1:].exp().argmax(1).tolist() == ids[:-1].tolist()


@pytest.mark.parametrize(("window", "batch_size"), fast_then_full(product([1, 7, 64], [1, 3]), [(7, 3), (64, 1)]))
def test_scores_do_not_depend_on_blocks(model: ComposedModel, stream: Stream, window: int, batch_size: int) -> None:
    """Blocks smaller and larger than the window, which goes round many times."""
    chosen = CacheSettings(window, 0.8, 0.4, 0.1)
    nats = [
        read(NeuralCache(StaticReader(model), chosen), stream(300), FIRST, batch_size=batch_size, block=block).nats
        for block in (1, 5, 32, 300)
    ]
    assert nats == pytest.approx([nats[0]] * 4, abs=1e-6)


def test_rows_are_texts_of_their_own(model: ComposedModel, stream: Stream) -> None:
    chosen = CacheSettings(9, 0.8, 0.4)
    together = tables(NeuralCache(StaticReader(model), chosen), stream(40), 2, 7)
    for row, half in enumerate((stream(40)[:20], stream(40)[20:])):
        before = FIRST if row == 0 else int(stream(40)[19])
        reader, found = NeuralCache(StaticReader(model), chosen), []
        read(reader, half, before, block=7, each=lambda b, p, s, found=found: found.append(p.log_probs()))
        torch.testing.assert_close(together[row], torch.cat(found, 1)[0].exp().double(), rtol=1e-5, atol=1e-7)


@pytest.mark.parametrize(
    ("dtype", "sizes"),
    fast_then_full(
        product([torch.float32, torch.bfloat16], [(1, 15, 500), (1, 7, 6), (4, 15, 10), (7, 4, 3), (1, 1, 5)]),
        [(torch.float32, (1, 15, 500)), (torch.float32, (1, 1, 5)), (torch.bfloat16, (7, 4, 3))],
    ),
)
def test_it_passes_the_audit(
    model: ComposedModel, stream: Stream, dtype: torch.dtype, sizes: tuple[int, int, int]
) -> None:
    batch_size, block, window = sizes
    for seed in range(several(1, 3)):
        for confidence in (0.0, 0.2):
            inner = StaticReader(model, Precision(dtype, ""))
            reader = NeuralCache(inner, CacheSettings(window, 0.9, 0.4, confidence))
            audit = Audit(block_count(121, batch_size, block), 4, seed)
            read(reader, stream(121), FIRST, batch_size=batch_size, block=block, observer=audit)
            assert audit.report.failures == [] and audit.report.passed


@pytest.mark.parametrize("batch_size", fast_then_full([1, 3], [3]))
@pytest.mark.parametrize("cheat", CACHE_CHEATS | CACHE_CHEATS_WITH_ROWS, ids=lambda cheat: cheat.__name__)
def test_a_cache_that_cheats_is_caught(
    cheat: type[NeuralCache], small_lstm: ComposedModel, stream: Stream, batch_size: int
) -> None:
    if batch_size == 1 and cheat in CACHE_CHEATS_WITH_ROWS:
        batch_size = 2
    check = (CACHE_CHEATS | CACHE_CHEATS_WITH_ROWS)[cheat]
    for seed in range(several(1, 5)):
        audit = Audit(block_count(120, batch_size, 15), 3, seed)
        reader = cheat(StaticReader(small_lstm), CacheSettings(window=60, weight=0.4))
        read(reader, stream(120), FIRST, batch_size=batch_size, block=15, observer=audit)
        assert not audit.report.checks[check], f"seed {seed}"


def block_of(seed: int, steps: int = 6) -> Tensor:
    return torch.randint(TYPES, (2, steps), generator=torch.Generator().manual_seed(seed))


def test_snapshots_in_the_middle(model: ComposedModel) -> None:
    """Restoring twice, also after the window has wrapped around, gives the same bits; and forks are independent."""
    reader = NeuralCache(StaticReader(model), CacheSettings(window=10, weight=0.5))
    reader.start(2)
    for seed in range(4):
        reader.predict(block_of(seed))
        reader.observe(block_of(seed))
    snapshot, expected = reader.snapshot(), reader.predict(block_of(9)).log_probs()
    fork = reader.fork()
    for times in (1, 5):
        for seed in range(times):
            reader.predict(block_of(20 + seed, 3))
            reader.observe(block_of(30 + seed, 3))
        assert not torch.equal(reader.predict(block_of(9)).log_probs(), expected)
        reader.restore(snapshot)
        reader.observe(block_of(8))  # a block predicted before restoring is not observed after it
        assert torch.equal(reader.predict(block_of(9)).log_probs(), expected)
    assert torch.equal(fork.predict(block_of(9)).log_probs(), expected)


def test_a_prediction_stays_as_it_was(model: ComposedModel) -> None:
    """Also when the block is predicted anew, and when the reader has gone on."""
    reader = NeuralCache(StaticReader(model), CacheSettings(window=5, weight=0.5))
    reader.start(2)
    reader.predict(block_of(0))
    reader.observe(block_of(0))
    prediction = reader.predict(block_of(1))
    expected = prediction.log_probs()
    for seed in range(2, 9):
        reader.predict(block_of(seed))
        assert torch.equal(prediction.log_probs(), expected)
        reader.observe(block_of(seed))
    assert torch.equal(prediction.log_probs(), expected)


def test_observing_once_is_observing_twice(model: ComposedModel) -> None:
    first, second = (NeuralCache(StaticReader(model), CacheSettings(5)) for _ in range(2))
    for reader, times in ((first, 1), (second, 2)):
        reader.start(2)
        reader.predict(block_of(0))
        for _ in range(times):
            reader.observe(block_of(0))
    assert torch.equal(first.predict(block_of(1)).log_probs(), second.predict(block_of(1)).log_probs())


class Moving(StaticReader):
    """A reader whose weights move after every block."""

    def predict(self, tokens: Tensor) -> Prediction:
        prediction = super().predict(tokens)
        assert prediction.activations is not None
        self.states = [*getattr(self, "states", []), prediction.activations.head_input.clone()]
        return prediction

    def observe(self, targets: Tensor) -> None:
        super().observe(targets)
        with torch.no_grad():
            for parameter in self.model.parameters():
                parameter.mul_(0.97)


def test_what_older_weights_made_is_kept_as_it_was(stream: Stream) -> None:
    inner = Moving(lstm())
    chosen, found, plain = CacheSettings(30, 0.7, 0.5), [], []

    def each(b: Block, p: Prediction, s: Tensor) -> None:
        found.append(p.log_probs()[0].exp().double())
        plain.append(p.parts()["p"].log_probs()[0].exp())

    read(NeuralCache(inner, chosen), stream(60), FIRST, block=8, each=each)
    states = torch.cat(inner.states, 1)[0]
    expected, _ = cached_tables(states, torch.cat(plain), stream(60).tolist(), chosen)
    torch.testing.assert_close(torch.cat(found), expected, rtol=1e-5, atol=1e-6)


def test_a_window_costs_only_what_is_filled(model: ComposedModel, stream: Stream) -> None:
    reader = NeuralCache(StaticReader(model), CacheSettings(window=1_000_000))
    read(reader, stream(100), FIRST, block=10)
    vectors = reader.snapshot()[1][0]
    assert vectors.shape[1] == 100
    assert reader._pairs._vectors.shape[1] < 200  # type: ignore[union-attr]


def test_a_window_that_memory_can_never_hold_is_told(model: ComposedModel, monkeypatch: pytest.MonkeyPatch) -> None:
    size = model.head_size
    needed = 2 * 1000 * (4 * (size + 6) + 8)
    for free, fits in ((needed, True), (needed - 1, False), (None, True)):
        monkeypatch.setattr(pairs_module, "available", lambda device, free=free: free)
        reader = NeuralCache(StaticReader(model), CacheSettings(window=1000))
        reader.start(2)
        if fits:
            reader.predict(block_of(0))
        else:
            with pytest.raises(
                UserError, match=r"^a cache of 1,000 words needs .* when it is full, and .* free; lower"
            ):
                reader.predict(block_of(0))
            assert reader._pairs._vectors is None


@pytest.mark.skipif(memory_room.available(torch.device("cpu")) is None, reason="the system does not say what is free")
def test_a_window_larger_than_this_machine_is_told(model: ComposedModel) -> None:
    reader = NeuralCache(StaticReader(model), CacheSettings(window=10**14))
    reader.start(1)
    with pytest.raises(UserError, match=r"a cache of 100,000,000,000,000 words needs .* PiB"):
        reader.predict(block_of(0)[:1])


@pytest.mark.parametrize(
    "wrong",
    [
        {"window": 0},
        {"theta": -0.1},
        {"weight": 1.0},
        {"weight": -0.1},
        {"confidence": 1.0},
        {"theta": np.inf},
        {"theta": 1e39},
    ],
)
def test_settings_out_of_range_are_told(model: ComposedModel, wrong: dict[str, float]) -> None:
    with pytest.raises(UserError, match=f"the cache: {next(iter(wrong))} must be"):
        NeuralCache(StaticReader(model), CacheSettings(**wrong))  # type: ignore[arg-type]
