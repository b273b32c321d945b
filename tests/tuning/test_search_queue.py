"""Each trial is taken by one process, and trials of a dead process are repeated (real studies, real locks)."""

import json
import os
import signal
import subprocess
import sys
import time
from collections import Counter
from datetime import timedelta
from pathlib import Path
from types import SimpleNamespace

import pytest
import yaml
from optuna.trial import FrozenTrial, TrialState

from backstory.config import RunConfig, from_yaml
from backstory.storage.lock import in_turn, locked
from backstory.tuning import trials
from backstory.tuning.space import Space, parameters
from backstory.tuning.sweep_storage import (
    JournalLock,
    Sweep,
    SweepFolder,
    check_installed,
    hidden,
    open_storage,
    open_study,
    set_pruner,
)
from backstory.tuning.sweeps import read_sweep
from backstory.tuning.trials import TRIES, ClaimedTrial, TrialJob, TrialQueue, first_of
from backstory.utils.errors import UserError

SETTINGS = {"training.clip": {"range": [0.0, 5.0]}, "model.core.layers": {"choice": [1, 2]}}
RECIPE = RunConfig()
SPACE = from_yaml(Space, yaml.safe_dump({"settings": SETTINGS}), "mine")


def queue(path: Path, worker: str, url: str | None = None) -> TrialQueue:
    """Return a queue on the sweep in the folder, which is created if needed."""
    check_installed()
    folder = SweepFolder(path)
    sweep = folder.open(Sweep("ours", url, "mine", "mine", SPACE, RECIPE))
    with folder.claims():
        study = open_study(open_storage(folder, url), folder, sweep, make=True)
    return TrialQueue(study, folder, parameters(SPACE, RECIPE, "mine"), RECIPE, worker)


def claimed(found: ClaimedTrial | None) -> ClaimedTrial:
    assert found is not None
    return found


@pytest.fixture(params=["journal", "sqlite"])
def url(request: pytest.FixtureRequest, tmp_path: Path) -> str | None:
    return None if request.param == "journal" else f"sqlite:///{tmp_path}/trials.db"


@pytest.mark.full
def test_reading_a_sweep_writes_nothing(tmp_path: Path, url: str | None) -> None:
    path = tmp_path / "sweep"
    with locked(path / "workers" / "a", "test", "--out"):
        mine = queue(path, "a", url)
        mine.end(claimed(mine.claim(1)), 3.0)
    before = {file: file.read_bytes() for file in tmp_path.rglob("*") if file.is_file()}
    assert read_sweep(path).figures.valid_perplexity == 3.0
    assert {file: file.read_bytes() for file in tmp_path.rglob("*") if file.is_file()} == before


@pytest.mark.full
def test_no_more_trials_are_taken_than_were_asked_for(tmp_path: Path, url: str | None) -> None:
    path = tmp_path / "sweep"
    with locked(path / "workers" / "a", "test", "--out"), locked(path / "workers" / "b", "test", "--out"):
        one, two = queue(path, "a", url), queue(path, "b", url)
        first, second, third = claimed(one.claim(3)), claimed(two.claim(3)), claimed(one.claim(3))
        assert two.claim(3) is None
        assert [c.number for c in (first, second, third)] == [0, 1, 2]
        one.end(first, 9.5)
        two.end(second, None, "it broke", pruned=True)
        one.end(third, None, "it failed")
        assert one.claim(3) is None and two.claim(3) is None
        states = [t.state for t in two.trials()]
        assert states == [TrialState.COMPLETE, TrialState.PRUNED, TrialState.FAIL]
        assert claimed(two.claim(4)).number == 3


@pytest.mark.full
def test_a_trial_worse_than_the_median_is_pruned_after_five_others(tmp_path: Path) -> None:
    path, pruned = tmp_path / "sweep", {}
    for first in (1, 2, None):
        with locked(path / str(first) / "workers" / "a", "test", "--out"):
            mine = queue(path / str(first), "a")
            set_pruner(mine._study, first)
            for number in range(7):
                trial = claimed(mine.claim(7))
                job = TrialJob(trial, mine, SweepFolder(path / str(first)), lambda outcome: None)
                value = 200.0 if number in (4, 6) else 100.0
                for epoch in (1, 2):
                    job.curve[epoch] = value
                    trial.optuna.report(value, epoch)
                    if job.ends_early():
                        assert not job.ends_early(), "once"
                        pruned[first, number] = epoch
                mine.end(trial, value)
    assert pruned == {(1, 6): 1, (2, 6): 2}, "not the fifth trial, before which too few were complete"


@pytest.mark.full
def test_a_trial_is_drawn_alike_by_whoever_takes_it(tmp_path: Path) -> None:
    """The seed is the recipe's and the trial's place among all."""
    drawn = []
    for name in ("one", "two"):
        with locked(tmp_path / name / "workers" / "a", "test", "--out"):
            mine = queue(tmp_path / name, "a")
            drawn.append([claimed(mine.claim(3)).optuna.params for _ in range(3)])
    assert drawn[0] == drawn[1]
    assert len({p["training.clip"] for p in drawn[0]}) == 3


@pytest.mark.full
def test_the_trial_of_a_process_that_is_gone_is_tried_again(tmp_path: Path, url: str | None) -> None:
    path = tmp_path / "sweep"
    with locked(path / "workers" / "dead", "test", "--out"):
        lost = claimed(queue(path, "dead", url).claim(2))
    with locked(path / "workers" / "b", "test", "--out"):
        other = queue(path, "b", url)
        again, fresh = claimed(other.claim(2)), claimed(other.claim(2))
        assert (again.first, again.kills, again.optuna.params) == (lost.first, 1, lost.optuna.params)
        assert again.config == lost.config and again.number != lost.number
        assert fresh.optuna.params != lost.optuna.params
        assert other.claim(2) is None
        assert Counter(t.state for t in other.trials()) == {TrialState.RUNNING: 2}
        other.end(again, 8.0)
        [ended] = [t for t in other.trials() if t.state == TrialState.COMPLETE]
        assert first_of(ended) == lost.first


@pytest.mark.full
def test_the_time_until_a_lost_trial_is_found_is_not_its_own(tmp_path: Path) -> None:
    """Nor is it the sweep's. One that was killed or stopped while its sweep ran has a duration."""
    path = tmp_path / "sweep"
    for n in range(TRIES):
        with locked(path / "workers" / f"dead{n}", "test", "--out"):
            lost = claimed(queue(path, f"dead{n}").claim(1))
            assert lost.number == n
    with locked(path / "workers" / "b", "test", "--out"):
        other = queue(path, "b")
        other.give_back(claimed(other.claim(2)), killed=True)
        other.end(claimed(other.claim(2)), 3.0)
    result = read_sweep(path)
    trials = result.figures.trials
    assert [t.state for t in trials] == ["again", "again", "failed", "again", "complete"]
    assert [t.seconds is None for t in trials] == [True, True, True, False, False]
    assert result.provenance.seconds == round(sum(t.seconds or 0.0 for t in trials[3:]), 1)


@pytest.mark.full
def test_a_trial_that_the_clock_is_set_back_in_takes_no_negative_time(
    tmp_path: Path, url: str | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nor one around the end of summer time: Optuna's dates are local, without the offset."""
    path = tmp_path / "sweep"
    with locked(path / "workers" / "a", "test", "--out"):
        mine = queue(path, "a", url)
        trial = claimed(mine.claim(1))
        monkeypatch.setattr(trials, "time", SimpleNamespace(monotonic=lambda: trial.started + 90.0))
        monkeypatch.setattr(FrozenTrial, "duration", timedelta(hours=-1))
        mine.end(trial, 3.0)
    result = read_sweep(path)
    assert [t.seconds for t in result.figures.trials] == [90.0] and result.provenance.seconds == 90.0


@pytest.mark.full
def test_it_waits_as_long_as_the_training_that_was_started_is_there(tmp_path: Path) -> None:
    path = tmp_path / "sweep"
    with locked(path / "workers" / "dead", "test", "--out"):
        lost = claimed(queue(path, "dead").claim(1))
    with locked(path / "workers" / "b", "test", "--out"):
        other = queue(path, "b")
        with locked(SweepFolder(path).run(lost.first), "training", "--out"):
            assert other.claim(1) is None
        assert claimed(other.claim(1)).first == lost.first


def test_a_trial_that_is_killed_again_and_again_fails(tmp_path: Path) -> None:
    path = tmp_path / "sweep"
    with locked(path / "workers" / "a", "test", "--out"):
        mine = queue(path, "a")
        for number in range(TRIES):
            lost = claimed(mine.claim(1))
            assert (lost.first, lost.kills) == (0, number)
            assert mine.give_back(lost, killed=True, problem="it was killed") == (number < TRIES - 1)
        assert mine.claim(1) is None
        [failed] = mine.trials()
        assert (failed.state, failed.user_attrs["problem"]) == (TrialState.FAIL, "it was killed")


def test_a_trial_that_was_stopped_may_be_as_often_as_one_likes(tmp_path: Path) -> None:
    path = tmp_path / "sweep"
    with locked(path / "workers" / "a", "test", "--out"):
        mine = queue(path, "a")
        for _ in range(TRIES + 2):
            assert mine.give_back(claimed(mine.claim(1)), killed=False)
        assert claimed(mine.claim(1)).kills == 0


def test_a_kill_between_queueing_a_trial_again_and_ending_it_queues_it_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Killed(BaseException):
        pass

    def die(*_: object, **__: object) -> None:
        raise Killed

    path = tmp_path / "sweep"
    with locked(path / "workers" / "dead", "test", "--out"):
        dead = queue(path, "dead")
        lost = claimed(dead.claim(1))
        monkeypatch.setattr(dead._study, "tell", die)
        with pytest.raises(Killed):
            dead.give_back(lost, killed=True)
    with locked(path / "workers" / "b", "test", "--out"):
        other = queue(path, "b")
        assert claimed(other.claim(5)).first == lost.first
        assert claimed(other.claim(5)).first != lost.first


def test_kills_do_not_change_what_is_sampled(tmp_path: Path) -> None:
    """Neither in later trials, nor in one whose settings were sampled only in part."""
    with locked(tmp_path / "one" / "workers" / "a", "test", "--out"):
        calm = queue(tmp_path / "one", "a")
        undisturbed = [claimed(calm.claim(3)).config for _ in range(3)]
    path = tmp_path / "two"
    with locked(path / "workers" / "a", "test", "--out"):
        mine = queue(path, "a")
        for _ in range(TRIES - 1):
            mine.give_back(claimed(mine.claim(3)), killed=True)
        first = claimed(mine.claim(3)).config
        mine._study.ask().suggest_float("training.clip", 0.0, 5.0)  # and its process was killed
        assert [first, *(claimed(mine.claim(3)).config for _ in range(2))] == undisturbed


def test_a_trial_that_was_taken_but_not_drawn_is_tried_again(tmp_path: Path) -> None:
    """Its process was killed between the two."""
    path = tmp_path / "sweep"
    with locked(path / "workers" / "b", "test", "--out"):
        other = queue(path, "b")
        other._study.ask()
        again = claimed(other.claim(1))
        assert (again.first, set(again.optuna.params)) == (0, set(SETTINGS))
        assert other.claim(1) is None


def test_a_trial_whose_settings_were_queued_but_not_drawn_keeps_them(tmp_path: Path) -> None:
    """It is taken a second time, and that process is killed at once."""
    path = tmp_path / "sweep"
    with locked(path / "workers" / "b", "test", "--out"):
        other = queue(path, "b")
        lost = claimed(other.claim(1))
        other.give_back(lost, killed=False)
        other._study.ask()
        again = claimed(other.claim(1))
        assert (again.first, again.optuna.params) == (lost.first, lost.optuna.params)


MANY = """
import sys
from pathlib import Path
sys.path.insert(0, {here!r})
from test_search_queue import queue
from backstory.storage.lock import locked
worker, path = sys.argv[1], Path(sys.argv[2])
with locked(path / "workers" / worker, "test", "--out"):
    mine = queue(path, worker)
    print("ready", flush=True)
    sys.stdin.readline()
    while claim := mine.claim(40):
        mine.end(claim, float(claim.number))
"""


@pytest.mark.full
def test_processes_side_by_side_take_every_trial_once(tmp_path: Path) -> None:
    path = tmp_path / "sweep"
    code = MANY.format(here=str(Path(__file__).parent))
    running = [
        subprocess.Popen([sys.executable, "-c", code, name, str(path)], stdin=subprocess.PIPE, stdout=subprocess.PIPE)
        for name in ("a", "b")
    ]
    for process in running:
        assert process.stdout is not None and process.stdout.readline() == b"ready\n"
    for process in running:
        assert process.stdin is not None
        process.stdin.write(b"go\n")
        process.stdin.flush()
    for process in running:
        process.communicate(timeout=300)
        assert process.returncode == 0
    with locked(path / "workers" / "c", "test", "--out"):
        trials = queue(path, "c").trials()
    assert [t.number for t in trials] == list(range(40))
    assert {t.state for t in trials} == {TrialState.COMPLETE}
    assert {t.user_attrs["worker"] for t in trials} == {"a", "b"}


# --- the journal ---


@pytest.mark.full
def test_what_a_killed_writer_left_unfinished_is_cut_off(tmp_path: Path) -> None:
    path = tmp_path / "sweep"
    with locked(path / "workers" / "a", "test", "--out"):
        mine = queue(path, "a")
        mine.end(claimed(mine.claim(9)), 3.0)
        journal = SweepFolder(path).journal
        whole = journal.read_bytes()
        values = [3.0]
        for torn in (b"{", b'{"op_code":4,"worker_id":"' + b"x" * 10_000):
            journal.write_bytes(whole + torn)
            assert [t.value for t in queue(path, "a").trials()] == values
            values.append(2.0)
            queue(path, "b").end(claimed(queue(path, "a").claim(9)), 2.0)
            assert all(json.loads(line) for line in journal.read_bytes().splitlines())
            whole = journal.read_bytes()
    assert whole.count(b'"values":[2.0]') == 2


def test_a_journal_that_is_one_torn_line_is_emptied(tmp_path: Path) -> None:
    journal = tmp_path / "journal.log"
    for left in (b"", b"torn", b"x" * 9000):
        journal.write_bytes(left)
        lock = JournalLock(journal)
        assert lock.acquire()
        lock.release()
        assert journal.read_bytes() == b""


@pytest.mark.full
def test_a_process_that_is_killed_leaves_no_lock_behind(tmp_path: Path) -> None:
    journal = tmp_path / "journal.log"
    journal.touch()
    code = (
        "import sys, time; from pathlib import Path; from backstory.tuning.sweep_storage import JournalLock; "
        "JournalLock(Path(sys.argv[1])).acquire(); print('held', flush=True); time.sleep(600)"
    )
    holder = subprocess.Popen([sys.executable, "-c", code, str(journal)], stdout=subprocess.PIPE)
    assert holder.stdout is not None and holder.stdout.readline() == b"held\n"
    waiting = subprocess.Popen([sys.executable, "-c", f"{code.split('print')[0]}", str(journal)])
    time.sleep(0.5)
    os.kill(holder.pid, signal.SIGKILL)
    assert waiting.wait(60) == 0
    holder.communicate()


@pytest.mark.full
def test_a_damaged_journal_is_told_in_one_line(tmp_path: Path) -> None:
    path = tmp_path / "sweep"
    with locked(path / "workers" / "a", "test", "--out"):
        claimed(queue(path, "a").claim(1))
    journal = SweepFolder(path).journal
    lines = journal.read_bytes().splitlines(keepends=True)
    for damage in (b"{]\n", b"[]\n", b'{"op_code": 99}\n', b"3\n"):
        journal.write_bytes(b"".join([lines[0], damage, *lines[1:]]))
        with pytest.raises(UserError, match=r"cannot open .*journal.log: .*; put it back as it was") as told:
            queue(path, "a")
        assert "\n" not in str(told.value)


def test_turns_are_taken_one_after_the_other(tmp_path: Path) -> None:
    order: list[str] = []
    code = (
        "import sys; from pathlib import Path; from backstory.storage.lock import in_turn\n"
        "print('asks', flush=True)\nwith in_turn(Path(sys.argv[1])): print('has it', flush=True)"
    )
    with in_turn(tmp_path / "turn"):
        other = subprocess.Popen(
            [sys.executable, "-c", code, str(tmp_path / "turn")], stdout=subprocess.PIPE, text=True
        )
        assert other.stdout is not None and other.stdout.readline() == "asks\n"
        time.sleep(0.3)
        order.append("first")
        assert other.poll() is None
    order.append(other.communicate(timeout=60)[0].strip())
    assert order == ["first", "has it"]


@pytest.mark.parametrize(
    ("url", "shown"),
    [
        ("postgresql://ann:secret@host/db", "postgresql://ann:***@host/db"),
        ("mysql+pymysql://ann:a:b@host:3306/db", "mysql+pymysql://ann:***@host:3306/db"),
        ("sqlite:///trials.db", "sqlite:///trials.db"),
        ("postgresql://host/db?user=ann&password=secret&x=1", "postgresql://host/db?user=ann&password=***&x=1"),
        ("mysql://host/db?user=ann&passwd=secret", "mysql://host/db?user=ann&passwd=***"),
        ("mssql://host/db?PWD=secret&x=1", "mssql://host/db?PWD=***&x=1"),
        ("sweep run x --storage mysql://a:b@h/d --trials 3", "sweep run x --storage mysql://a:***@h/d --trials 3"),
    ],
)
def test_passwords_are_not_shown(url: str, shown: str) -> None:
    assert hidden(url) == shown


def test_a_storage_with_a_password_is_to_be_given_and_a_silent_one_looked_after(tmp_path: Path) -> None:
    folder = SweepFolder(tmp_path / "sweep")
    folder.open(Sweep("ours", "postgresql://ann:***@host/db", "mine", "mine", SPACE, RECIPE))
    with pytest.raises(UserError, match=r"@host/db; give that URL, with its password, by --storage$"):
        read_sweep(folder.path, "postgresql://ann:secret@other/db")
    with pytest.raises(UserError, match=r"the storage nonsense: .*; check that it is running and the URL is right$"):
        open_storage(folder, "nonsense")
