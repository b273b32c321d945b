"""Packaged suites are valid, and any mistake in a suite is one line before anything is written."""

import re
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import torch
import yaml
from small_suites import BROKEN, CLAIM, suite, write

from backstory.cli.main import main
from backstory.config import DualConfig, MixtureConfig, SpanBufferConfig, from_yaml
from backstory.models import build_model, count_parameters
from backstory.papers import paper as papers
from backstory.papers import suite as suites
from backstory.papers.claims import published_gain
from backstory.papers.plan import SuiteRun, published_figure, runs_of
from backstory.papers.suite import Scale, Suite
from backstory.utils.errors import UserError

PTB_TYPES = 10_000
PAGE = Path(__file__).parents[2] / "docs" / "reproduce.md"


BOTH: tuple[Scale, ...] = ("small", "full")
# Nothing on synthetic documents has a published size, and some suites' published sizes are in others.
SMALL_ALONE = ("recall", "recall-continued", "wikitext-2", "localized-ntm-middle")
SCALES = [(name, scale) for name in suites.names() for scale in BOTH if scale == "small" or name not in SMALL_ALONE]
HOURS = {
    "base": 40,
    "span-buffer": 30,
    "dual": 17,
    "context": 12,
    "dynamical": 11,
    "wikitext-2": 50,
    "localized-ntm-middle": 43,
    "regularized-lstm": 31,
}
"""Core-hours of small scales that take more than six."""


@cache
def planned(name: str, scale: Scale) -> tuple[SuiteRun, ...]:
    """The runs of a packaged suite, planned and checked once for all tests."""
    return tuple(runs_of(suites.load(name), scale, name))


@pytest.mark.parametrize(("name", "scale"), SCALES)
def test_packaged_suites_are_right(name: str, scale: Scale) -> None:
    runs = planned(name, scale)
    assert len({run.name for run in runs}) == len(runs)
    if scale == "small":
        hours = sum(run.minutes for run in runs) / 60
        assert hours < HOURS.get(name, 6), "a small suite takes less than six core-hours, or as its page says"


def test_the_systems_of_base_have_the_same_size_at_the_small_scale() -> None:
    configs = {run.system: run.config for run in planned("base", "small")}
    sizes = {system: count_parameters(build_model(config.model, PTB_TYPES)) for system, config in configs.items()}
    assert sizes["awd-lstm"] == 2_653_200
    assert abs(sizes["mos"] / sizes["awd-lstm"] - 1) < 0.02
    mixture = configs["mos"].model.head
    assert isinstance(mixture, MixtureConfig) and mixture.experts == 5
    for system in configs.keys() - {"mos"}:
        assert sizes[system] == sizes["awd-lstm"]


@pytest.mark.full
@pytest.mark.parametrize("name", papers.paper_names())
def test_a_packaged_suite_puts_each_paper_to_the_test(name: str) -> None:
    paper = papers.paper(name)
    assert re.fullmatch(r"[A-Z][\w ]+ (et al\.|and [A-Z][\w-]+) \d{4}", paper.cited)
    about = [suite for suite in map(suites.load, suites.names()) if name in suite.papers]
    used = {
        reading.published.figure
        for suite in about
        for system in suite.systems
        for reading in system.readings
        if reading.published
    }
    assert any(figure and figure.startswith(f"{name}/") for figure in used)


def test_the_suite_of_the_span_buffer_has_its_tables_beside_it() -> None:
    figures = papers.paper("span-buffer").values
    printed = {name for name in figures if "table-3" not in name}
    assert len(printed) == 64 and len(figures) == 80
    for name, value in {
        "ptb-awd-lstm-snb-valid": 56.82,
        "ptb-mos-snb-test-dynamic": 45.41,
        "ptb-mos-ps-at-snb-test": 50.18,
        "wikitext-2-mos-ps-valid-dynamic": 40.75,
        "wikitext-2-mos-ps-at-snb-test-dynamic": 35.16,
        "wikitext-2-awd-lstm-valid": 68.60,
        "ptb-table-3-only-buffer": 52.54,
        "wikitext-2-table-3-oracle": 32.35,
    }.items():
        assert figures[name].value == value, name
    full = [system for system in suites.load("span-buffer").systems if system.full]
    beside = {reading.published.figure for system in full for reading in system.readings if reading.published}
    assert len(full) == 16 and beside == {f"span-buffer/{name}" for name in printed}


def test_the_full_size_span_buffers_have_the_published_settings() -> None:
    runs = {run.system: run.config for run in planned("span-buffer", "full")}
    for system, config in runs.items():
        buffer, training = config.model.buffer, config.training
        assert (config.text.corpus, isinstance(buffer, SpanBufferConfig)) == (
            "ptb" if system.startswith("ptb") else "wikitext-2",
            system.endswith("-snb"),
        )
        if isinstance(buffer, SpanBufferConfig):
            gate = buffer.gate
            found = (buffer.size, buffer.span, gate.training_temperature, gate.temperature)
            assert found == ((2048, 8, 100.0, 0.1) if system.startswith("ptb") else (512, 4, 10.0, 0.01))
            assert gate.reward.weight > 0
        assert training.partial_shuffle is ("-ps" in system)
        assert (config.model.head.adversarial, config.model.head.finetune_adversarial) == (
            (0.005, 0.028) if "-at" in system else (0.0, None)
        )
        assert isinstance(config.model.head, MixtureConfig) is ("-mos" in system)


def test_the_dual_connection_s_full_scale_has_the_published_models() -> None:
    figures = papers.paper("dual").values
    assert figures["ptb-dual-mdlstm-test-dynamic"].value == 48.0 and figures["ptb-mos-pdr-valid"].value == 56.2
    full = [system for system in suites.load("dual").systems if system.full]
    beside = {reading.published.figure for system in full for reading in system.readings if reading.published}
    in_table_2 = {f"dual/{name}" for name, figure in figures.items() if figure.where == "table 2"}
    assert {name for name in in_table_2 if not name.endswith("-valid-dynamic")} <= beside
    # In millions, as table 2 prints them; of WikiText-2 they belong to its text in lower case.
    millions = {"ptb-lstm": 8.88, "ptb-dual-lstm": 9.60, "ptb-dlstm": 13.62, "ptb-dual-dlstm": 13.94, "ptb-mdlstm": 21.43,
                "ptb-dual-mdlstm": 22.88, "ptb-mdlstm-plus": 22.16, "wikitext-2-lstm": 20.23, "wikitext-2-dual-lstm": 20.95,
                "wikitext-2-dlstm": 29.60, "wikitext-2-dual-dlstm": 30.32, "wikitext-2-mdlstm": 37.51,
                "wikitext-2-dual-mdlstm": 38.95, "ptb-tuned-dual-mdlstm": 22.88}  # fmt: skip
    runs = {run.system: run.config for run in planned("dual", "full") if run.system in millions}
    for system, config in runs.items():
        lower = system.startswith("wikitext-2")
        assert (config.text.corpus, config.text.lowercase) == (("wikitext-2", True) if lower else ("ptb", False))
        with torch.device("meta"):
            count = count_parameters(build_model(config.model, 28_912 if lower else PTB_TYPES))
        assert round(count / 1e6, 2) == millions[system], system
    assert runs.keys() == millions.keys()


TYPES = {
    ("ptb", False): PTB_TYPES,
    ("wikitext-2", False): 33_278,
    ("wikitext-2", True): 28_912,
    ("ptb-char-50", False): 50,
    ("enwik8", False): 256,
}
"""By corpus, and whether it is in lower case."""


def has_printed_size(count: int, printed: str) -> bool:
    """True if a number of parameters is within 2% of a printed one (`24 M`), or of one unit of its last digit."""
    number = printed.removesuffix(" M")
    unit = 10.0 ** -len(number.partition(".")[2])
    return abs(count / 1e6 - float(number)) < max(0.02 * float(number), unit)


def test_sizes_are_compared_as_they_are_printed() -> None:
    assert all(has_printed_size(count, "18.3 M") for count in (18_392_574, 18_000_000, 18_600_000))
    assert has_printed_size(24_542_800, "24 M") and not has_printed_size(25_100_000, "24 M")
    assert not has_printed_size(364_214, "13.2 M") and not has_printed_size(14_525_050, "13.4 M")


@pytest.mark.parametrize("name", [name for name, scale in SCALES if scale == "full"])
def test_a_full_size_row_has_the_size_of_the_figure_beside_it_or_says_otherwise(name: str) -> None:
    loaded = suites.load(name)
    configs = {run.system: run.config for run in runs_of(loaded, "full", name)}
    for system in loaded.systems:
        beside = [r.published.figure for r in system.readings if r.published and r.published.figure and system.full]
        sizes = {papers.published_value(figure)[0].parameters for figure in beside} - {""}
        if not sizes:
            continue
        config = configs[system.name]
        with torch.device("meta"):
            model = build_model(config.model, TYPES[config.text.corpus, config.text.lowercase])
        count = count_parameters(model)
        for printed in sizes:
            assert has_printed_size(count, printed) or f"prints {printed}" in system.note, (system.name, count, printed)


def test_printed_sizes_are_known() -> None:
    for name in ("awd-lstm/ptb-test", "mos/wikitext-2-test", "dual/ptb-lstm-valid", "span-buffer/ptb-mos-snb-test"):
        assert papers.published_value(name)[0].parameters
    assert all(figure.parameters for figure in papers.paper("localized-ntm").values.values())


def test_full_size_windows_are_of_the_printed_rule() -> None:
    """Those beside a printed figure, and those that are compared with them."""
    systems = [system for system in suites.load("localized-ntm").systems if system.full]
    windows = [r for system in systems for r in system.readings if r.addressing]
    assert sum(bool(r.published) for r in windows) == 16 and len(windows) == 18
    assert all(r.addressing and r.addressing.endswith(":strict") for r in windows)


def test_the_small_dual_connections_differ_in_nothing_but_the_connection() -> None:
    configs = {run.system: run.config for run in planned("dual", "small")}
    for name in ("lstm", "dlstm", "mdlstm"):
        plain, control = (replace(configs[system], model=replace(configs[system].model, dual=DualConfig()))
                          for system in (name, f"{name}-plus"))  # fmt: skip
        dual = replace(configs[f"dual-{name}"], model=replace(configs[f"dual-{name}"].model, dual=DualConfig()))
        assert plain == control == dual
        parts = [configs[system].model.dual for system in (name, f"dual-{name}", f"{name}-plus")]
        assert parts[0].kind == "none" and isinstance(parts[1], DualConfig) and isinstance(parts[2], DualConfig)
        assert parts[1].direct and parts[2] == replace(parts[1], direct=False)


@pytest.mark.parametrize(("name", "scale"), SCALES)
def test_runs_begin_with_parts_of_their_own_model(name: str, scale: Scale) -> None:
    runs = {run.name: run for run in planned(name, scale)}
    for run in runs.values():
        if run.init_from:
            first = runs[run.init_from]
            assert (first.config.text, first.seed) == (run.config.text, run.seed)
            with torch.device("meta"):
                theirs, own = (build_model(r.config.model, PTB_TYPES).state_dict() for r in (first, run))
            assert {key: t.shape for key, t in theirs.items()}.items() <= {
                key: t.shape for key, t in own.items()
            }.items()


def test_published_figures_carry_their_source() -> None:
    systems = {system.name: system for system in suites.load("base").systems}
    reading = systems["mos"].readings[0].published
    assert reading is not None
    assert published_figure(reading) == (54.44, None, "Yang et al. 2018, table 1")


def test_a_printed_gain_is_of_one_paper_and_of_a_claim_that_it_makes() -> None:
    suite = suites.load("wikitext-2")
    gains = {claim.sentence: published_gain(suite, claim) for claim in suite.claims}
    assert gains["In small, AWD-LSTM + SNB beats AWD-LSTM on WikiText-2"] == 5.37, (
        "table 2 of its paper, not Wolf's 64.80"
    )
    beats = next(claim for claim in suite.claims if claim.sentence.startswith("The meta-learner beats"))
    assert gains[beats.sentence] is published_gain(suite, replace(beats, where="section 3")) is None, "of two papers"
    dynamic = next(claim for claim in suite.claims if claim.sentence.startswith("Dynamic evaluation helps"))
    whole = (replace(side, system="awd-lstm-full-softmax") for side in (dynamic.better, dynamic.than))
    printed = replace(dynamic, **dict(zip(("better", "than"), whole, strict=True)))
    assert published_gain(suite, printed) is None, "the claim names no table"
    assert published_gain(suite, replace(printed, where="table 2")) == 21.5


def test_the_suite_of_the_page_is_right() -> None:
    [block] = re.findall(r"```yaml\n(.*?)```", PAGE.read_text(encoding="utf-8"), re.DOTALL)
    suite = from_yaml(Suite, block, "the page")
    assert len(runs_of(suite, "small", "the page")) == 9
    keys = {key for line in block.splitlines() if (key := line.partition(":")[0].strip(" -#{"))}
    assert {
        "title",
        "metric",
        "systems",
        "readings",
        "published",
        "small",
        "overrides",
        "init_from",
        "seeds",
        "claims",
    } <= keys


def test_the_row_of_a_part_of_another_kind_takes_nothing_from_the_recipe(desk: Path) -> None:
    systems = suite()["systems"]
    systems[1]["small"]["overrides"] = {"model": {"head": {"kind": "mixture", "experts": 3}}, "seed": 0}
    del systems[1]["small"]["overrides"]["seed"]
    runs = runs_of(from_yaml(Suite, yaml.safe_dump(suite(systems=systems)), "mine"), "small", "mine")
    heads = [run.config.model.head for run in runs]
    assert heads[2] == MixtureConfig(experts=3) and heads[0].kind == "softmax"
    assert [(run.name, run.seed, run.config.seed) for run in runs] == [
        ("plain-seed1", 1, 1),
        ("plain-seed2", 2, 2),
        ("wide-seed1", 1, 1),
        ("wide-seed2", 2, 2),
    ]
    assert [len(run.examinations) for run in runs] == [1, 0, 0, 0]


def system(**changes: Any) -> dict[str, Any]:
    """The suite with changes to its first system."""
    changed = suite()
    changed["systems"][0] |= changes
    return changed


def small(**changes: Any) -> dict[str, Any]:
    """The suite with changes to how its first system is run."""
    changed = suite()
    changed["systems"][0]["small"] |= changes
    return changed


def examined(**changes: Any) -> dict[str, Any]:
    """The suite with one examination of its first system."""
    return small(examinations=[{"experiment": "truncate", **changes}])


def without(key: str) -> dict[str, Any]:
    changed = suite()
    del changed["systems"][0]["small"][key]
    return changed


def published_as(**published: Any) -> dict[str, Any]:
    return system(readings=[{"published": published}])


def begins(systems: dict[str, str]) -> dict[str, Any]:
    """The suite with systems that begin with others."""
    changed = suite()
    for one in changed["systems"]:
        one["small"] |= {"init_from": systems[one["name"]]} if one["name"] in systems else {}
    return changed


def claim(**changes: Any) -> dict[str, Any]:
    return suite(claims=[CLAIM | changes])


BAD = {
    "a key": (suite(systemss=[]), r"unknown key 'systemss' \(did you mean 'systems'\?\)"),
    "a key of a system": (
        system(redings=[]),
        r"unknown key 'systems\[0\].redings' \(did you mean 'systems\[0\].readings'\?\)",
    ),
    "a key of a setup": (
        small(seed=[1]),
        r"unknown key 'systems\[0\].small.seed' \(did you mean 'systems\[0\].small.seeds'\?\)",
    ),
    "no title": ({k: v for k, v in suite().items() if k != "title"}, r"title is missing; add it"),
    "no recipe": (without("recipe"), r"systems\[0\].small.recipe is missing"),
    "no minutes": (without("minutes"), r"systems\[0\].small.minutes is missing"),
    "no systems": (suite(systems=[], claims=[]), r"systems is empty"),
    "minutes of nothing": (small(minutes=0), r"systems\[0\].small.minutes must be above 0"),
    "infinite minutes": (small(minutes=float("inf")), r"systems\[0\].small.minutes must be above 0 and finite"),
    "a recipe": (small(recipe="demoo"), r"system plain, small: there is no recipe 'demoo' \(did you mean 'demo'\?\)"),
    "a recipe's file": (small(recipe="none.yaml"), r"system plain, small: cannot read none.yaml"),
    "an override's path": (
        small(overrides={"model": {"cor": {}}}),
        r"system plain, small, overrides: unknown key 'model.cor' \(did you mean 'model.core'\?\)",
    ),
    "an override's value": (
        small(overrides={"training": {"epochs": 0}}),
        r"system plain, small, overrides: training.epochs must be at least 1",
    ),
    "an override's kind": (
        small(overrides={"model": {"head": {"kind": "mixtur"}}}),
        r"model.head.kind must be one of softmax, mixture, not 'mixtur' \(did you mean 'mixture'\?\)",
    ),
    "overrides of nothing": (small(overrides=3), r"systems\[0\].small.overrides must be a mapping, not 3"),
    "drawn settings of another corpus": (
        small(overrides={"text": {"algorithm": {"bits": 3}}}),
        r"system plain, small: text.algorithm.bits is for the corpus copy or .*; leave it out",
    ),
    "an overridden seed": (small(overrides={"seed": 3}), r"overrides sets a seed; seeds are set by `seeds`"),
    "settings that exclude each other": (
        small(overrides={"training": {"optimizer": "adam", "finetune_epochs": 3}}),
        r"system plain, small: training.finetune_epochs, .* need training.optimizer sgd",
    ),
    "no seeds": (small(seeds=[]), r"system plain, small: seeds is empty"),
    "a seed twice": (small(seeds=[1, 2, 1]), r"system plain, small: seeds lists 1 twice; remove one"),
    "a negative seed": (small(seeds=[-1]), r"a seed must be at least 0 and at most 2147483647, not -1"),
    "a seed too large": (small(seeds=[2**31]), r"a seed must be at least 0 and at most 2147483647"),
    "a name twice": (system(name="wide"), r"two systems are called wide"),
    "a name that is a path": (system(name="../wide"), r"a name is made of letters, digits, dots and hyphens"),
    "a name longer than a file's": (system(name="a" * 300), r"a name has at most 200 letters"),
    "no readings": (system(readings=[]), r"system plain: readings is empty"),
    "a reading twice": (system(readings=[{}, {"split": "test"}]), r"system plain: two readings of test, static"),
    "a reader": (system(readings=[{"reader": "statik"}]), r"no reader 'statik' \(did you mean 'static'\?\)"),
    "a reader of a plugin": (
        system(readings=[{"reader": "sharp"}]),
        r"no reader 'sharp'; .* of a plugin needs --plugin",
    ),
    "an experiment of a plugin": (
        small(examinations=[{"experiment": "swap"}]),
        r"no experiment 'swap'; .* needs --plugin",
    ),
    "a split": (system(readings=[{"split": "tset"}]), r"no split 'tset' \(did you mean 'test'\?\)"),
    "an experiment": (
        small(examinations=[{"experiment": "trunc"}]),
        r"no experiment 'trunc' \(did you mean 'truncate'",
    ),
    "an examination twice": (small(examinations=[{}, {}]), r"two examinations truncate on valid"),
    "no scale": (
        {**suite(), "systems": [{"name": "plain"}], "claims": []},
        r"system plain: it has neither `small` nor `full`",
    ),
    "published without a source": (published_as(value=5.0), r"system plain: published has no source"),
    "published without a value": (
        published_as(source="Somebody"),
        r"needs either a figure of a paper here, or a value",
    ),
    "published twice": (published_as(figure="mos/ptb-test", value=5.0), r"needs either a figure of a paper here, or"),
    "a figure with a source": (published_as(figure="mos/ptb-test", source="me"), r"has its source already"),
    "a paper's figure": (
        published_as(figure="awd-lstm/ptb-tset"),
        r"there is no value of awd-lstm 'ptb-tset' \(did you mean 'ptb-test'\?\)",
    ),
    "a figure's paper": (published_as(figure="awd/ptb-test"), r"system plain: there is no paper 'awd'"),
    "a figure of another split": (
        published_as(figure="mos/ptb-valid"),
        r"mos/ptb-valid is a perplexity of the valid split",
    ),
    "a figure of another metric": (
        published_as(figure="mos/ptb-test") | {"metric": "bits_per_token"},
        r"is a perplexity of the test split .* compared with the bits_per_token",
    ),
    "a metric": (suite(metric="loss"), r"metric must be one of perplexity, bits_per_token, not 'loss'"),
    "a paper": (suite(papers=["mss"]), r"papers: there is no paper 'mss' \(did you mean 'mos'\?\)"),
    "a figure of one system": (
        system(readings=[{"batch_size": 10, "published": {"figure": "awd-lstm/ptb-test"}}]),
        r"compared with the perplexity of test, static, batch of 10",
    ),
    "systems of nothing": (
        system(readings=[{"batch_size": 0}]),
        r"systems\[0\].readings\[0\].batch_size must be at least 1",
    ),
    "a reading of a larger batch twice": (
        system(readings=[{"batch_size": 10}, {}, {"batch_size": 10}]),
        r"system plain: two readings of test, static, batch of 10",
    ),
    "a claim's systems": (
        claim(better={"system": "wide", "batch_size": 10}),
        r"system wide does not read test, static, batch of 10",
    ),
    "a system that begins with itself": (
        small(init_from="plain"),
        r"system plain, small: it begins with itself; begin with",
    ),
    "systems that begin with each other": (
        begins({"plain": "wide", "wide": "plain"}),
        r"system plain, small: it begins with itself, by way of wide;",
    ),
    "a system to begin with": (
        small(init_from="wyde"),
        r"small: init_from: there is no system 'wyde' \(did you mean 'wide'\?\)",
    ),
    "a system to begin with at another scale": (
        {
            **suite(),
            "systems": [
                small(init_from="wide")["systems"][0],
                {"name": "wide", "full": suite()["systems"][1]["small"]},
            ],
        },
        r"system plain, small: it begins with system wide, which is not at the small scale",
    ),
    "a seed to begin with": (
        small(init_from="wide", seeds=[1, 2, 3]),
        r"system plain, small: it begins with system wide, which has no seed 3",
    ),
    "a claim's system": (claim(better={"system": "wyde"}), r"no system 'wyde' \(did you mean 'wide'\?\)"),
    "a claim's reading": (
        claim(better={"system": "wide", "split": "valid"}),
        r"system wide does not read valid, static",
    ),
    "a claim of a system against itself": (claim(better={"system": "plain"}), r"it compares system plain with itself"),
    "a system to begin with of another size": (
        begins({"wide": "plain"}),
        r"system wide, small: it begins with system plain, which does not fit its model: .* has shape",
    ),
    "parts that do not fit together": (
        small(overrides={"model": {"core": {"kind": "transformer", "hidden": 7, "heads": 2}}}),
        r"system plain, small: model.core.hidden must be a multiple of 4",
    ),
    "an examination with a reader that learns": (
        examined(reader=["dynamic"]),
        r"system plain, small: the reader dynamic learns as it reads",
    ),
    "an examination's split of another experiment": (
        examined(by=["cache"]),
        r"system plain, small: only the experiment cache splits by cache",
    ),
    "an examination's cache inside another reader": (
        examined(experiment="cache", reader=["cache", "tempered"]),
        r"system plain, small: what is taken away is the outermost reader",
    ),
    "an examination of longer contexts than the longest": (
        examined(experiment="shuffle", maximum_context=200),
        r"system plain, small: contexts of 300 tokens are longer than the longest, 200",
    ),
    "an examination's tagger": (examined(tagger=3), r"system plain, small: tagger must be text, not 3"),
    "a preparation with an open quote": (
        system(prepare=["tune --reader 'dynamic"]),
        r"system plain: the preparation .* cannot be read \(no closing quotation\); correct it",
    ),
    "a preparation's flag": (
        system(prepare=["statistics", "tune --reader dynamic --batch-size 3"]),
        r"system plain: prepare 'tune --reader dynamic --batch-size 3': there is no flag --batch-size",
    ),
    "a preparation's value": (
        system(prepare=["statistics", "train --skip few"]),
        r"system plain: prepare 'train --skip few': --skip must be a whole number or none, not 'few'",
    ),
    "a preparation of help": (
        system(prepare=["statistics", "tune --help"]),
        r"system plain: prepare 'tune --help': it prints a page of help; leave it out",
    ),
    "a reading without its statistics": (
        system(readings=[{"reader": "dynamic+cache"}]),
        r"system plain: the reading 'test, dynamic\+cache' needs what `backstory reader statistics` makes; "
        r"add 'statistics' to prepare, before it",
    ),
    "a reading with other statistics": (
        system(prepare=["statistics"], readings=[{"reader": "dynamic:moving=low-rank:2"}]),
        r"needs what `backstory reader statistics --moving low-rank:2` makes; add 'statistics --moving low-rank:2'",
    ),
    "a reading without its meta-learner": (
        system(prepare=["statistics", "train --name mine"], readings=[{"reader": "learned"}]),
        r"system plain: the reading 'test, learned' needs what `backstory reader train` makes; add 'train' to",
    ),
    "a preparation before its statistics": (
        system(prepare=["tune --reader dynamic", "statistics"]),
        r"prepare 'tune --reader dynamic' needs what `backstory reader statistics` makes; .*, before it",
    ),
    "a template of nothing": (suite(templates={"short": None}), r"templates must be entries of systems by name"),
    "a template called by a number": (suite(templates={3: {}}), r"templates must be entries of systems by name"),
    "a departure called by a number": (suite(departures={3: "s"}), r"departures must be sentences by name"),
    "a claim across scales": (
        {**suite(), "systems": [suite()["systems"][0], {"name": "wide", "full": suite()["systems"][1]["small"]}]},
        r"wide and plain are at no scale together",
    ),
}


@pytest.mark.parametrize(("bad", "says"), BAD.values(), ids=BAD)
def test_a_bad_suite_is_one_line_and_nothing_is_written(
    bad: dict[str, Any], says: str, desk: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    name = write(bad)
    before = sorted(desk.rglob("*"))
    code = main(["reproduce", name])
    shown = capsys.readouterr()
    assert (code, shown.out) == (2, "")
    assert re.match(r"backstory: suite\.yaml: ", shown.err) and shown.err.count("\n") == 1, shown.err
    assert re.search(says, shown.err), shown.err
    assert sorted(desk.rglob("*")) == before


@pytest.mark.parametrize("broken", [suite(), suite(systems=[*suite()["systems"], BROKEN])])
def test_the_suite_that_is_changed_into_bad_ones_is_right(broken: dict[str, Any], desk: Path) -> None:
    assert main(["reproduce", write(broken), "--dry-run"]) == 0


def test_a_corpus_that_is_not_there_is_told_before_anything_is_written(
    desk: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    changed = suite()
    changed["systems"][1]["small"]["overrides"]["text"] = {"corpus": "nowhere.txt"}
    name = write(changed)
    assert main(["reproduce", name]) == 2
    assert re.fullmatch(r"backstory: .*nowhere.txt.*\n", capsys.readouterr().err)
    assert not (desk / "runs").exists()


def test_a_scale_without_rows_is_told(desk: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["reproduce", write(suite()), "--scale", "full"]) == 2
    assert "suite.yaml has nothing at the full scale; give another with --scale" in capsys.readouterr().err


TEMPLATES = """
title: t
templates:
  short: {small: {recipe: ptb-small, seeds: [1], minutes: 2, overrides: {training: {epochs: 3, clip: 0.5}}}}
  noted: {extends: short, note: short}
systems:
  - {name: a, extends: noted, small: {overrides: {training: {clip: 0.25}}}}
  - {name: b, extends: short, small: {seeds: [4, 5]}}
"""


def test_a_system_has_the_entries_of_its_template_but_its_own(tmp_path: Path) -> None:
    path = tmp_path / "mine.yaml"
    path.write_text(TEMPLATES)
    a, b = suites.load(str(path)).systems
    assert a.small and b.small and (a.note, b.note) == ("short", "")
    assert a.small.overrides == {"training": {"epochs": 3, "clip": 0.25}}
    assert b.small.overrides == {"training": {"epochs": 3, "clip": 0.5}} and b.small.seeds == (4, 5)
    assert [run.name for run in runs_of(suites.load(str(path)), "small", "mine")] == ["a-seed1", "b-seed4", "b-seed5"]


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ("extends: noted", "extends: notd", r"systems\[0\]: there is no template 'notd' \(did you mean 'noted'\?\)"),
        ("extends: short, note", "extends: noted, note", "template noted: there is no template 'noted'"),
        ("extends: noted", "extends: [noted]", r"systems\[0\]: extends must be the name of a template"),
        ("note: short", "nte: short", r"unknown key 'systems\[0\].nte'"),
        ("clip: 0.25", "clp: 0.25", "clp"),
    ],
)
def test_what_is_wrong_with_a_template_is_one_line(old: str, new: str, message: str, tmp_path: Path) -> None:
    path = tmp_path / "mine.yaml"
    path.write_text(TEMPLATES.replace(old, new))
    with pytest.raises(UserError, match=message):
        runs_of(suites.load(str(path)), "small", "mine")


def test_a_template_that_no_system_extends_is_told(tmp_path: Path) -> None:
    path = tmp_path / "mine.yaml"
    path.write_text(TEMPLATES.replace("  noted:", "  odd: {smal: {}}\n  noted:"))
    with pytest.warns(UserWarning, match=r"mine.yaml: no system extends the template odd, so it has no effect"):
        suites.load(str(path))


def test_readings_have_what_the_preparations_make(desk: Path) -> None:
    prepared = ["statistics", "train", "train --name mine", "tune --reader dynamic", "tune --reader cache"]
    readers = ["dynamic:moving=last:2", "dynamic:rule=nadam,moving=low-rank:2+cache", "learned", "learned:network=mine"]
    changed = system(prepare=prepared, readings=[{}, *({"reader": reader} for reader in readers)])
    assert len(runs_of(suites.load(write(changed)), "small", "mine")[0].readings) == 5


DEPARTURES = """
title: t
departures: {few: 5 softmaxes for 15, ours: the reward is ours}
templates:
  short: {protocol: [few], small: {recipe: ptb-small, seeds: [1], minutes: 2, examinations: [{experiment: truncate}]}}
systems:
  - {name: a, extends: short}
  - {name: b, extends: short, protocol: [few, ours]}
  - {name: c, extends: short, protocol: in a sentence}
findings:
  - {paper: context, system: a, protocol: [ours]}
"""


def test_a_departure_that_systems_and_findings_share_is_written_once(tmp_path: Path) -> None:
    path = tmp_path / "mine.yaml"
    path.write_text(DEPARTURES)
    mine = suites.load(str(path))
    assert [system.protocol for system in mine.systems] == [
        "5 softmaxes for 15", "5 softmaxes for 15; the reward is ours", "in a sentence"
    ]  # fmt: skip
    assert [check.protocol for check in mine.findings] == ["the reward is ours"]


OF_READERS = "slow: {readers: [dynamic], sentence: a step every 20 tokens}"


def test_a_departure_of_readers_is_one_of_the_readings_with_them(tmp_path: Path) -> None:
    path = tmp_path / "mine.yaml"
    readings = "[{}, {reader: 'dynamic:rule=nadam+tempered'}, {reader: cache}, {reader: dynamic, protocol: ours}]"
    text = DEPARTURES.replace("ours: the reward is ours}", f"ours: the reward is ours, {OF_READERS}}}")
    path.write_text(text.replace("protocol: [few, ours]", f"protocol: [few, slow], readings: {readings}"))
    system = suites.load(str(path)).systems[1]
    assert system.protocol == "5 softmaxes for 15"
    step = "a step every 20 tokens"
    assert [reading.protocol for reading in system.readings] == ["", step, "", f"ours; {step}"]
    path.write_text(text.replace("protocol: [few, ours]", "protocol: [few, slow]"))
    with pytest.raises(
        UserError, match=r"systems\[1\]: protocol names a departure of readings with dynamic, and there are no"
    ):
        suites.load(str(path))
    for wrong in ("slow: {readers: dynamic, sentence: x}", "slow: {sentence: x}", "slow: {readers: [], sentence: x}"):
        path.write_text(text.replace(OF_READERS, wrong))
        with pytest.raises(UserError, match="departures must be sentences by name, or"):
            suites.load(str(path))


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ("[few, ours]", "[few, our]", r"systems\[1\]: there is no departure 'our' \(did you mean 'ours'\?\)"),
        ("[ours]", "[theirs]", r"findings\[0\]: there is no departure 'theirs'"),
        ("[few, ours]", "[[few]]", r"systems\[1\]: there is no departure"),
        ("ours: the reward is ours", "ours: [1]", "departures must be sentences by name"),
        (
            "departures: {few: 5 softmaxes for 15, ours: the reward is ours}\n",
            "",
            r"systems\[0\]: protocol names departures, and the suite has none; write a sentence",
        ),
    ],
)
def test_what_is_wrong_with_a_departure_is_one_line(old: str, new: str, message: str, tmp_path: Path) -> None:
    path = tmp_path / "mine.yaml"
    path.write_text(DEPARTURES.replace(old, new))
    with pytest.raises(UserError, match=message):
        suites.load(str(path))
