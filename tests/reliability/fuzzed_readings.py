"""Fuzzed sessions, statistics, meta-learners and tuned settings with correct hashes are used or refused in one line."""

import io
import json
import os
import random
import shutil
from collections.abc import Iterator, Sequence
from dataclasses import asdict
from pathlib import Path
from unittest.mock import patch

from calling import Hung, within
from checkpoint_changes import VALUES, change
from rich.console import Console
from runs import tiny_config, tiny_corpus

from backstory.config.readers import CacheSettings, DynamicSettings, GateSettings
from backstory.evaluation.session import session
from backstory.readers.gradient_statistics import collect, save_statistics
from backstory.readers.learned import GateNetwork, Learned, save_learned
from backstory.runs.run import load_run, weights_hash
from backstory.storage.run_files import SAVED
from backstory.training import train
from backstory.utils.errors import NonFiniteError, UserError

READERS = ("static", "dynamic:rule=nadam,rate=0.001", "cache:window=20", "dynamic+cache", "learned:network=mine")
TEXT = b"ann saw the jam and bob took more ink\n" * 3


def run(trials: Sequence[int], folder: Path) -> Iterator[str]:
    """Each trial changes a session and resumes it, or changes a reader's preparation and reads with it."""
    with patch.dict(os.environ, {"BACKSTORY_CACHE": str(folder / "cache")}):
        trained = _trained(folder)
        for number, reader in enumerate(READERS):
            if problem := _read(trained, folder / f"session-{number}", reader, resume=False):
                yield f"an honest session of {reader} ends: {problem}"
        for number in trials:
            chosen = random.Random(f"readings {number}")
            there, copy = folder / "there", folder / "copy"
            shutil.copytree(trained, copy)
            try:
                what = chosen.choice([_of_session, _of_prepared])
                problem, done = what(chosen, folder, copy, there)
            finally:
                shutil.rmtree(copy)
                shutil.rmtree(there, ignore_errors=True)
            if problem:
                yield f"readings {number}: {problem}; {done}"


def _trained(folder: Path) -> Path:
    """A run with statistics, a meta-learner and settings of a cache."""
    run = folder / "run"
    train(tiny_config(tiny_corpus(folder / "corpus", lines=20)), run, console=Console(file=io.StringIO()))
    loaded = load_run(run)
    ids = loaded.dataset(None, None).splits["train"].ids
    found = collect(loaded.model, ids, 0, batch_size=2, segment=5)
    save_statistics(run / SAVED, found)
    network = GateNetwork(GateSettings(), len(found.mean_square))
    save_learned(run / SAVED, "mine", loaded.weights_hash, Learned(network, DynamicSettings(), (0.0, 1.0), {}))
    tuned = {
        "weights": weights_hash(loaded.model),
        "tuned_on": "valid",
        "settings": asdict(CacheSettings()),
        "search": {},
    }
    (run / SAVED / "cache.json").write_text(json.dumps(tuned))
    return run


Outcome = tuple[str, str]


def _of_session(chosen: random.Random, folder: Path, run: Path, there: Path) -> Outcome:
    number = chosen.randrange(len(READERS))
    shutil.copytree(folder / f"session-{number}", there)
    done = [change(chosen, next(there.glob("reading-*"))) for _ in range(chosen.choice([1, 1, 2]))]
    return _read(run, there, None, resume=True), f"session of {READERS[number]}: {'; '.join(done)}"


def _of_prepared(chosen: random.Random, folder: Path, run: Path, there: Path) -> Outcome:
    name = chosen.choice(["statistics", "gates-mine", "cache.json"])
    path = run / SAVED / name
    if path.is_dir():
        done = change(chosen, path)
    else:
        data = json.loads(path.read_bytes())
        node = chosen.choice([data, data["settings"]])
        key = chosen.choice([*node, "x"])
        node[key] = chosen.choice(VALUES)
        path.write_text(json.dumps(data))
        done = f"{key} = {node[key]!r:.60}"
    reader = {"statistics": "dynamic", "gates-mine": "learned:network=mine", "cache.json": "cache"}[name]
    return _read(run, there, reader, resume=False), f"{name}: {done}"


def _read(run: Path, folder: Path, reader: str | None, resume: bool) -> str:
    """Return faults in how a reading ends."""
    here, into = os.pipe()
    os.write(into, TEXT)
    os.close(into)
    try:
        with within(30), session(run, folder, on_line=lambda line: None, reader=reader, resume=resume) as opened:
            opened.read(here)
    except UserError as error:
        return f"not one line: {error}" if "\n" in str(error) or not str(error) else ""
    except NonFiniteError:
        return ""
    except (Hung, Exception) as error:
        return f"{type(error).__name__}: {str(error)[:200]}"
    finally:
        os.close(here)
    return ""
