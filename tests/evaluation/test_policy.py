"""Statistics of the gate between two predictions, against a loop over tokens; and the control with a foreign buffer."""

import math
from collections.abc import Callable
from dataclasses import replace

import numpy as np
import pytest
import torch
from small_models import TYPES, buffered, lstm

from backstory.config import RewardConfig
from backstory.config.readers import CacheSettings, MixtureSettings, PPMSettings, TemperedSettings
from backstory.evaluation import Audit, block_count, read
from backstory.evaluation.generation import Sampling, generate_ids
from backstory.evaluation.metrics.gate_statistics import CONSTANTS, TEMPERATURES, GateStatistics, own_blend
from backstory.evaluation.reading_loop import ScoredBlock
from backstory.models import Interpolation, Precision
from backstory.readers import Reader, StaticReader
from backstory.readers.counting import CountingReader, ppm_counts
from backstory.readers.mixture import MixtureReader
from backstory.readers.neural_cache import NeuralCache
from backstory.readers.shuffled_buffer import ShuffledBuffer
from backstory.readers.tempered import TemperedReader
from backstory.utils.errors import UserError

Stream = Callable[[int], np.ndarray]
EXACT = Precision(torch.float32, "")


def naive(ids: np.ndarray) -> dict[str, float]:
    """The figures token by token, from the distributions of a text read whole."""
    model = buffered()
    tokens = torch.from_numpy(np.concatenate([[0], ids[:-1]]).astype(np.int64))[None]
    with torch.no_grad():
        blend, _ = model(tokens, model.start(1))
    count, found = len(ids), dict.fromkeys(("pou", "lambda", "reward", "wins", "p", "q", "oracle"), 0.0)
    found |= {f"T{t}": 0.0 for t in TEMPERATURES} | {f"C{c}": 0.0 for c in CONSTANTS}
    for t, target in enumerate(ids):
        p, q = (part.log_probs()[0, t, int(target)].exp().item() for part in (blend.p, blend.q))
        to_q, to_p = blend.gate_logits[0, t].tolist()
        gates = {c: 1 / (1 + math.exp(min((to_p - to_q) / c, 700))) for c in TEMPERATURES}
        share, z = gates[1.0], min((q / (p + 1e-10)) ** 5, 10) - 1
        found["pou"] += share >= 0.5
        found["lambda"] += share
        found["reward"] += z if z >= 0 else 3 * z
        found["wins"] += q > p and to_q > -math.inf
        found["p"] -= math.log(p)
        found["q"] -= math.log(q)
        found["oracle"] -= math.log(max(p, q) if to_q > -math.inf else p)
        for c, gate in gates.items():
            found[f"T{c}"] -= math.log(gate * q + (1 - gate) * p)
        for c in CONSTANTS:
            gate = 0.0 if to_q == -math.inf else c
            found[f"C{c}"] -= math.log(gate * q + (1 - gate) * p)
    return {name: value / count for name, value in found.items()}


def test_the_figures_are_those_of_a_loop_over_tokens(stream: Stream) -> None:
    ids = stream(60)
    expected, watch = naive(ids), GateStatistics(EXACT, RewardConfig())
    read(StaticReader(buffered()), ids, 0, block=13, each=lambda *scored: watch.update(ScoredBlock(*scored)))
    found = watch.result()
    best = min(CONSTANTS, key=lambda c: expected[f"C{c}"])
    assert 0 < expected["pou"] < 1 and 0 < expected["wins"] < 1  # the loop saw both sides
    assert found.best_constant_lambda == best
    for name, wanted in {
        "utilization": expected["pou"],
        "mean_lambda": expected["lambda"],
        "mean_reward": expected["reward"],
        "win_share": expected["wins"],
        "p_perplexity": math.exp(expected["p"]),
        "q_perplexity": math.exp(expected["q"]),
        "oracle_perplexity": math.exp(expected["oracle"]),
        "best_constant_perplexity": math.exp(expected[f"C{best}"]),
    }.items():
        assert getattr(found, name) == pytest.approx(wanted, rel=2e-5), name
    assert found.temperatures == pytest.approx({f"{t:g}": math.exp(expected[f"T{t}"]) for t in TEMPERATURES}, rel=2e-5)


def test_at_its_own_temperature_it_is_the_score(stream: Stream) -> None:
    watch = GateStatistics(EXACT)
    reading = read(StaticReader(buffered()), stream(80), 0, each=lambda *scored: watch.update(ScoredBlock(*scored)))
    assert watch.result().temperatures["1"] == pytest.approx(math.exp(reading.nats), rel=1e-5)


def test_a_watch_goes_on_where_it_was(stream: Stream) -> None:
    ids, whole = stream(60), GateStatistics(EXACT)
    read(StaticReader(buffered()), ids, 0, block=10, each=lambda *scored: whole.update(ScoredBlock(*scored)))
    first, second, count = GateStatistics(EXACT), GateStatistics(EXACT), 0

    def each(*what: object) -> None:
        nonlocal count
        if count == 3:
            second.load_state_dict(first.state_dict())
        (first if count < 3 else second).update(ScoredBlock(*what))  # type: ignore[arg-type]
        count += 1

    read(StaticReader(buffered()), ids, 0, block=10, each=each)
    assert second.result() == whole.result()


def test_the_models_own_blend_is_found_inside_a_cache(stream: Stream) -> None:
    reader, tokens = (
        NeuralCache(StaticReader(buffered()), CacheSettings()),
        torch.from_numpy(stream(9).astype(np.int64)),
    )
    reader.start(1)
    prediction = reader.predict(tokens[None])
    assert own_blend(prediction) is prediction.p and isinstance(prediction.p, Interpolation)


@pytest.mark.parametrize(
    ("domain", "outer"), [("linear", "cache"), ("linear", "none"), ("logistic", "tempered"), ("logistic", "none")]
)
def test_the_models_own_blend_is_found_inside_mixtures(domain: str, outer: str, stream: Stream) -> None:
    settings = PPMSettings(order=2)
    counted = CountingReader(StaticReader(buffered()), settings, ppm_counts(settings, TYPES))
    reader: Reader = MixtureReader(counted, MixtureSettings(domain=domain))  # type: ignore[arg-type]
    if outer != "none":
        reader = (
            NeuralCache(reader, CacheSettings()) if outer == "cache" else TemperedReader(reader, TemperedSettings())
        )
    ids = stream(20)
    inside, alone = GateStatistics(EXACT), GateStatistics(EXACT)
    read(reader, ids, 0, each=lambda *scored: inside.update(ScoredBlock(*scored)))
    read(StaticReader(buffered()), ids, 0, each=lambda *scored: alone.update(ScoredBlock(*scored)))
    assert inside.result() == alone.result()


# --- a foreign buffer ---


def test_the_audit_says_what_a_foreign_buffer_is(stream: Stream) -> None:
    ids, model = stream(120), buffered()
    audit = Audit(block_count(len(ids), 3, 10), 4, 0)
    foreign = read(ShuffledBuffer(model), ids, 0, batch_size=3, block=10, observer=audit)
    own = read(StaticReader(model), ids, 0, batch_size=3, block=10)
    assert audit.report.failures == ["a row's predictions depend on the other rows of the batch"]
    assert foreign.nats != own.nats


def test_rows_alike_have_nothing_foreign(stream: Stream) -> None:
    ids, model = np.tile(stream(40), 3), buffered()
    ids = ids.reshape(3, 40)
    ids[:] = ids[0]
    found = [
        read(kind(model), ids.flatten(), int(ids[0, -1]), batch_size=3, block=10).nats
        for kind in (ShuffledBuffer, StaticReader)
    ]
    assert found[0] == pytest.approx(found[1], rel=1e-6)


def test_what_a_foreign_buffer_must_refuse(stream: Stream) -> None:
    with pytest.raises(UserError, match="it needs several; use --batch-size 10"):
        read(ShuffledBuffer(buffered()), stream(40), 0)
    with pytest.raises(UserError, match="use --batch-size 10 of `backstory evaluate`"):
        generate_ids(ShuffledBuffer(buffered()), [0], Sampling())  # at once, before a prompt is printed
    with pytest.raises(UserError, match="the model has none; train one with"):
        ShuffledBuffer(lstm())


def test_gates_differ_from_one_another() -> None:
    """Make sure that the comparison above is not of constants."""
    model = buffered()
    blend, _ = model(torch.arange(12)[None] % 13, model.start(1))
    gates = replace(blend, temperature=1.0).log_gates()[0].exp()[0, 4:]
    assert gates.std() > 0.01
