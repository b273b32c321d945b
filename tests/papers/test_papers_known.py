"""Runs that other results of the suite contain: which are taken over, which are run anyway, and which are refused."""

import copy
import json
import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import yaml
from small_suites import CLAIM, Reproduced, reproduce, suite, write

from backstory.cli.main import main
from backstory.config import from_yaml, to_yaml
from backstory.papers.claims import judge
from backstory.papers.plan import fingerprints, runs_of
from backstory.papers.suite import Suite

RESULT = Path("runs/suite-small/result.json")
Changed = Callable[[dict[str, Any]], Any]


@pytest.fixture
def known(reproduced: Reproduced, desk: Path) -> dict[str, Any]:
    """The result of the finished reproduction, and a desk without its runs."""
    write(suite())
    return json.loads((reproduced.folder / RESULT).read_text(encoding="utf-8"))


def give(result: dict[str, Any], name: str = "known.json") -> str:
    """A folder elsewhere that holds the result."""
    Path("elsewhere").mkdir(exist_ok=True)
    path = Path("elsewhere") / name
    path.write_text(json.dumps(result), encoding="utf-8")
    return str(path)


def written() -> dict[str, Any]:
    return json.loads(RESULT.read_text(encoding="utf-8"))


def dry(capsys: pytest.CaptureFixture[str], *arguments: str) -> tuple[list[str], list[str]]:
    """Return its lines on the results, and the runs that remain."""
    assert main(["reproduce", "suite.yaml", "--dry-run", *arguments]) == 0
    lines = capsys.readouterr().out.splitlines()
    runs = [line.split()[:2] for line in lines if line.startswith("  ")]
    return [line for line in lines if "taken over" in line], [name for name, state in runs if state == "waiting"]


def settings(changed: dict[str, Any]) -> dict[str, str]:
    return fingerprints(runs_of(from_yaml(Suite, yaml.safe_dump(changed), "mine"), "small", "mine"))


def begun() -> dict[str, Any]:
    """The plain system, and one that begins with it and one that begins with that."""
    after = [
        {"name": name, "small": {"recipe": "tiny.yaml", "init_from": begin, "seeds": [1], "minutes": 0.5}}
        for name, begin in (("longer", "plain"), ("longest", "longer"))
    ]
    return suite(systems=[suite()["systems"][0], *after], claims=[])


def test_claims_that_one_seed_cannot_decide_are_counted_first(desk: Path, capsys: pytest.CaptureFixture[str]) -> None:
    plain, wide = suite()["systems"]
    wide["small"]["seeds"] = [1]
    other = CLAIM | {"sentence": "Plain beats wide", "better": {"system": "plain"}, "than": {"system": "wide"}}
    for claims, line in (
        ([CLAIM], ["one seed cannot decide the claim; --seeds 1 2 3 adds seeds"]),
        ([CLAIM, other], ["one seed cannot decide 2 of 2 claims; --seeds 1 2 3 adds seeds"]),
        ([CLAIM | {"confounded": "width"}], []),
    ):
        write(suite(systems=[plain, wide], claims=claims))
        assert main(["reproduce", "suite.yaml", "--dry-run"]) == 0
        assert [text for text in capsys.readouterr().out.splitlines() if "one seed" in text] == line
    assert main(["reproduce", "suite.yaml", "--dry-run", "--seeds", "1", "2"]) == 0
    assert "one seed" not in capsys.readouterr().out


# --- what is taken over ---


def test_known_runs_are_taken_over_as_they_were_and_none_is_run(
    known: dict[str, Any], capsys: pytest.CaptureFixture[str]
) -> None:
    for run in known["figures"]["runs"]:
        run |= {"commit": "abc", "device": "cuda (a GPU)", "precision": "bfloat16"}
    known["provenance"]["precision_reason"] = "the processor has it"
    assert main(["reproduce", "suite.yaml", "--known", give(known)]) == 0
    told, budget, *_ = capsys.readouterr().err.splitlines()
    assert told == "elsewhere/known.json: 4 of 4 finished runs taken over"
    assert budget == "Tiny models, small scale: 4 runs, all finished"
    assert not list(Path("runs/suite-small/runs").iterdir())
    found, before = written(), known["figures"]
    assert found["figures"]["runs"] == [{**run, "known": "known.json"} for run in before["runs"][:4]]
    claim = before["claims"][0]  # the only one of this suite, so that nothing corrects its p-value
    claim |= {"holm_p_value": claim["p_value"]}
    assert (found["figures"]["systems"], found["figures"]["claims"]) == (before["systems"][:2], [claim])
    assert (found["figures"]["finished"], found["figures"]["unit"]) == (4, before["unit"])
    origin = found["provenance"]
    assert (origin["device"], origin["precision"]) == ("cuda (a GPU)", "bfloat16")
    assert origin["precision_reason"] == "the processor has it"
    assert origin["corpus"] == known["provenance"]["corpus"]
    assert origin["seconds"] == pytest.approx(sum(run["seconds"] for run in before["runs"][:4]), abs=0.1)
    assert main(["reproduce", "suite.yaml", "--known", str(RESULT), "--out", "again"]) == 0
    again = json.loads(Path("again/result.json").read_text())["figures"]
    assert (again["systems"], again["claims"]) == (found["figures"]["systems"], found["figures"]["claims"])


def test_claims_are_judged_over_known_and_new_seeds(known: dict[str, Any]) -> None:
    longer = suite()
    longer["systems"][1]["small"]["seeds"] = [1, 2, 3]
    write(longer)
    for run in known["figures"]["runs"]:
        run["device"] = "another machine"
    code, _, err = reproduce("suite.yaml", "--known", give(known))
    assert code == 0, err
    first, second = err.splitlines()[:2]
    assert first.endswith(": 4 of 4 finished runs taken over")
    assert "5 runs, 4 finished" in second and "by the finished ones" in second
    assert [p.name for p in Path("runs/suite-small/runs").iterdir()] == ["wide-seed3"]
    found = written()
    values = {
        system: {
            run["seed"]: run["readings"][0]["value"] for run in found["figures"]["runs"] if run["system"] == system
        }
        for system in ("plain", "wide")
    }
    assert list(values["wide"]) == [1, 2, 3]
    judged, [claim] = judge(values["wide"], values["plain"]), found["figures"]["claims"]
    assert (claim["gain"], claim["low"], claim["verdict"]) == (judged.gain, judged.low, judged.verdict)
    assert [run.get("known") for run in found["figures"]["runs"]] == ["known.json"] * 4 + [None]
    there, here = found["provenance"]["device"].split("; ")
    assert there == "another machine" and here.startswith("cpu")
    assert found["provenance"]["corpus"]["name"] == "corpus"


def test_of_two_results_the_first_counts_and_before_them_the_folder(
    known: dict[str, Any], reproduced: Reproduced, capsys: pytest.CaptureFixture[str]
) -> None:
    shutil.copytree(
        reproduced.folder / "runs/suite-small/runs/plain-seed1", "runs/suite-small/runs/plain-seed1", dirs_exist_ok=True
    )
    shutil.copy(reproduced.folder / "runs/suite-small/suite.yaml", "runs/suite-small")
    other = copy.deepcopy(known)
    for run in other["figures"]["runs"][:4]:
        run["readings"][0]["value"] = 1.0
    part = copy.deepcopy(other)
    part["figures"]["runs"] = [run for run in part["figures"]["runs"] if run["system"] == "plain"]
    assert main(["reproduce", "suite.yaml", "--known", give(part, "part.json"), give(known, "whole.json")]) == 0
    assert capsys.readouterr().err.splitlines()[:2] == [
        "elsewhere/part.json: 1 of 2 finished runs taken over; not 1 finished here, too",
        "elsewhere/whole.json: 2 of 4 finished runs taken over; not 1 finished here, too, 1 in a file before it",
    ]
    runs, before = written()["figures"]["runs"], known["figures"]["runs"]
    assert [run.get("known") for run in runs] == [None, "part.json", "whole.json", "whole.json"]
    values = [run["readings"][0]["value"] for run in runs]
    assert values == [before[0]["readings"][0]["value"], 1.0, *(run["readings"][0]["value"] for run in before[2:4])]


# --- seeds beside the suite's ---


def test_seeds_of_the_command_are_run_alone(desk: Path, capsys: pytest.CaptureFixture[str]) -> None:
    write(begun())
    _, waiting = dry(capsys, "--seeds", "2", "5", "--only", "longer", "plain")
    assert waiting == ["plain-seed2", "plain-seed5", "longer-seed2", "longer-seed5"]
    assert dry(capsys, "--seeds", "1")[1] == ["plain-seed1", "longer-seed1", "longest-seed1"]
    assert main(["reproduce", "suite.yaml", "--dry-run", "--seeds", "-1"]) == 2
    assert "a seed must be at least 0" in capsys.readouterr().err


def test_seeds_that_a_folder_has_stay_in_its_plan(desk: Path, capsys: pytest.CaptureFixture[str]) -> None:
    write(suite())
    planned = runs_of(from_yaml(Suite, yaml.safe_dump(suite()), "mine"), "small", "mine")[-1]
    begun_here = Path("runs/suite-small/runs/wide-seed9")
    begun_here.mkdir(parents=True)
    (begun_here / "config.yaml").write_text(to_yaml(replace(planned.config, seed=9)), encoding="utf-8")
    Path("runs/suite-small/suite.yaml").write_text(yaml.safe_dump(suite()), encoding="utf-8")
    assert dry(capsys)[1] == ["plain-seed1", "plain-seed2", "wide-seed1", "wide-seed2", "wide-seed9"]


# --- what is run all the same ---


def test_other_settings_are_run_again(known: dict[str, Any], capsys: pytest.CaptureFixture[str]) -> None:
    changed = suite()
    changed["systems"][1]["small"]["overrides"]["training"] = {"clip": 0.2}
    changed["systems"][0]["small"]["seeds"] = [1]
    write(changed)
    [told], waiting = dry(capsys, "--known", give(known))
    assert waiting == ["wide-seed1", "wide-seed2"]
    assert told.endswith("1 of 4 finished runs taken over; not 1 outside the suite, 2 with other settings")


def test_a_result_without_settings_is_not_taken_over(known: dict[str, Any], capsys: pytest.CaptureFixture[str]) -> None:
    for run in known["figures"]["runs"]:
        del run["settings"]
    [told], waiting = dry(capsys, "--known", give(known))
    assert len(waiting) == 4
    assert told.endswith("0 of 4 finished runs taken over; not 4 made by an older version, which recorded no settings")


@pytest.mark.parametrize(
    ("change", "again"),
    [
        (lambda systems: systems[1]["readings"].append({"batch_size": 3}), ["wide-seed1", "wide-seed2"]),
        (lambda systems: systems[1]["readings"].append({"split": "valid"}), ["wide-seed1", "wide-seed2"]),
        (lambda systems: systems[1]["readings"].append({"reader": "cache"}), ["wide-seed1", "wide-seed2"]),
        (lambda systems: systems[0]["small"]["examinations"][0].update(targets=10), ["plain-seed1"]),
        (lambda systems: systems[0]["small"]["examinations"][0].update(runs=2), ["plain-seed2"]),
        (lambda systems: systems[0]["small"]["examinations"][0].update(seed=1), ["plain-seed1"]),
        (lambda systems: systems[0]["small"]["examinations"][0].update(reader=["cache"]), ["plain-seed1"]),
        (lambda systems: systems[0]["small"]["examinations"][0].update(within_documents=True), ["plain-seed1"]),
        (lambda systems: systems[0]["small"].update(examinations=[]), []),
    ],
)
def test_a_run_that_lacks_what_is_asked_for_is_run(
    change: Changed, again: list[str], known: dict[str, Any], capsys: pytest.CaptureFixture[str]
) -> None:
    changed = suite()
    change(changed["systems"])
    write(changed)
    [told], waiting = dry(capsys, "--known", give(known))
    assert waiting == again
    lacking = f"; not {len(again)} without a reading or an examination that the suite asks for" if again else ""
    assert told.endswith(f"{4 - len(again)} of 4 finished runs taken over{lacking}")


def test_options_of_an_examination_are_recorded_and_compared(
    known: dict[str, Any], capsys: pytest.CaptureFixture[str]
) -> None:
    changed = suite()
    changed["systems"][0]["small"]["examinations"][0].update(seed=1, by=["frequency"])
    write(changed)
    [examined] = known["figures"]["runs"][0]["examinations"]
    assert "options" not in examined
    examined["options"] = {"seed": 1, "by": ["frequency"]}
    assert dry(capsys, "--known", give(known))[1] == []
    write(suite())
    assert dry(capsys, "--known", give(known))[1] == ["plain-seed1"]


def test_settings_are_those_of_the_whole_chain(desk: Path) -> None:
    before, changed = settings(begun()), begun()
    assert len(set(before.values())) == len(before) == 4, "every seed and every beginning has its own"
    changed["systems"][0]["prepare"] = ["tune --reader cache"]
    after = settings(changed)
    assert not set(before.values()) & set(after.values())
    changed = begun()
    changed["systems"][1]["small"]["overrides"] = {"training": {"clip": 0.2}}
    kept = {name for name, value in settings(changed).items() if value == before[name]}
    assert kept == {"plain-seed1", "plain-seed2"}
    changed = begun()
    changed["systems"][0]["readings"] = [{"batch_size": 3}]
    changed["title"] = "What is read is no setting of the run"
    assert settings(changed) == before


def test_a_run_that_others_begin_with_is_run_where_they_are(
    known: dict[str, Any], capsys: pytest.CaptureFixture[str]
) -> None:
    write(begun())
    path = give(known)
    [told], waiting = dry(capsys, "--known", path)
    assert waiting == ["plain-seed1", "longer-seed1", "longest-seed1"]
    assert told.endswith(
        "1 of 4 finished runs taken over; not 1 to be run here, since others begin with their weights, "
        "2 outside the suite"
    )
    assert dry(capsys, "--known", path, "--only", "plain")[1] == []

    plain, longer = known["figures"]["runs"][0], settings(begun())["longer-seed1"]
    known["figures"]["runs"].append({**plain, "run": "longer-seed1", "system": "longer", "settings": longer})
    path = give(known)
    assert dry(capsys, "--known", path)[1] == ["plain-seed1", "longer-seed1", "longest-seed1"]
    assert dry(capsys, "--known", path, "--only", "plain", "longer")[1] == []
    for systems, system, lacking in ((["longest"], "longest", "longer"), (["longest", "longer"], "longer", "plain")):
        assert main(["reproduce", "suite.yaml", "--known", path, "--only", *systems]) == 2
        message = (
            f"system {system} starts from the weights of {lacking}, and its run {lacking}-seed1 is not finished here; "
            f"add {lacking} to --only"
        )
        assert capsys.readouterr().err == f"backstory: {message}\n"
    longest = {"run": "longest-seed1", "system": "longest", "settings": settings(begun())["longest-seed1"]}
    known["figures"]["runs"].append(plain | longest)
    assert dry(capsys, "--known", give(known))[1] == []


# --- what is refused ---


def figures(**changes: Any) -> Changed:
    return lambda result: result["figures"].update(changes)


def first(**changes: Any) -> Changed:
    return lambda result: result["figures"]["runs"][0].update(changes)


@pytest.mark.parametrize(
    ("change", "told"),
    [
        (figures(suite="base"), "known.json is of suite base, and this is suite suite"),
        (figures(scale="full"), "known.json is of scale full, and this is scale small"),
        (figures(metric="bits_per_token"), "known.json is of metric bits_per_token, and this is metric perplexity"),
        (lambda result: result.update(kind="other"), "known.json is of kind other"),
        (first(settings=7), "known.json is damaged: figures.runs[0].settings must be text"),
        (first(seconds=None), "known.json is damaged: figures.runs[0].seconds must be a number"),
        (first(readings=[{"split": "test", "reader": "static"}]), "known.json is damaged: figures.runs[0].readings"),
        (first(examinations=["truncate"]), "known.json is damaged: figures.runs[0].examinations"),
        (lambda result: result.pop("figures"), "known.json is damaged: figures"),
    ],
)
def test_a_file_that_is_no_result_of_this_grid_is_refused(
    change: Changed, told: str, known: dict[str, Any], capsys: pytest.CaptureFixture[str]
) -> None:
    change(known)
    assert main(["reproduce", "suite.yaml", "--known", give(known)]) == 2
    error = capsys.readouterr().err
    assert told in error and error.count("\n") == 1
    assert not Path("runs").exists()


def test_a_file_that_cannot_be_read_is_refused(known: dict[str, Any], capsys: pytest.CaptureFixture[str]) -> None:
    cut = Path(give(known, "cut.json"))
    cut.write_text(cut.read_text()[:1000])
    for path, told in (("nowhere.json", "cannot read nowhere.json: No such file"), ("elsewhere", "Is a directory"),
                       (str(cut), "cut.json is damaged (not valid JSON)")):  # fmt: skip
        assert main(["reproduce", "suite.yaml", "--known", give(known), path]) == 2
        error = capsys.readouterr().err
        assert told in error and error.count("\n") == 1
    assert not Path("runs").exists()


def test_runs_that_read_another_text_are_refused(known: dict[str, Any], capsys: pytest.CaptureFixture[str]) -> None:
    other = copy.deepcopy(known)
    other["provenance"]["corpus"]["fingerprint"] = "0" * 64
    longer = suite()
    longer["systems"][1]["small"]["seeds"] = [3]
    write(longer)
    assert main(["reproduce", "suite.yaml", "--known", give(other)]) == 2
    message = "plain-seed1 of elsewhere/known.json read another corpus than the other runs"
    assert message in capsys.readouterr().err and not Path("runs").exists()
    write(suite())
    other["figures"]["runs"] = [run for run in other["figures"]["runs"] if run["system"] == "wide"]
    known["figures"]["runs"] = [run for run in known["figures"]["runs"] if run["system"] == "plain"]
    assert main(["reproduce", "suite.yaml", "--known", give(known, "a.json"), give(other, "b.json")]) == 2
    assert "wide-seed1 of elsewhere/b.json read another" in capsys.readouterr().err and not Path("runs").exists()


# --- defaults that changed ---


def buffered(**model: Any) -> dict[str, str]:
    """The fingerprints of the plain system's runs, with these parts."""
    changed = suite(claims=[])
    changed["systems"] = changed["systems"][:1]
    changed["systems"][0]["small"]["overrides"] = {"model": model}
    return settings(changed)


def test_a_changed_default_gives_only_the_runs_that_it_concerns_another_fingerprint(desk: Path) -> None:
    """A buffer's dropout was 0 and is that of the head: with a head that has none, or a pointer, nothing changed."""
    spans = {"kind": "span-buffer", "size": 8, "span": 4}
    pointer = {"kind": "span-buffer", "size": 8, "vectors": "words", "values": "following", "prediction": "pointer"}
    plain, dropped = {"output_dropout": 0.0}, {"output_dropout": 0.3}
    assert buffered(core=plain, buffer=spans) == buffered(core=plain, buffer={**spans, "dropout": 0.0})
    assert buffered(core=dropped, buffer=spans) == buffered(core=dropped, buffer={**spans, "dropout": 0.3})
    assert buffered(core=dropped, buffer=spans) != buffered(core=dropped, buffer={**spans, "dropout": 0.0})
    assert buffered(core=dropped, buffer=pointer) == buffered(core=dropped, buffer={**pointer, "dropout": 0.0})
