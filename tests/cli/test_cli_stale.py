"""Results of weights that a run no longer has are marked, renewed by the printed command, and never written into it."""

import json
import shlex
import signal
import subprocess
import time
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from commands import SMALL, Command, Outcome, process, tree

from backstory.results import read
from backstory.runs.run import load_run, weights_hash
from backstory.storage.atomic import sha256

TRAIN_ON = ("train", "m", "--resume", "--accept", "config", "--training.epochs", "3")


def trained(command: Command, corpus: str = "good.txt", *more: str) -> None:
    done = command("train", "demo", *SMALL, "--corpus", corpus, "--out", "m", *more)
    assert done.code == 0, done.err


def ran(outcome: Outcome) -> Outcome:
    assert outcome.code == 0, outcome.err
    return outcome


def written(folder: str) -> dict[str, Any]:
    return json.loads(Path("m", folder, "result.json").read_text())


def report(command: Command) -> tuple[str, Outcome]:
    with warnings.catch_warnings():
        warnings.simplefilter("always")  # as on the command line, where a warning is a line of stderr
        done = ran(command("report", "m"))
    return " ".join(Path("report.html").read_text().split()), done


def now() -> str:
    """The hash of the weights that the run has now."""
    return weights_hash(load_run(Path("m")).model)


@pytest.mark.full
def test_every_result_names_its_weights(command: Command) -> None:
    trained(command)
    verbs = [
        ("evaluate", "m"),
        ("examine", "m", "--targets", "5", "--maximum-context", "8"),
        ("explain", "surprisal", "m", "--words", "5"),
        ("explain", "reading", "m", "--tokens", "40", "--words", "5", "--against", "static", "--reader", "cache"),
        ("generate", "m", "--tokens", "3", "--save"),
    ]
    for verb in verbs:
        ran(command(*verb))
    results = [json.loads(path.read_text()) for path in (Path("m/result.json"), *Path("m").glob("*/result.json"))]
    assert {r["kind"] for r in results} >= {
        "training",
        "evaluation",
        "examination",
        "explanation",
        "comparison",
        "sample",
    }
    assert {(r["kind"], r["provenance"]["weights"]) for r in results} == {(r["kind"], now()) for r in results}
    assert len({r["provenance"]["weights_file"] for r in results}) == 1
    found = read(Path("m"))
    assert [r.stale for r in found.results] == [""] * len(results)
    compared = next(r for r in results if r["kind"] == "comparison")
    assert [r["weights"] for r in compared["figures"]["readers"]] == [now(), now()]


@pytest.mark.full
def test_an_evaluation_before_more_training_is_of_earlier_weights(command: Command) -> None:
    trained(command)
    ran(command("evaluate", "m"))
    page, done = report(command)
    assert "of earlier weights" not in page and done.err == ""
    assert "m reads good.txt (test)" in page and ", audited" in page
    before = written("evaluate-test")
    ran(command(*TRAIN_ON))
    assert before["provenance"]["weights"] != written(".")["provenance"]["weights"] == now()
    page, done = report(command)
    renew = "backstory evaluate m --split test"
    assert "m reads good.txt (test)" not in page and "(from training, not audited)" in page
    assert "m, of earlier weights" in page and f"renew it with `{renew}`" in page
    assert ">audited<" not in page
    assert done.err == f"backstory: warning: m, evaluate test (static) is of earlier weights; renew it with `{renew}`\n"
    ran(command(*shlex.split(renew)[1:]))
    page, done = report(command)
    assert "of earlier weights" not in page and ">audited<" in page and done.err == ""


@pytest.mark.full
def test_what_overwriting_leaves_is_of_the_new_weights_alone(command: Command) -> None:
    trained(command)
    ran(command("evaluate", "m"))
    old = Path("m/evaluate-test/result.json").read_text()
    trained(command, "good.txt", "--overwrite", "--seed", "5")
    assert not Path("m/evaluate-test").exists()
    # One that was put back, from a copy or a process that was under way, is told by its hash.
    Path("m/evaluate-test").mkdir()
    Path("m/evaluate-test/result.json").write_text(old)
    page, _ = report(command)
    assert "m, of earlier weights" in page and ">audited<" not in page


@pytest.mark.full
def test_training_on_without_a_better_epoch_leaves_results_as_they_are(command: Command) -> None:
    trained(command)
    ran(command("evaluate", "m"))
    ran(command(*TRAIN_ON[:-1], "2", "--training.learning-rate", "1e-30"))
    assert written("evaluate-test")["provenance"]["weights"] == now()
    page, done = report(command)
    assert "of earlier weights" not in page and done.err == ""


@pytest.mark.full
def test_a_result_without_a_hash_is_neither_stale_nor_confirmed(command: Command) -> None:
    trained(command)
    ran(command("evaluate", "m"))
    for folder in (".", "evaluate-test"):
        result = written(folder)
        for key in ("weights", "weights_file", "ended"):
            result["provenance"].pop(key, None)
        Path("m", folder, "result.json").write_text(json.dumps(result))
    page, done = report(command)
    assert "earlier" not in page and ">audited<" in page and done.err == ""
    assert "<dt>Weights</dt><dd>not recorded</dd>" in page
    # Training that went on afterwards tells when it ended.
    result["provenance"]["started"] = "2020-01-01T00:00:00Z"
    Path("m/evaluate-test/result.json").write_text(json.dumps(result))
    ran(command(*TRAIN_ON))
    page, done = report(command)
    assert ">audited<" not in page and "from before the run was trained on" in done.err


@pytest.mark.full
def test_settings_tuned_for_earlier_weights_are_refused_until_they_are_tuned_again(command: Command) -> None:
    trained(command)
    tune = ("reader", "tune", "m", "--reader", "cache", "--tokens", "100", "--grid", "window=5,10")
    ran(command(*tune))
    ran(command("evaluate", "m", "--reader", "cache"))
    prepared = written("evaluate-test-cache")["provenance"]["prepared"]
    assert prepared == {"cache.json": sha256(Path("m/readers/cache.json"))}
    ran(command(*TRAIN_ON))
    wrong = command("evaluate", "m", "--reader", "cache").mistake()
    assert "cache.json was tuned for other weights than m has now" in wrong
    # Tuning what goes around it is no reason to take it up.
    around = (*tune[:3], "--reader", "cache+tempered", *tune[5:7])
    assert "cache.json was tuned for other weights than m has now" in command(*around).mistake()
    ran(command(*tune))
    ran(command("evaluate", "m", "--reader", "cache"))


@pytest.mark.full
def test_dynamic_readers_tell_what_they_were_prepared_with(command: Command) -> None:
    trained(command)
    statistics = ("reader", "statistics", "m", "--batch-size", "2", "--segment", "5")
    turns = ("reader", "tune", "m", "--reader", "dynamic", "--in-turn", "--tokens", "100", "--grid", "segment=5")
    ran(command(*statistics))
    ran(command("evaluate", "m", "--reader", "dynamic"))
    (told,) = written("evaluate-test-dynamic")["provenance"]["prepared"].items()
    assert told == ("statistics", sha256(Path("m/readers/statistics/manifest.json")))
    ran(command(*turns))
    ran(command("evaluate", "m", "--reader", "dynamic"))
    assert list(written("evaluate-test-dynamic")["provenance"]["prepared"]) == ["dynamic.json", "statistics"]
    assert "prepared" not in written(".")["provenance"]
    ran(command(*TRAIN_ON))
    assert "are statistics of other weights than m has now" in command("reader", "tune", "m").mistake()
    assert "was tuned for other weights" in command("evaluate", "m", "--reader", "dynamic").mistake()
    for again in (statistics, turns, ("evaluate", "m", "--reader", "dynamic")):
        ran(command(*again))


# --- replaced or trained on while it is read ---


@contextmanager
def held(*arguments: str, until: Path) -> Iterator[subprocess.Popen]:
    """A command in a process of its own that is stopped as soon as a file is there, and goes on after the block."""
    running = process(*arguments)
    try:
        for _ in range(6000):
            if until.exists():
                break
            assert running.poll() is None, running.communicate()
            time.sleep(0.005)
        running.send_signal(signal.SIGSTOP)
        yield running
        running.send_signal(signal.SIGCONT)
    finally:
        if running.poll() is None:
            running.send_signal(signal.SIGCONT)


@pytest.fixture
def long_corpus(desk: Path) -> str:
    """A corpus whose test split takes a few seconds to read."""
    for split, lines in (("train", 60), ("valid", 40), ("test", 3000)):
        text = "".join(f"ann saw {n % 7} jars of jam and bob took {n % 3} more\n" for n in range(lines))
        (desk / "long").mkdir(exist_ok=True)
        (desk / "long" / f"{split}.txt").write_text(text)
    return "long"


CHANGES = {
    "replaced": ("train", "demo", *SMALL, "--corpus", "long", "--out", "m", "--overwrite", "--seed", "5"),
    "trained on": TRAIN_ON,
}


@pytest.mark.full
@pytest.mark.parametrize("change", CHANGES)
def test_an_evaluation_of_a_run_that_changes_meanwhile_is_not_written(
    change: str, command: Command, long_corpus: str
) -> None:
    trained(command, long_corpus)
    with held("evaluate", "m", "--save-every", "0.2", until=Path("m/evaluate-test/.lock")) as running:
        ran(command(*CHANGES[change]))
    out, err = running.communicate(timeout=120)
    assert (running.returncode, out) == (2, "")
    *_, line = [line for line in err.splitlines() if line.startswith("backstory: ")]
    assert "m was trained on or replaced while it was read" in line and "run the same command again" in line
    assert not Path("m/evaluate-test").exists()


@pytest.mark.full
def test_elsewhere_the_result_is_written_with_the_weights_that_it_is_of(command: Command, long_corpus: str) -> None:
    trained(command, long_corpus)
    old = now()
    with held("evaluate", "m", "--out", "kept", until=Path("kept/.lock")) as running:
        ran(command(*CHANGES["replaced"]))
    _, err = running.communicate(timeout=120)
    assert running.returncode == 0, err
    assert "backstory: warning: m was trained on or replaced while it was read; this result is of" in err
    assert json.loads(Path("kept/result.json").read_text())["provenance"]["weights"] == old != now()


@pytest.mark.full
@pytest.mark.parametrize(
    "verb",
    [
        "examine m --targets 3 --maximum-context 4",
        "explain surprisal m --words 5",
        "explain reading m --tokens 40 --words 5 --reader cache",
        "generate m --tokens 3 --save",
        "reader tune m --reader cache --tokens 100 --grid window=5,10",
        "reader statistics m --batch-size 2 --segment 5",
    ],
)
def test_nothing_else_is_written_into_a_run_that_changed_meanwhile(
    verb: str, command: Command, monkeypatch: pytest.MonkeyPatch
) -> None:
    trained(command)
    best = Path("m/checkpoints/best-1")
    # The run is trained on between loading and the end: a later epoch's weights, which are better.
    from backstory.runs import run as loading

    load = loading.newest_checkpoint

    def then_changed(*arguments: Any, **options: Any) -> Any:
        found = load(*arguments, **options)
        if best.exists():
            trained(command, "good.txt", "--seed", "5", "--overwrite")
            best.rename(best.with_name("best-2"))
        return found

    monkeypatch.setattr(loading, "newest_checkpoint", then_changed)
    there = {path for path in Path("m").rglob("result.json")}
    done = command(*verb.split())
    assert done.code == 2 and "m was trained on or replaced while it was read" in done.err, done.err
    assert {path for path in Path("m").rglob("result.json")} == there and not list(Path("m").glob("readers/*"))
    monkeypatch.setattr(loading, "newest_checkpoint", load)
    again = command(*verb.split())
    assert again.code == 0, again.err


def test_no_command_advises_to_replace_a_run_of_a_later_version(command: Command, run_copy: Path):
    for manifest in run_copy.glob("checkpoints/*/manifest.json"):
        manifest.write_text(json.dumps({**json.loads(manifest.read_text()), "schema": 2}))
    before = tree(run_copy)
    more = ("--resume", "--accept", "config", "--training.epochs", "3")
    for line in (("evaluate", "run"), ("generate", "run"), ("train", "run", *more)):
        outcome = command(*line)
        assert "use the version of backstory that wrote it" in outcome.err, outcome.err
        assert "train it again" not in outcome.err and "--overwrite" not in outcome.err
    assert tree(run_copy) == before
