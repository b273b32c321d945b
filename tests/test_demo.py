"""The demo for real: five minutes on two cores."""

import json
import subprocess
import sys
import time
from pathlib import Path

import pytest


@pytest.mark.full
def test_demo_in_a_process_of_its_own(tmp_path: Path) -> None:
    began = time.monotonic()
    done = subprocess.run([sys.executable, "-m", "backstory", "demo"], cwd=tmp_path, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    run = tmp_path / "runs" / "demo"
    read = json.loads((run / "evaluate-test" / "result.json").read_text())["figures"]
    assert read["audit"]["passed"] and read["perplexity"] < 100
    examined = json.loads((run / "examine-truncate-valid" / "result.json").read_text())["figures"]
    assert examined["conditions"][0]["low"] > 0  # five tokens of context are too few, beyond doubt
    sample = json.loads((run / "sample" / "result.json").read_text())["figures"]
    assert sample["prompt"] + sample["text"] in done.stdout
    assert all(part in (run / "report.html").read_text() for part in ("<svg", "Sample text", "Word by word"))
    print(f"demo: {time.monotonic() - began:.0f} s")
