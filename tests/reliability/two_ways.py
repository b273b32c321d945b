"""Two equivalent requests must give the same result, for every kind of model and text."""

import itertools
import json
import math
import os
import shutil
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from unittest.mock import patch

import torch
from calling import call
from odd_runs import KINDS, made
from runs import outcome

import backstory as bs
from backstory.models import choose_precision

DRAWN = ("copy", "recall")
EXAMINE = ("--split", "test", "--targets", "99999", "--maximum-context", "10", "--context", "5", "--near", "2")


@dataclass
class Desk:
    """Runs that are trained when they are first asked for, and what was read with them."""

    folder: Path
    _read: dict[str, dict[str, Any]] = field(default_factory=dict)
    _count: Iterator[int] = field(default_factory=itertools.count)

    def run(self, kind: str) -> Path:
        return made(self.folder, [kind])[kind]

    def new(self) -> Path:
        """A path that nothing was written to."""
        return self.folder / f"new-{next(self._count)}"

    @property
    def text(self) -> Path:
        """The test text of all but the synthetic corpora."""
        return self.folder / "corpus" / "test.txt"

    def said(self, *arguments: object, given: bytes = b"") -> str:
        """Return the output of a command line that must end well, with this standard input."""
        (place := self.new()).write_bytes(given)
        with open(place, encoding="utf-8") as file, patch.object(sys, "stdin", file):
            ended = call([str(a) for a in arguments], 300)
        if ended.code != 0:
            raise AssertionError(f"{arguments[0]} ended with {ended.code}: {ended.err[-300:]} {ended.raised}")
        return ended.out

    def figures(self, *arguments: object, given: bytes = b"") -> dict[str, Any]:
        """The figures of a result that goes to a folder of its own."""
        return json.loads(self.said(*arguments, "--json", "--out", self.new(), given=given))["figures"]

    def evaluated(self, kind: str, *flags: object, given: bytes = b"") -> dict[str, Any]:
        return self.figures("evaluate", self.run(kind), *flags, "--audit-seed", "1", given=given)

    def read(self, kind: str) -> dict[str, Any]:
        """The figures of the test split, read once."""
        if kind not in self._read:
            self._read[kind] = self.evaluated(kind)
        return self._read[kind]


def run(trials: Sequence[int], folder: Path) -> Iterator[str]:
    """Each trial is one way with one kind."""
    with patch.dict(os.environ, {"BACKSTORY_CACHE": str(folder / "cache"), "HF_HUB_OFFLINE": "1"}):
        desk = Desk(folder)
        for number in trials:
            kind, way = TRIALS[number]
            try:
                problem = WAYS[way](desk, kind)
            except AssertionError as error:
                problem = str(error)
            if problem:
                yield f"{kind}, {way}: {problem}"


def _same(found: dict[str, Any], expected: dict[str, Any]) -> str:
    different = [key for key in expected if found.get(key) != expected[key]]
    return f"{', '.join(different)} differ" if different else ""


def _close(found: float, expected: float, tolerance: float = 1e-5) -> str:
    return "" if math.isclose(found, expected, rel_tol=tolerance) else f"{found} and not {expected}"


def _nats(*flags: str, tolerance: float = 1e-5) -> Callable[[Desk, str], str]:
    """Check that a reading with these flags has the same score as one without."""

    def way(desk: Desk, kind: str) -> str:
        found, expected = desk.evaluated(kind, *flags), desk.read(kind)
        return _close(found["nats_per_token"], expected["nats_per_token"], tolerance)

    return way


def _all(*flags: str) -> Callable[[Desk, str], str]:
    """Check that a reading with these flags has all the same figures."""
    return lambda desk, kind: _same(desk.evaluated(kind, *flags), desk.read(kind))


def _own_precision(desk: Desk, kind: str) -> str:
    """Compare --precision auto with the precision that the processor has, by its name."""
    named = choose_precision("auto", torch.device("cpu")).name
    return _same(desk.evaluated(kind, "--precision", "auto"), desk.evaluated(kind, "--precision", named))


def _python(desk: Desk, kind: str) -> str:
    found = bs.evaluate(desk.run(kind), audit_seed=1, out=desk.new())
    return _same(found.figures.to_dict(), desk.read(kind))


def _per_token(desk: Desk, kind: str) -> str:
    file = desk.new().with_suffix(".jsonl")
    expected = desk.evaluated(kind, "--per-token", file)
    each = [json.loads(line)["log_prob"] for line in file.read_text().splitlines()]
    return _close(-sum(each) / len(each), expected["nats_per_token"]) or _same(expected, desk.read(kind))


def _text(desk: Desk, kind: str) -> str:
    return _close(desk.evaluated(kind, desk.text)["nats_per_token"], desk.read(kind)["nats_per_token"], 0)


def _input(desk: Desk, kind: str) -> str:
    found = desk.evaluated(kind, "-", given=desk.text.read_bytes())
    return _close(found["nats_per_token"], desk.read(kind)["nats_per_token"], 0)


def _line_by_line(desk: Desk, kind: str) -> str:
    last = json.loads(desk.said("read", desk.run(kind), "--json", given=desk.text.read_bytes()).splitlines()[-1])
    expected = desk.read(kind)
    if last["all_tokens"] != expected["tokens"]:
        return f"{last['all_tokens']} tokens, and not {expected['tokens']}"
    return _close(last["all_nats"] / last["all_tokens"], expected["nats_per_token"])


def _explained(desk: Desk, kind: str) -> str:
    found = desk.figures("explain", "surprisal", desk.run(kind), "--words", "2000")
    return _close(found["nats_per_token"], desk.read(kind)["nats_per_token"])


def _examined(desk: Desk, kind: str) -> str:
    """With all context, the targets cost what they cost a reading."""
    file = desk.new().with_suffix(".jsonl")
    desk.evaluated(kind, "--per-token", file)
    each = [json.loads(line)["log_prob"] for line in file.read_text().splitlines()]
    found = desk.figures("examine", desk.run(kind), *EXAMINE)
    if found["targets"] >= len(each) or kind in ("characters", "bytes"):  # there the targets are words
        return "" if math.isfinite(found["baseline"]["nats"]) else "not finite"
    targets = each[-found["targets"] :]
    return _close(found["baseline"]["nats"], -sum(targets) / len(targets), 1e-4)


def _batches(desk: Desk, kind: str) -> str:
    """Of all targets, neither the size of a batch nor the seed changes a mean."""
    first = desk.figures("examine", desk.run(kind), *EXAMINE, "--seed", "1")
    other = desk.figures("examine", desk.run(kind), *EXAMINE, "--memory", "1e-5", "--seed", "2")
    pairs = zip(first["conditions"], other["conditions"], strict=True)
    return next((p for a, b in pairs if (p := _close(a["nats"], b["nats"]))), "")


def _validated(desk: Desk, kind: str) -> str:
    """Training reports of its best weights what a reading in as many rows finds."""
    result = json.loads((desk.run(kind) / "result.json").read_text())
    rows = result["provenance"]["config"]["training"]["validation_batch_size"]
    found = desk.evaluated(kind, "--split", "valid", "--batch-size", rows)
    return _close(found["nats_per_token"], result["figures"]["valid_nats"])


def _trained_again(desk: Desk, kind: str) -> str:
    """By the settings in its folder, elsewhere, with weights and log bit for bit."""
    again = desk.new()
    desk.said("train", desk.run(kind) / "config.yaml", "--out", again)
    first, second = outcome(desk.run(kind)), outcome(again)
    return _same(second, first)


def _moved(desk: Desk, kind: str) -> str:
    """A copy elsewhere, named from another folder by a way that leads up and down."""
    expected, place, here = desk.read(kind), desk.new(), Path.cwd()
    shutil.copytree(desk.run(kind), place / "a" / "copy", ignore=shutil.ignore_patterns("export", "sample"))
    (place / "b").mkdir()
    os.chdir(place / "b")
    try:
        return _same(desk.figures("evaluate", "../b/../a/copy/", "--audit-seed", "1"), expected)
    finally:
        os.chdir(here)


def _other_default(desk: Desk, kind: str) -> str:
    torch.set_default_dtype(torch.float64)
    try:
        return _same(desk.evaluated(kind), desk.read(kind))
    finally:
        torch.set_default_dtype(torch.float32)


def _threads(desk: Desk, kind: str) -> str:
    expected, threads = desk.read(kind)["nats_per_token"], torch.get_num_threads()
    torch.set_num_threads(2)
    try:
        return _close(desk.evaluated(kind)["nats_per_token"], expected)
    finally:
        torch.set_num_threads(threads)


def _clock(desk: Desk, kind: str) -> str:
    """The clock of the machine goes back by an hour with every look at it."""
    expected, hours = desk.read(kind), itertools.count()
    with patch.object(time, "time", lambda: 1e9 - 3600 * next(hours)):
        return _same(desk.evaluated(kind), expected)


def _greedy(desk: Desk, kind: str) -> str:
    found = {
        desk.said("generate", desk.run(kind), "--tokens", "15", *flags)
        for flags in (("--temperature", "0"), ("--top-k", "1", "--seed", "3"), ("--top-p", "1e-12", "--seed", "4"))
    }
    return "" if len(found) == 1 else f"{found}"


def _drawn(desk: Desk, kind: str) -> str:
    """A seed gives a text, in Python as here, and the same one saved; another seed another."""
    line = ("generate", desk.run(kind), "--tokens", "30", "--seed")
    first, again, other = (desk.said(*line, *more) for more in (("3",), ("3", "--save"), ("4",)))
    saved = json.loads((desk.run(kind) / "sample" / "result.json").read_text())["figures"]["text"]
    texts = {text.removesuffix("\n") for text in (first, again, saved)}
    texts.add("".join(bs.generate(desk.run(kind), tokens=30, seed=3)).removesuffix("\n"))
    if len(texts) > 1:
        return f"{texts}"
    return "" if first != other else "two seeds drew the same"


def _exported(desk: Desk, kind: str) -> str:
    folder = desk.new()
    desk.said("export", desk.run(kind), "--out", folder)
    corpus = ("--corpus", str(desk.text.parent))
    found = desk.figures("evaluate", f"hf:{folder}", *corpus)
    return _close(found["nats_per_token"], desk.read(kind)["nats_per_token"])


WAYS: dict[str, Callable[[Desk, str], str]] = {
    "again": _all(),
    "in Python": _python,
    "with the figures of every token": _per_token,
    "saved all the time": _all("--save-every", "1e-9"),
    "in the precision that the processor has": _own_precision,
    "at temperature 1": _nats("--reader", "tempered:temperature=1"),
    "with a cache that has no say": _nats("--reader", "cache:weight=0"),
    "as a text": _text,
    "from standard input": _input,
    "line by line": _line_by_line,
    "explained": _explained,
    "examined": _examined,
    "examined in other batches": _batches,
    "validated": _validated,
    "trained again": _trained_again,
    "moved": _moved,
    "with another type of numbers by default": _other_default,
    "in two threads": _threads,
    "while the clock goes back": _clock,
    "the likeliest three ways": _greedy,
    "drawn by a seed": _drawn,
    "exported": _exported,
}
"""Commands that are given again, and how."""
NOT_DRAWN = {"as a text", "from standard input", "line by line", "exported"}
"""Ways that need a text or a corpus by its folder."""
TRIALS = [(kind, way) for kind in KINDS for way in WAYS if not (kind in DRAWN and way in NOT_DRAWN)]
