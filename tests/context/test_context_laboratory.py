"""Examinations as files: losses that are saved, taken over and split again, sets of models, ranks, and results in Python."""

import json
import os
import shutil
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import runs
import torch
from test_context_brute_force import FLOAT32, TYPES, build, corpus, examination
from tiers import fast_then_full

import backstory as bs
from backstory.cli.examine import described
from backstory.config import EmbeddingConfig, ModelConfig, NoBufferConfig, RunConfig, SoftmaxConfig, TransformerConfig
from backstory.config.readers import CacheSettings
from backstory.context import (
    EXPERIMENTS,
    Losses,
    combine,
    measure,
    paired_interval,
    read_examination,
    regroup,
)
from backstory.context.bootstrap import clusters_of
from backstory.context.losses import LOSSES, UNFINISHED, LossStore
from backstory.data import prepare
from backstory.models import LanguageModel, build_model
from backstory.readers import StaticReader
from backstory.readers.neural_cache import NeuralCache
from backstory.runs.run import load_run
from backstory.training import train
from backstory.utils.errors import UserError

NOUNS, VERBS = ("tea", "jam", "oil", "ink"), ("saw", "took", "found", "sold")
SMALL: dict[str, Any] = {"targets": 40, "maximum_context": 30, "context": 20, "near": 5, "precision": "float32"}


def tagger(words: list[str]) -> Sequence[str]:
    return ["NN" if w in NOUNS else "VBD" if w in VERBS else "DT" for w in words]


def stops(reading: int) -> Callable[[int, int], None]:
    """Progress that fails when it is told so many tokens: as if the process ended there."""

    def told(done: int, total: int) -> None:
        if done > reading:
            raise KeyboardInterrupt

    return told


@pytest.fixture(scope="module")
def examined(tiny_run: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of an examination with every split."""
    out = tmp_path_factory.mktemp("examined")
    by = ("frequency", "tag", "content", "class", "similar", "position")
    bs.examine(tiny_run, None, "shuffle", out=out, by=by, tagger=tagger, **SMALL)
    return out


def test_a_word_score_without_words_made_of_pieces_is_named(tiny_run: Path, tmp_path: Path) -> None:
    with pytest.warns(UserWarning, match="word score sum has no effect"):
        figures = bs.examine(tiny_run, None, word_score="sum", out=tmp_path / "out", **SMALL).figures
    assert figures.word_score is None


def test_losses_come_back_as_they_were_saved(examined: Path) -> None:
    losses = Losses.load(examined / LOSSES)
    assert losses.nats.shape == (len(losses.conditions), 40) and losses.baseline_context == 20
    assert set(losses.splits) == {"frequency", "tag", "content", "class", "similar", "position"}
    losses.save(examined / "again.npz")
    assert (examined / "again.npz").read_bytes() == (examined / LOSSES).read_bytes()
    with np.load(examined / LOSSES, allow_pickle=False) as file:  # documented: nothing pickled, names of arrays
        assert set(file) >= {"positions", "targets", "baseline", "nats", "names", "lengths", "about", "by_tag_groups"}
        assert [str(name) for name in file["names"]] == [c["name"] for c in losses.conditions]
        assert file["nats"].dtype == np.float64 and file["by_class"].dtype == np.int16


@pytest.mark.parametrize("content", [b"", b"PK", b"\x00" * 99, None], ids=["empty", "cut", "zeros", "absent"])
def test_a_damaged_file_of_losses_is_refused(content: bytes | None, tmp_path: Path) -> None:
    if content is not None:
        (tmp_path / LOSSES).write_bytes(content)
    with pytest.raises(UserError, match=r"damaged|there is no"):
        regroup(tmp_path)


def test_losses_are_split_again_without_running_anything(examined: Path) -> None:
    figures = read_examination(examined).figures
    again = regroup(examined, by=("frequency", "tag", "content", "class", "similar", "position"))
    assert len(again.groups) > 5
    assert all(getattr(figures, name) == value for name, value in vars(again).items() if value is not None)
    odd = Losses.load(examined / LOSSES).positions % 2
    found = regroup(examined, by=("parity",), labels={"parity": (odd, ("even", "odd"))})
    assert [g.targets for g in found.groups] == [int((odd == 0).sum()), int((odd == 1).sum())]
    with pytest.raises(UserError, match="the split parity has 3 labels for 40 targets"):
        regroup(examined, by=("parity",), labels={"parity": (odd[:3], ("even", "odd"))})


@pytest.mark.parametrize(
    "experiment",
    fast_then_full([name for name in EXPERIMENTS if name != "cache"], ["truncate", "shuffle", "drop-target"]),
)
def test_a_stopped_experiment_goes_on_with_its_next_condition(
    experiment: str, tiny_run: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    settings = {**SMALL, "tagger": tagger}
    straight = bs.examine(tiny_run, None, experiment, out=tmp_path / "straight", **settings)
    total: list[int] = []
    bs.examine(tiny_run, None, experiment, out=tmp_path / "told", progress=lambda d, t: total.append(t), **settings)
    count = len(straight.figures.conditions)
    broken = tmp_path / "broken"
    with pytest.raises(KeyboardInterrupt):
        bs.examine(tiny_run, None, experiment, out=broken, progress=stops(int(0.7 * total[-1])), **settings)
    assert not (broken / "result.json").exists()
    finished = len(Losses.load(broken / UNFINISHED).conditions)
    assert 0 < finished < count or count <= 2
    asked: list[int] = []
    score = StaticReader.predict
    monkeypatch.setattr(StaticReader, "predict", lambda self, tokens: asked.append(1) or score(self, tokens))
    again = bs.examine(tiny_run, None, experiment, out=broken, **settings)
    assert again.figures == straight.figures and again.provenance.taken_over == finished
    assert (broken / LOSSES).read_bytes() == (tmp_path / "straight" / LOSSES).read_bytes()
    assert not (broken / UNFINISHED).exists()
    asked.clear()
    assert bs.examine(tiny_run, None, experiment, out=broken, **settings).figures == straight.figures
    assert not asked  # all of it was there
    bs.examine(tiny_run, None, experiment, out=broken, again=True, **settings)
    assert asked


@pytest.mark.parametrize(
    ("change", "told"),
    [({"seed": 1}, "seed 0, not 1"), ({"targets": 39}, "targets 40, not 39"),
     ({"maximum_context": 31}, "maximum context 30, not 31"), ({"context": 19}, "context 20, not 19"),
     ({"within_documents": True}, "within documents False, not True"), ({"split": "test"}, "another split"),
     ({"reader": "cache"}, "another reader"), ({"precision": "bfloat16"}, "another precision")],
)  # fmt: skip
def test_an_examination_of_something_else_is_lost_only_if_asked(
    change: dict[str, Any], told: str, examined: Path, tiny_run: Path
) -> None:
    settings, place = {**SMALL, **change}, Path(shutil.copytree(examined, f"{examined}-{change}"))
    before = {path.name: path.read_bytes() for path in place.iterdir()}
    with pytest.raises(UserError, match=f"holds an examination with {told}, which would be lost"):
        bs.examine(tiny_run, None, "shuffle", out=place, **settings)
    assert {path.name: path.read_bytes() for path in place.iterdir()} == before
    found = bs.examine(tiny_run, None, "shuffle", out=place, again=True, **settings)
    assert found.provenance.taken_over == 0
    assert found.figures == bs.examine(tiny_run, None, "shuffle", out=f"{examined}-fresh-{change}", **settings).figures


def test_losses_of_other_weights_are_not_taken_over(
    examined: Path, tiny_config: RunConfig, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    train(replace(tiny_config, seed=5), tmp_path / "run")
    capsys.readouterr()
    found = bs.examine(tmp_path / "run", None, "shuffle", out=shutil.copytree(examined, tmp_path / "out"), **SMALL)
    assert found.provenance.taken_over == 0
    assert found.figures.baseline != regroup(examined).baseline


def test_tags_matter_only_where_they_change_contexts(examined: Path, tiny_run: Path, tmp_path: Path) -> None:
    def other(words: list[str]) -> Sequence[str]:
        return ["NN"] * len(words)

    shuffled = shutil.copytree(examined, tmp_path / "shuffled")
    found = bs.examine(tiny_run, None, "shuffle", out=shuffled, by=("tag",), tagger=other, **SMALL)
    assert found.provenance.taken_over == len(found.figures.conditions)
    assert [g.group for g in found.figures.groups] == ["NN", "<eos>"]
    for kind, taken in ((tagger, 0), (other, 0), (other, 4)):
        dropped = bs.examine(tiny_run, None, "drop", out=tmp_path / "dropped", tagger=kind, **SMALL)
        assert dropped.provenance.taken_over == taken


@pytest.mark.parametrize("experiment", EXPERIMENTS)
def test_progress_goes_on_to_its_end_and_the_reading_is_part_of_it(
    experiment: str, tiny_run: Path, tmp_path: Path
) -> None:
    told: list[tuple[int, int]] = []
    settings = {**SMALL, "tagger": tagger, "out": tmp_path}
    for _ in range(2):  # the second time everything is taken over
        told.clear()
        bs.examine(tiny_run, None, experiment, progress=lambda done, total: told.append((done, total)), **settings)
        assert told[-1][0] == told[-1][1] == told[0][1]
        assert all(a[0] < b[0] for a, b in pairwise(told))


class Threads:
    """Ranks that are threads, which wait for each other."""

    def __init__(self, rank: int, shared: list[Any], barrier: threading.Barrier) -> None:
        self.rank, self.world, self.shared, self.barrier = rank, len(shared), shared, barrier

    def largest(self, *values: float) -> list[float]:
        self.shared[self.rank] = values
        self.barrier.wait(60)
        found = np.max(np.array(self.shared), 0).tolist()
        self.barrier.wait(60)
        return found


@pytest.mark.full
@pytest.mark.parametrize("world", [2, 3])
@pytest.mark.parametrize("experiment", ["truncate", "drop"])
def test_ranks_that_share_the_targets_find_what_one_finds(
    experiment: str, world: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys.modules["backstory.context.experiment_run"], "PIECE", 7)
    alone = measure(experiment, examination(StaticReader(build(), FLOAT32)))
    alone.save(tmp_path / "alone.npz")
    shared, barrier = [None] * world, threading.Barrier(world)
    settings = {"of": "a test"}
    for part in ("stopped", "whole", "taken over"):
        found: list[Losses | None] = [None] * world
        readers = [StaticReader(build(), FLOAT32) for _ in range(world)]  # weights are drawn from one generator

        def work(rank: int, part: str = part, found: list = found, readers: list = readers) -> None:
            store = LossStore(tmp_path / "kept" if rank == 0 else None, settings)
            on = examination(readers[rank])
            told = stops(4500) if part == "stopped" else None
            try:
                found[rank] = measure(experiment, on, told, store=store, ranks=Threads(rank, shared, barrier))
            except (KeyboardInterrupt, threading.BrokenBarrierError):
                barrier.abort()

        threads = [threading.Thread(target=work, args=(rank,)) for rank in range(world)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(120)
        barrier.reset()
        if part == "stopped":
            assert found == [None] * world
            assert 0 < len(Losses.load(tmp_path / "kept" / UNFINISHED).conditions) < len(alone.conditions)
            continue
        for losses in found:
            assert losses is not None
            replace(losses, settings={}).save(tmp_path / "of-rank.npz")
            assert (tmp_path / "of-rank.npz").read_bytes() == (tmp_path / "alone.npz").read_bytes()


@pytest.fixture(scope="module")
def seeds(tiny_config: RunConfig, tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    """Runs that differ in their seed."""
    folder = tmp_path_factory.mktemp("seeds")
    for seed in (1, 2, 3):
        train(replace(tiny_config, seed=seed), folder / f"seed{seed}")
    return [folder / f"seed{seed}" for seed in (1, 2, 3)]


def test_losses_at_hand_are_taken_over_only_from_the_same_reader(tmp_path: Path) -> None:
    ids = np.random.default_rng(0).integers(0, 5, 200)
    numbers: dict[str, Any] = {"targets": 30, "maximum_context": 20, "out": tmp_path / "out"}

    def examined(model: Any, **changes: Any) -> tuple[int, float]:
        found = bs.examine(model, ids, "truncate", **numbers | changes)
        return found.provenance.taken_over, found.figures.baseline.nats

    def cached(weight: float) -> NeuralCache:
        return NeuralCache(StaticReader(build(), FLOAT32), CacheSettings(weight=weight))

    assert examined(cached(0.1))[0] == 0
    with pytest.raises(UserError, match="another reader"):
        examined(cached(0.9))
    taken, nats = examined(cached(0.9), again=True)
    assert taken == 0 and examined(cached(0.9)) == (4, nats)
    assert examined(cached(0.1), again=True)[1] != nats

    class Other:
        def score(self, contexts: Any, targets: Any, progress: Any = None) -> np.ndarray:
            return np.full(len(contexts), -2.0)

    assert examined(Other()) == examined(Other()) == (0, 2.0), (
        "what does not tell what it is made of is not known again"
    )


@pytest.mark.parametrize("with_text", [False, True])
@pytest.mark.parametrize("changed", [{"heads": 4}, {"window": 9}])
def test_losses_at_hand_are_not_taken_over_from_a_model_that_only_weights_equal(
    changed: dict[str, int], with_text: bool, tiny_run: Path, tmp_path: Path
) -> None:
    _, vocabulary = bs.load(tiny_run)
    types = len(vocabulary)

    def transformer(**settings: int) -> LanguageModel:
        torch.manual_seed(0)
        core = TransformerConfig(**{"layers": 1, "hidden": 8, "heads": 2, "window": 30} | settings)
        return build_model(ModelConfig(EmbeddingConfig(8), core, SoftmaxConfig(), NoBufferConfig()), types).eval()

    ids = np.random.default_rng(0).integers(0, types, 200)
    words = " ".join(vocabulary.tokens([i for i in ids.tolist() if vocabulary.tokens([i])[0].isalpha()]))
    text: dict[str, Any] = {"text": f"{words}\n", "tokenizer": vocabulary} if with_text else {"corpus": ids}
    numbers: dict[str, Any] = {"targets": 30, "maximum_context": 20, "experiment": "truncate"} | text
    bs.examine(transformer(), out=tmp_path, **numbers)
    assert bs.examine(transformer(), out=tmp_path, **numbers).provenance.taken_over == 4
    other = bs.examine(transformer(**changed), out=tmp_path, **numbers)
    assert other.provenance.taken_over == 0
    assert other.figures == bs.examine(transformer(**changed), **numbers).figures


@pytest.mark.parametrize("batch_size", [1, 3])
@pytest.mark.parametrize("window", [6, 40])
def test_a_cache_is_worth_nothing_for_what_it_does_not_hold(window: int, batch_size: int, tmp_path: Path) -> None:
    """A target outside its window costs the weight of the cache and nothing else; what is in it, not so much."""
    reader = NeuralCache(StaticReader(build()), CacheSettings(window=window, theta=0.5, weight=0.3))
    ids = np.random.default_rng(0).integers(0, TYPES, 600)
    settings: dict[str, Any] = {"maximum_context": 20, "targets": 600, "near": 3, "batch_size": batch_size}
    found = bs.examine(reader, ids, "cache", out=tmp_path, **settings)
    [losses] = found.losses
    effects = losses.nats[0] - losses.baseline
    held = losses.splits["cache"].codes < 2
    assert held.any() and (~held).any()
    np.testing.assert_allclose(effects[~held], np.log(0.7), atol=1e-6)
    assert (effects[held] > np.log(0.7) + 1e-4).all()
    assert [(g.by, g.group) for g in found.figures.groups][:2] == [("cache", "near"), ("cache", "far")]
    ago = np.array([np.append(np.flatnonzero(ids[:i][::-1] == ids[i]), 600)[0] + 1 for i in range(600)])
    outside = found.figures.conditions[0].outside_window
    assert outside == pytest.approx((ago > window).mean(), abs=0.0 if batch_size == 1 else 0.05)

    # Targets of one block are no independent samples: blocks are drawn, also of a file that does not say which.
    assert losses.clusters is not None and len(np.unique(losses.clusters)) == 9
    [condition] = found.figures.conditions
    alone = paired_interval(effects)
    assert (condition.low, condition.high) != (alone.low, alone.high)
    saved = Losses.load(tmp_path / "losses.npz")
    assert saved.clusters is not None and (saved.clusters == losses.clusters).all()
    replace(losses, clusters=None).save(tmp_path / "older.npz")
    assert (Losses.load(tmp_path / "older.npz").clusters == clusters_of(losses.positions)).all()
    plain = bs.examine(StaticReader(build()), ids, "truncate", **{**settings, "batch_size": 1})
    assert plain.losses[0].clusters is None


def test_only_the_cache_experiment_needs_the_score_of_the_inner_reader() -> None:
    reader = StaticReader(build())
    reader.inner = StaticReader(reader.model)  # a reader of a plugin, whose prediction does not hold the inner one
    ids = np.random.default_rng(0).integers(0, TYPES, 100)
    settings: dict[str, Any] = {"experiment": "truncate", "maximum_context": 20, "targets": 9, "memory": 1.0}
    found, plain = (bs.examine(one, ids, **settings).figures for one in (reader, reader.inner))
    assert found.baseline == plain.baseline


@pytest.mark.full
def test_the_cache_that_is_taken_away_is_the_outermost_reader(seeds: list[Path]) -> None:
    with pytest.raises(UserError, match="name the cache last"):
        bs.examine(seeds[0], None, "cache", reader=["cache", "tempered:temperature=1.25"], **SMALL)
    with pytest.raises(UserError, match="outermost layer is a cache"):
        bs.examine(build(), np.zeros(100, np.int64), "cache", maximum_context=20)


@pytest.mark.parametrize(
    ("options", "told"),
    [
        ({"targets": 1}, "targets must be 2 or more, not 1"),
        ({"near": 0}, "near must be 1 or more"),
        ({"tagger": None}, "tagger must be text or a function, not None"),
        ({"target": 5}, r"target.*did you mean 'targets'"),
    ],
)
def test_options_in_python_are_checked(options: dict[str, Any], told: str) -> None:
    with pytest.raises((UserError, TypeError), match=told):
        bs.examine(build(), np.zeros(100, np.int64), "truncate", **options)
    with pytest.raises(TypeError, match="model must be a Path or text"):
        bs.examine(object(), np.zeros(100, np.int64))  # type: ignore[arg-type]


@pytest.mark.full
def test_several_seeds_are_one_set(seeds: list[Path], tmp_path: Path) -> None:
    told: list[tuple[int, int]] = []
    together = bs.examine(
        seeds, None, "truncate", out=tmp_path / "set", progress=lambda done, total: told.append((done, total)), **SMALL
    )
    assert told[-1][0] == told[-1][1] and all(a[0] < b[0] for a, b in pairwise(told))
    alone = [read_examination(path / "examine-truncate-valid") for path in seeds]
    assert [m.seed for m in together.figures.models] == [1, 2, 3]
    assert [m.nats for m in together.figures.models] == [a.figures.baseline.nats for a in alone]
    for place, condition in enumerate(together.figures.conditions):
        effects = [a.figures.conditions[place].effect for a in alone]
        assert condition.effects == pytest.approx(effects)
        assert condition.deviation == pytest.approx(np.std(effects, ddof=1))
    assert json.loads((tmp_path / "set" / "result.json").read_text()) == together.to_dict()
    assert len(list((tmp_path / "set").glob("losses-*.npz"))) == 3
    assert "means over 3 models" in together.table()
    assert together.path == tmp_path / "set" / "result.json" and "--out" not in described(together)
    assert "the result of the set was not written: --out FOLDER keeps it" in described(replace(together, path=None))
    odd = [replace(model, name=name) for model, name in zip(alone, "abc", strict=True)]
    named = [replace(model, name=f"big-seed{n}") for n, model in enumerate(alone)]
    assert (combine(odd).name, combine(named).name) == ("a + b + c", "big (3 models)")
    assert combine(alone).figures == together.figures
    with pytest.raises(UserError, match="two runs at least"):
        bs.examine(seeds[:1], None, "truncate", **SMALL)
    with pytest.raises(UserError, match="seed2 is named twice"):
        bs.examine([*seeds[1:], seeds[1]], None, "truncate", **SMALL)
    with pytest.raises(UserError, match="the examinations differ in seed"):
        combine([alone[0], bs.examine(seeds[1], None, "truncate", seed=1, out=tmp_path / "other", **SMALL)])


def test_a_set_of_two_corpora_is_refused_before_anything_is_read(
    seeds: list[Path], tiny_config: RunConfig, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    train(replace(tiny_config, text=replace(tiny_config.text, minimum_count=3)), tmp_path / "other")
    monkeypatch.setattr("backstory.context.examined_text.read", lambda *_, **__: pytest.fail("it read the split"))
    with pytest.raises(UserError, match=r"other is of another corpus or tokenizer than .*seed1"):
        bs.examine([*seeds, tmp_path / "other"], None, "truncate", **SMALL)


def test_what_does_not_fit_in_python_is_told(tmp_path: Path) -> None:
    class Short:
        def score(self, contexts: Any, targets: Any, progress: Any = None) -> np.ndarray:
            return np.zeros(len(targets) - 1)

    ids = np.random.default_rng(0).integers(0, 5, 200)
    with pytest.raises(UserError, match=r"scores of shape \(29,\) for 30 targets"):
        bs.examine(Short(), ids, "truncate", targets=30, maximum_context=20)
    found = bs.examine(build(), ids, "truncate", targets=30, maximum_context=20)
    with pytest.raises(UserError, match=r"written as pdf, svg or png, and curve\.jpg.*name it curve\.svg"):
        found.plot(tmp_path / "curve.jpg")
    assert not list(tmp_path.iterdir())


def test_a_model_at_hand_is_examined_as_its_run_is(tiny_run: Path, tmp_path: Path) -> None:
    loaded = load_run(tiny_run)
    dataset = prepare(loaded.config.text)
    expected = bs.examine(tiny_run, None, "drop-target", out=tmp_path / "run", **SMALL).figures
    settings = {key: value for key, value in SMALL.items() if key != "precision"}
    for model in (loaded.model, StaticReader(loaded.model, FLOAT32)):
        found = bs.examine(model, dataset, "drop-target", **settings)
        for name in ("baseline", "conditions", "groups"):
            assert getattr(found.figures, name) == getattr(expected, name)
    assert found.save(tmp_path / "saved") == tmp_path / "saved" / "result.json"
    assert read_examination(tmp_path / "saved").to_dict() == found.to_dict()
    assert regroup(tmp_path / "saved", by=("class",)).groups == found.figures.groups
    assert found.table().splitlines()[0].startswith("model, valid split, 40 targets; with 20 tokens of context")
    assert all(name in found.table() for name in ("drop-target", "near", "far", "95% interval"))


def test_a_damaged_examination_is_refused_in_one_line(tmp_path: Path) -> None:
    none = np.zeros(0)
    Losses(none, none, none, 5, np.zeros((0, 0)), none, []).save(tmp_path / LOSSES)
    for content, fault in {
        '{"kind": "examination"}': "has schema None and this version reads schema 1",
        **dict.fromkeys(('{"kind": "examination", "kind": 1}', "[" * 5000, "[]"), "is "),
        "\xff": "it is not UTF-8 text",
    }.items():
        (tmp_path / "result.json").write_text(content, encoding="latin-1")
        with pytest.raises(UserError, match=rf"result\.json:? {fault}"):
            read_examination(tmp_path)


def test_anything_that_scores_is_examined_against_its_longest_context() -> None:
    class Guessing:
        """Finds a target the likelier, the more often its context has it."""

        def score(self, contexts: Sequence[np.ndarray], targets: np.ndarray, progress: Any = None) -> np.ndarray:
            found = [(np.sum(c == t) + 1) / (len(c) + 53) for c, t in zip(contexts, targets, strict=True)]
            return np.log(np.array(found))

    found = bs.examine(Guessing(), corpus()[0], targets=50, maximum_context=80)
    assert found.figures.baseline.context == 80 and found.figures.unit == "token"
    assert found.figures.conditions[-1].effect == 0.0 != found.figures.conditions[0].effect
    assert found.figures.groups == ()  # ids alone have no frequencies


def test_what_does_not_fit_a_model_at_hand_is_refused(tiny_run: Path, tmp_path: Path) -> None:
    model, words = bs.load(tiny_run)
    other = prepare(runs.tiny_config(runs.tiny_corpus(tmp_path / "other", 5)).text)
    assert len(other.vocabulary) != len(words) or other.vocabulary.words != words.words
    with pytest.raises(UserError, match="made with another vocabulary or tokenizer"):
        bs.examine(build(), other, maximum_context=5, targets=5)
    with pytest.raises(UserError, match="made with another vocabulary or tokenizer"):
        bs.examine(model, np.arange(100), maximum_context=5, targets=5)
    numbers = np.arange(100) % len(words)
    for ids, message in (
        (numbers + 0.5, "reads token ids"),
        (numbers > 3, "reads token ids"),
        (numbers[None], "reads token ids"),
        (numbers - 1, "token ids must be 0 or above, not -1"),
    ):
        with pytest.raises(UserError, match=message):
            bs.examine(model, ids, maximum_context=5, targets=5)
    with pytest.raises(UserError, match="a model in memory has no corpus of its own"):
        bs.examine(model)
    with pytest.raises(UserError, match=r"drop needs part-of-speech tags.*tagger"):
        bs.examine(model, np.zeros(100, int), "drop", maximum_context=30, context=20)
    with pytest.raises(UserError, match="a run is examined on its own corpus"):
        bs.examine(tiny_run, np.arange(100))


@pytest.mark.full
def test_a_truncation_is_plotted(tiny_run: Path, tmp_path: Path) -> None:
    found = bs.examine(tiny_run, experiment="truncate", out=tmp_path / "out", **SMALL)
    assert found.plot(tmp_path / "plot.svg").read_text().startswith("<svg")
    assert found.plot(tmp_path / "plot.png").read_bytes().startswith(b"\x89PNG")
    assert found.plot(tmp_path / "plot.pdf").read_bytes().startswith(b"%PDF")


def test_a_text_of_ones_own_is_examined(tiny_run: Path, tmp_path: Path) -> None:
    text = tmp_path / "own.txt"
    text.write_text(runs.sentences(30, 9))
    for experiment in ("truncate", "replace"):
        found = bs.examine(tiny_run, text, experiment, out=tmp_path / experiment, **SMALL)
        assert found.figures.split == "text" and found.figures.targets == 40
        assert found.provenance.corpus.name == "own.txt"


@pytest.mark.parametrize("experiment", fast_then_full(EXPERIMENTS, ["truncate", "replace", "cache"]))
def test_bfloat16_changes_no_mean(experiment: str, tiny_run: Path, tmp_path: Path) -> None:
    settings = {**SMALL, "tagger": tagger, "targets": 100}
    exact, rounded = (
        bs.examine(tiny_run, None, experiment, out=tmp_path / p, **{**settings, "precision": p}).figures
        for p in ("float32", "bfloat16")
    )
    levels = [[f.baseline, *f.conditions] for f in (exact, rounded)]
    nats = np.array([[level.nats for level in found] for found in levels])
    assert 0 < np.abs(nats[0] - nats[1]).max() < 0.002


# Processes.


@pytest.fixture(scope="module")
def long_run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A tiny run with a longer text to read, so that an examination of it can be caught in the middle."""
    folder = tmp_path_factory.mktemp("long")
    train(runs.tiny_config(runs.tiny_corpus(folder / "corpus", 1600)), folder / "run")
    return folder / "run"


def started(run: Path, out: Path, *flags: str, ranks: int = 1) -> subprocess.Popen:
    launcher = ["-m", "torch.distributed.run", "--nproc-per-node", str(ranks)] if ranks > 1 else []
    command = [sys.executable, *launcher, "-m", "backstory", "examine", str(run), "--out", str(out), *flags]
    return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env={**os.environ})


def finishes(process: subprocess.Popen) -> str:
    """Return its output."""
    out, said = process.communicate(timeout=300)
    assert process.returncode == 0, said
    return out


LONG = ("--experiment", "shuffle", "--targets", "2000", "--maximum-context", "100", "--context", "60",
        "--precision", "float32", "--device", "cpu")  # fmt: skip


@pytest.mark.full
def test_a_killed_examination_goes_on_and_ends_as_if_it_had_not_been(long_run: Path, tmp_path: Path) -> None:
    straight, broken = tmp_path / "straight", tmp_path / "broken"
    finishes(started(long_run, straight, *LONG))
    process = started(long_run, broken, *LONG)
    while not (broken / UNFINISHED).exists() or len(Losses.load(broken / UNFINISHED).conditions) < 3:
        assert process.poll() is None
        time.sleep(0.01)
    process.send_signal(signal.SIGKILL)
    process.communicate(timeout=60)
    assert not (broken / "result.json").exists()
    finishes(started(long_run, broken, *LONG))
    results = [json.loads((folder / "result.json").read_text()) for folder in (straight, broken)]
    assert results[0]["figures"] == results[1]["figures"]
    assert results[1]["provenance"]["taken_over"] >= 3
    assert (straight / LOSSES).read_bytes() == (broken / LOSSES).read_bytes()


@pytest.mark.full
@pytest.mark.parametrize("experiment", ["shuffle", "cache"])
def test_ranks_write_what_one_process_writes(experiment: str, long_run: Path, tmp_path: Path) -> None:
    flags = ("--experiment", experiment, *LONG[2:])
    ways = {"1": {"ranks": 1}, "3": {"ranks": 3}, "workers": {"workers": 3}}
    for name, processes in ways.items():
        more = ("--workers", str(processes["workers"])) if "workers" in processes else ()
        out = finishes(started(long_run, tmp_path / name, *flags, *more, ranks=processes.get("ranks", 1)))
        assert out.count("targets; with") == 1
    one, *others = (json.loads((tmp_path / name / "result.json").read_text()) for name in ways)
    assert all(result["figures"] == one["figures"] for result in others)
    assert [result["provenance"]["ranks"] for result in (one, *others)] == [1, 3, 3]
    assert len({(tmp_path / name / LOSSES).read_bytes() for name in ways}) == 1


@pytest.mark.full
def test_a_killed_worker_is_one_line(long_run: Path, tmp_path: Path) -> None:
    process = started(long_run, tmp_path / "out", *LONG, "--workers", "3")
    while not (tmp_path / "out" / UNFINISHED).exists():
        assert process.poll() is None
        time.sleep(0.01)
    workers = Path(f"/proc/{process.pid}/task/{process.pid}/children").read_text().split()
    os.kill(int(workers[1]), signal.SIGKILL)
    _, said = process.communicate(timeout=60)
    assert process.returncode == 2 and said.count("backstory: worker 2 was ended by SIGKILL") == 1
    assert said.endswith("; give the same command again\n")
    assert not any(Path(f"/proc/{pid}").exists() for pid in workers)
    again = finishes(started(long_run, tmp_path / "out", *LONG))
    assert "targets; with" in again and not (tmp_path / "out" / UNFINISHED).exists()


def test_torch_is_not_needed_to_import_backstory() -> None:
    code = "import backstory as bs, sys; bs.__all__; print('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, text=True).stdout == "False\n"
    assert torch.__version__
