"""Fuzzed settings and command lines are accepted and round-trip through YAML, or are refused in one line."""

import contextlib
import os
import random
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any
from unittest.mock import patch

import yaml
from calling import Hung, call, listing, within

from backstory.cli import (
    data,
    demo,
    evaluate,
    examine,
    explain,
    generate,
    ls,
    reader,
    recipe,
    report,
    reproduce,
    train,
)
from backstory.cli.flags import settings
from backstory.cli.main import VERBS
from backstory.config import RunConfig, from_dict, from_yaml, recipes, to_yaml
from backstory.models.memory import parse_addressing
from backstory.readers.registry import parse_stack, stack_name
from backstory.tuning.preparation import parse_grid
from backstory.tuning.space import Space, parameters
from backstory.utils.errors import UserError

DATACLASSES = [
    (demo.DemoArguments, None),
    (train.TrainArguments, train.TrainArguments()),
    (evaluate.EvaluateArguments, None),
    (examine.ExamineArguments, None),
    (explain.ExplainArguments, None),
    (explain.CompareReadersArguments, None),
    (generate.GenerateArguments, None),
    (report.ReportArguments, None),
    (reproduce.ReproduceArguments, None),
    (reader.AuditReaderArguments, None),
    (data.ShowCorpusArguments, None),
    (data.PrepareCorpusArguments, None),
    (recipe.CopyRecipeArguments, None),
    (ls.ListArguments, None),
]
FLAGS = sorted({flag for kind in DATACLASSES for s in settings(*kind) if not s.positional for flag in s.flags()})
SETTINGS = [f for f in FLAGS if f.startswith(("--text.", "--model.", "--training.", "--seed"))]
STARTS = [[verb] for verb in VERBS] + [
    ["train", "demo"],
    ["train", "ptb-mos"],
    ["evaluate", "run"],
    ["examine", "run"],
    ["explain", "surprisal", "run"],
    ["explain", "reading", "run"],
    ["generate", "run"],
    ["reader", "audit"],
    ["reader", "audit", "run"],
    ["data", "show", "file"],
    ["recipe", "check", "demo"],
    ["recipe", "copy", "demo"],
    ["reproduce", "base", "--dry-run"],
]
NUMBERS = ["0", "1", "-1", "7", "0.5", "1e-3", "1e400", "nan", "inf", "-inf", "None", "none", "true", "no", "9" * 5000]
NAMES = ["auto", "cpu", "cuda", "sgd", "mixture", "lstm", "static", "truncate", "models", "test", "config", "demo"]
PATHS = ["run", "file", "file/x", "run/x.yaml", "/dev/zero", ".", "", " ", "é", "\u2028", "\udcff", "x" * 5000]
MARKS = ["-", "--", "---", "=", "--=", "-h", "--help", "--version", "--tyro-print-completion"]
SCALARS = [
    *NUMBERS,
    *NAMES,
    *(".nan", ".inf", "-.inf", "0x" + "f" * 5000, "0b" + "1" * 20_000, "1:" * 3000 + "1", "1_000", "2024-13-45"),
    *("2024-01-01", "0001-01-01 00:00:00+23:59", "!!timestamp x", "!!int ''", "!!float ''", "!!bool x", "!!binary x"),
    *("!!set {a, b}", "!!omap [a: 1]", "!!pairs [a]", "!!null [1]", "!x 1", "!!python/name:os.system", "=", "~"),
    *("!!python/object/apply:os.system ['touch canary']", "&a [*a]", "&a {b: *a}", "*a", "{<<: 3}", "{<<: [{x: 1}]}"),
    *('"\\ud800"', '"\\0"', '"\\u2028"', "'é'", "[]", "{}", "[1, two]", "{? [1] : 2}", "{1: 2}", "|\n  x", ">-", "'"),
    *("x" * 100_000, "[" * 300 + "]" * 300, "[" * 5000, "{a: " * 200 + "1" + "}" * 200, "- 1", "@", "`", "%", "\t"),
]
JUNK = "abcé\u2028\ufeff\x7f\x00\t\n\r:-[]{}&*!|>%@`\"'#,?0123456789 "


def _unfolding(first: str, further: str) -> str:
    """Lines of references to nine of the line before each, which unfold into 9^24 values."""
    lines = (further.format(i, ", ".join([f"*a{i - 1}"] * 9)) for i in range(1, 25))
    return "\n".join([f"a0: &a0 {first}", *lines, ""])


LAUGHS, MERGES = _unfolding("[x, x]", "a{0}: &a{0} [{1}]"), _unfolding("{x: 1}", "a{0}: &a{0} {{<<: [{1}], y{0}: 1}}")
BOMBS = [LAUGHS, MERGES, f"{LAUGHS}training: *a24\n", f"{LAUGHS}seed: *a24\n", f"{MERGES}training: *a24\n"]

WORK = [
    "backstory.evaluation.evaluate",
    "backstory.context.examine_run",
    "backstory.explanations.compare_readers",
    "backstory.explanations.explain_passage",
    "backstory.cli.evaluate.describe",
    "backstory.cli.evaluate.summary",
    "backstory.cli.explain.show",
    "backstory.papers.reproduction.Reproduction.run",
    "backstory.reports.write",
]
"""Slow parts that are patched out, so that only the input matters."""


def run(trials: Sequence[int], folder: Path) -> Iterator[str]:
    """Even trials write a settings file and read it with two verbs, odd ones type a command line."""
    desk = folder / "desk"
    desk.mkdir()
    (desk / "file").write_text("some words\n")
    taken: list[RunConfig] = []

    def instead(config: RunConfig, *_: Any, **__: Any) -> None:
        taken.append(config)

    with contextlib.ExitStack() as stack:
        for name in WORK:
            stack.enter_context(patch(name, lambda *_, **__: 0))
        stack.enter_context(patch("backstory.cli.train.run_training", instead))
        stack.enter_context(patch.dict(os.environ, {"BACKSTORY_CACHE": str(folder / "cache")}))
        stack.enter_context(contextlib.chdir(desk))
        for number in trials:
            chosen = random.Random(f"configs {number}")
            taken.clear()
            lines = _files(chosen, desk) if number % 2 == 0 else [_line(chosen)]
            for line in lines:
                if problem := _trial(line, desk, taken):
                    yield f"configs {number}: {problem}; {' '.join(line)[:200]!r}"
                    break
            if problem := _specified(chosen):
                yield f"configs {number}: {problem}"


def _trial(line: list[str], folder: Path, taken: list[RunConfig]) -> str:
    before = listing(folder)
    ended = call(line)
    if problem := ended.problem():
        return problem
    after = listing(folder)
    if ended.code == 0 and line[:2] == ["recipe", "copy"]:
        for name in after.keys() - before.keys():
            (folder / name).unlink()
        after = listing(folder)
    if after != before:
        return f"changed on disk: {sorted(after.items() ^ before.items())[:3]}"
    if ended.code and (ended.out or taken):
        return "refused, and went on"
    for config in taken:
        if from_yaml(RunConfig, to_yaml(config), "again") != config:
            return f"not the same from its YAML: {config}"
    taken.clear()
    return ""


# --- what is parsed from a flag's text ---


def _specified(chosen: random.Random) -> str:
    """Return faults in the parsing of a reader, a grid, an addressing and a space."""
    text = _specification(chosen)
    entry = {chosen.choice(NAMED): {chosen.choice(["range", "choice", "same", "log", "when"]): chosen.choice(ENTRIES)}}
    parsers: dict[str, Callable[[], object]] = {
        "stack": lambda: parse_stack(stack_name(parse_stack(text))),
        "grid": lambda: parse_grid(parse_stack(chosen.choice(["cache", "dynamic"])), [text.partition(":")[2] or text]),
        "turns": lambda: parse_grid(parse_stack("dynamic+cache"), [text.partition(":")[2] or text]),
        "addressing": lambda: parse_addressing(text, 64),
        "space": lambda: parameters(from_dict(Space, {"settings": entry}, "space"), RunConfig(), "space", draws=3),
    }
    for name, parse in parsers.items():
        try:
            with within(20):
                parse()
        except UserError as error:
            if " " not in str(error):
                return f"{name}: no sentence for {text[:100]!r}"
        except (Exception, Hung) as error:
            return f"{name} of {text[:100]!r} or {entry!r:.100}: {type(error).__name__} {str(error)[:100]!r}"
    return ""


def _specification(chosen: random.Random) -> str:
    """`name:key=value,key=value+name`, each part of it now and then something else."""
    parts = []
    for _ in range(chosen.choice([1, 1, 1, 2, 3])):
        name = chosen.choice(
            ["cache", "dynamic", "tempered", "static", "learned", "shuffled-buffer", "localized", "window", "x", ""]
        )
        pairs = [
            f"{chosen.choice(KEYS)}{chosen.choice(['=', '=', '=', '', '=='])}{chosen.choice(SCALARS + NUMBERS)}"
            for _ in range(chosen.randrange(4))
        ]
        parts.append(f"{name}{chosen.choice([':', ':', '', '::'])}{','.join(pairs)}")
    text = chosen.choice(["+", "+", "++", ","]).join(parts)
    return _characters(chosen, text) if chosen.random() < 0.3 else text


KEYS = [
    "rate",
    "decay",
    "rule",
    "moving",
    "segment",
    "theta",
    "window",
    "weight",
    "temperature",
    "network",
    "257",
    "x",
    "",
]
NAMED = [
    "training.learning_rate",
    "model.core.hidden",
    "model.head.kind",
    "seed",
    "training",
    "model.core",
    "x",
    "",
    "a.b",
    3,
]
ENTRIES: list[Any] = [
    *([0, 1], [1e-9, 1e300], [1, 0], [float("nan"), 1], [1], [], "x", None, True, 3, {}, [[1]], {"x": [1]}),
    *(
        ["softmax", "mixture"],
        {"model.head.kind": "mixture"},
        {"x.y": 1},
        [10**30, 1],
        "training.learning_rate",
        "2001-99-99",
    ),
]


# --- settings files ---


def _files(chosen: random.Random, folder: Path) -> list[list[str]]:
    """Write a settings file, and name the command lines that read it."""
    content = _content(chosen)
    (folder / "mine.yaml").write_bytes(content)
    return [["recipe", "check", "mine.yaml"], ["train", "mine.yaml", "--out", "out"]]


def _content(chosen: random.Random) -> bytes:
    base = chosen.choice([recipes.text(chosen.choice(recipes.names())), to_yaml(RunConfig()), "seed: 1\n", ""])
    text = base
    for _ in range(chosen.choice([0, 1, 1, 1, 2, 4])):
        text = chosen.choice(TEXTUAL)(chosen, text)
    raw = text.encode("utf-8", "surrogatepass")
    if chosen.random() < 0.15:
        raw = _bytes(chosen, raw)
    return raw


def _another_value(chosen: random.Random, text: str) -> str:
    """Another value for a random setting of a random part."""
    lines = [i for i, line in enumerate(text.splitlines()) if ": " in line and not line.startswith("#")]
    if not lines:
        return text + f"{chosen.choice(['seed', 'training', 'text', 'x'])}: {chosen.choice(SCALARS)}\n"
    kept = text.splitlines()
    i = chosen.choice(lines)
    head, _, tail = kept[i].partition(": ")
    if tail.startswith("{") and chosen.random() < 0.7:
        inner = tail.strip("{}").split(", ")
        j = chosen.randrange(len(inner))
        inner[j] = f"{inner[j].split(':')[0]}: {chosen.choice(SCALARS)}"
        tail = "{" + ", ".join(inner) + "}"
    else:
        tail = chosen.choice(SCALARS)
    kept[i] = f"{head}: {tail}"
    return "\n".join(kept) + "\n"


def _structure(chosen: random.Random, text: str) -> str:
    """The settings as data with one entry changed, added, moved or lost."""
    if "*a" in text:  # it would unfold here
        return text
    try:
        data = yaml.safe_load(text) or {}
    except Exception:  # changed before in a way that YAML does not take
        return text
    node = data
    while isinstance(node, dict) and node and chosen.random() < 0.6:
        node = node[chosen.choice(list(node))]
    if isinstance(node, dict):
        key = chosen.choice([*node, "epochs", "kind", "x", 3, None, True, "é", 1.5])
        node[key] = chosen.choice(
            [3, -1, 10**30, 1e300, float("nan"), "x", "", None, True, [1, 2], {}, {"kind": "mixture"}, "3", ["a"], node]
        )
        if chosen.random() < 0.3:
            node.pop(chosen.choice(list(node)))
    return yaml.safe_dump(data, sort_keys=False)


def _lines(chosen: random.Random, text: str) -> str:
    """Duplicate, remove, move or indent a line."""
    lines = text.splitlines() or [""]
    i, j = chosen.randrange(len(lines)), chosen.randrange(len(lines) + 1)
    change: Callable[[], object] = chosen.choice(
        [
            lambda: lines.insert(j, lines[i]),
            lambda: lines.pop(i),
            lambda: lines.insert(j, chosen.choice(["---", "...", "%YAML 9.9", "? x", "- x", "x", ": y", "<<: *a"])),
            lambda: lines.__setitem__(i, chosen.choice([" ", "\t", "   "]) + lines[i]),
        ]
    )
    change()
    return "\n".join(lines) + "\n"


def _characters(chosen: random.Random, text: str) -> str:
    where, count = chosen.randrange(len(text) + 1), chosen.randrange(1, 9)
    return text[:where] + "".join(chosen.choices(JUNK, k=count)) + text[where + chosen.choice([0, count]) :]


TEXTUAL = [
    _another_value,
    _another_value,
    _structure,
    _lines,
    _characters,
    lambda chosen, text: text[: chosen.randrange(len(text) + 1)],
    lambda chosen, text: text + chosen.choice(BOMBS),
    lambda chosen, text: text.replace("\n", chosen.choice(["\r\n", "\r", "\x85", "\u2028"])),
]


def _bytes(chosen: random.Random, raw: bytes) -> bytes:
    where = chosen.randrange(len(raw) + 1)
    return chosen.choice(
        [
            lambda: raw[:where] + chosen.randbytes(4) + raw[where:],
            lambda: chosen.randbytes(chosen.choice([0, 1, 2, 100, 5000])),
            lambda: b"\xff\xfe" + raw.decode(errors="replace").encode("utf-16-le"),
            lambda: b"\x00" * 5000,
            lambda: b"\xef\xbb\xbf" + raw,
            lambda: b"# " + b"x" * 3_000_000,
            lambda: b"x: [" + b"1, " * 40_000 + b"]",
        ]
    )()


# --- command lines ---


def _line(chosen: random.Random) -> list[str]:
    if chosen.random() < 0.5:
        line = ["train", chosen.choice(["demo", "ptb-small", "ptb-mos"])]
        words = [w for _ in range(chosen.randrange(1, 4)) for w in (chosen.choice(SETTINGS), _value(chosen))]
        line += words
        if chosen.random() < 0.3:
            line[chosen.randrange(len(line))] = _word(chosen)
    else:
        line = [*chosen.choice([*STARTS, []]), *(_word(chosen) for _ in range(chosen.randrange(6)))]
    return [word for word in line if word not in ("stdlib", "--out")]  # the one is prepared, the other a place to write


def _value(chosen: random.Random) -> str:
    return chosen.choice([chosen.choice(NUMBERS + NAMES), str(chosen.randrange(1, 100)), str(chosen.uniform(0, 1))])


def _word(chosen: random.Random) -> str:
    flag, value = chosen.choice(FLAGS), chosen.choice(NUMBERS + NAMES + PATHS + MARKS)
    junk = "".join(chosen.choices(JUNK.replace("\0", ""), k=chosen.randrange(12)))
    return chosen.choice(
        [flag, flag, flag[: chosen.randrange(3, len(flag) + 1)], value, value, junk, f"{flag}={value}"]
    )
