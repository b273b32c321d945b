"""Verbs that write files on a disk that fills up: one line, nothing half written, and success when repeated."""

import io
import random
import shutil
from collections.abc import Iterator, Sequence
from pathlib import Path

from processes import zygote
from rich.console import Console
from runs import contents, sentences, tiny_config, tiny_corpus

from backstory.storage.atomic import TEMPORARY
from backstory.training import train

VERBS = {
    "recipe copy": ("recipe", "copy", "demo", "OUT/new.yaml"),
    "report": ("report", "RUN", "--out", "OUT/page.html"),
    "evaluate": ("evaluate", "RUN", "TEXT", "--out", "OUT/figures"),
    "per token": ("evaluate", "RUN", "TEXT", "--per-token", "OUT/tokens.tsv", "--out", "OUT/figures"),
    "saved reading": ("evaluate", "RUN", "TEXT", "--save-every", "0.001", "--resume", "--out", "OUT/figures"),
    "examine": ("examine", "RUN", "--experiment", "truncate", "--targets", "5", "--maximum-context", "9"),
    "explain": ("explain", "surprisal", "RUN", "--words", "20", "--html", "OUT/page.html"),
    "generate": ("generate", "RUN", "--tokens", "20", "--save"),
    "reader": ("reader", "tune", "RUN", "--reader", "cache", "--grid", "theta=0.5,1"),
}
COUNT = 8 * len(VERBS)


def full_disks(trials: Sequence[int], folder: Path) -> Iterator[str]:
    """A trial is one verb with one size, in bytes, beyond which the system lets no file grow."""
    original = folder / "original"
    train(tiny_config(tiny_corpus(folder / "corpus")), original, console=Console(file=io.StringIO()))
    (folder / "text.txt").write_text(sentences(200, 7), encoding="utf-8")
    failed = 0
    with zygote(folder) as started:
        for number in trials:
            name = list(VERBS)[number % len(VERBS)]
            run, out, cache = folder / "run", folder / "out", str(folder / "cache")
            for place in (run, out):
                shutil.rmtree(place, ignore_errors=True)
            shutil.copytree(original, run)
            out.mkdir()
            places = {"RUN": run, "OUT": out, "TEXT": folder / "text.txt"}
            line = [_placed(part, places) for part in VERBS[name]]
            largest = int(10 ** random.Random(number).uniform(2.8, 4.5))
            before = contents(run)
            ended = started.start(*line, before=[("faults", "limit_size", {"largest": largest})], BACKSTORY_CACHE=cache)
            code, said = ended.wait(), ended.said()
            problems = _told(code, said)
            if code:
                failed += 1
                left = contents(run) | contents(out)
                problems += [f"{path} is changed" for path in before if left.get(path) != before[path]]
                problems += [f"{path} is left" for path in left if TEMPORARY in path]
                again = started.start(*line, BACKSTORY_CACHE=cache)
                problems += [] if again.wait() == 0 else [f"again it ended with {again.code}: {again.said()[-300:]}"]
            yield from (f"{name}, files of {largest} bytes at most: {problem}" for problem in problems)
    print(f"  {failed} of {len(trials)} met the limit", flush=True)


def _placed(part: str, places: dict[str, Path]) -> str:
    for name, place in places.items():
        part = part.replace(name, str(place))
    return part


def _told(code: int, said: str) -> list[str]:
    """Return faults in the message of a command that met the limit."""
    # A text that is written word by word has no end of a line before it.
    lines = [line for line in said.split("backstory: ")[1:] if not line.startswith("warning: ")]
    if "Traceback" in said or code not in (0, 2) or len(lines) != (code == 2):
        return [f"ended with {code}: {said[-400:]}"]
    if lines and not ("cannot write" in lines[0] and "raise the limit on the size of files" in lines[0]):
        return [f"it did not say where and what to do: {lines[0]}"]
    return []
