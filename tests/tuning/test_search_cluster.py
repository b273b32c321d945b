"""`backstory sweep run --cluster`: trials on the workers of a real cluster, one of which is lost."""

import json
import os
import time
from pathlib import Path

import pytest
from clusters import cluster
from sweeps import Searched, finish, start

from backstory.tuning.sweeps import read_sweep


@pytest.mark.full
def test_trials_of_a_cluster_are_those_of_this_machine(searched: Searched, tmp_path: Path) -> None:
    os.chdir(searched.folder)
    with cluster(tmp_path, 2) as made:
        running = start("--trials", "4", "--out", str(tmp_path / "sweep"), "--cluster", made.address)
        deadline = time.monotonic() + 120
        while not list(tmp_path.glob("sweep/trials/*/metrics.jsonl")):
            assert running.poll() is None and time.monotonic() < deadline
            time.sleep(0.05)
        made.workers[0].kill()
        code, _, err = finish(running)
    assert code == 0, err
    trials = read_sweep(tmp_path / "sweep").to_dict()["figures"]["trials"]
    expected = json.loads((searched.folder / "sweep" / "result.json").read_text())["figures"]["trials"]
    complete = [t for t in trials if t["state"] == "complete"]
    assert len(complete) == 4
    [first] = [t for t in complete if t["settings"] == expected[0]["settings"]]
    assert first["curve"] == expected[0]["curve"]
