"""Damaged and foreign result files are shown, or named with the reason while the rest is shown."""

import copy
import io
import json
import random
import re
import shutil
import sys
import warnings
from collections.abc import Callable, Iterator, Sequence
from html.parser import HTMLParser
from pathlib import Path
from typing import Any
from unittest.mock import patch

import scripts
from calling import Hung, call, within
from rich.console import Console

from backstory.reports import page, render_comparison, render_passage, render_search, sections, to_text
from backstory.reports.sections.context_section import examination_plots
from backstory.reports.sections.reproduction_section import claims_table, findings_table, gates_table, systems_table
from backstory.results import ReproductionFigures, Result, result_from
from backstory.utils.errors import UserError

ROOT = Path(__file__).resolve().parents[2]
MEANS = ("entropy_bits", "largest_percent", "window_percent", "fall_back_percent")
sys.path.append(str(ROOT / "tests" / "reports"))

REAL = (
    "associative-recall-dnc-lengths",
    "everything-longer-cache",
    "examine-cache-ptb-small",
    "examine-demo",
    "examine-memory-lstm",
    "read-demo-dynamic",
    "recipe-demo",
    "reproduce-base",
    "reproduce-context",
    "reproduce-dual",
    "reproduce-recall",
)
"""Results of the program, with reproductions reduced to a row or two and their first runs."""
PAGES = 8
"""One in this many trials also draws the verb's own page of the result, with the same figures as the report."""
WIDE = 3
"""Entries kept of a long list, because three stand for all."""


def run(trials: Sequence[int], folder: Path) -> Iterator[str]:
    """Change a result, put it beside one that is whole, and ask for a report; then show it as its verb would."""
    starts, whole = _starts(), json.dumps(_real("read-demo"))
    run = folder / "run"
    for number in trials:
        chosen = random.Random(f"results {number}")
        name = chosen.choice(sorted(starts))
        text, done = _changed(chosen, starts[name], starts)
        for below, content in (("healthy", whole), ("changed", text)):
            (run / below).mkdir(parents=True)
            (run / below / "result.json").write_bytes(content.encode("utf-8", "surrogatepass"))
        if chosen.random() < 0.1:
            done.append(_beside(chosen, run))
        try:
            problem = _trial(text, run, folder / "page.html", pages=number % PAGES == 0)
        finally:
            shutil.rmtree(run)
        if problem:
            yield f"results {number}: {problem}; {name}: {'; '.join(done)}"


# --- what must hold ---


def _trial(text: str, run: Path, out: Path, pages: bool) -> str:
    source = str(run / "changed" / "result.json")
    try:
        with within(60):
            result = result_from(text, source)
            problem = _shown(result, pages)
    except UserError as error:
        result, problem = None, "" if source in str(error) and "\n" not in str(error) else f"not one line: {error}"
    except (Hung, Exception) as error:
        return f"shown by its verb: {type(error).__name__}: {str(error)[:200]}"
    with patch.object(page, "_without_unshowable", side_effect=page._without_unshowable) as rescued:
        ended = call(["report", str(run), "--out", str(out)], 60)
    if problem or (problem := ended.problem((0,))):
        return problem
    if rescued.called:
        return "passed all checks, and could not be shown"
    made = out.read_text(encoding="utf-8")
    named = [line for line in ended.err.splitlines() if source in line]
    if (result is None) != (len(named) == 1 and "not shown" in named[0]):
        return f"{'not ' * (result is None)}named in the terminal: {ended.err[-300:]!r}"
    if result is None and source not in made:
        return "not named on the page"
    if "evaluate test (static)" not in made and "perplexity" not in made:
        return "the whole result is not shown"
    return _unsafe(made) or _unprintable(ended.out + ended.err)


PAGE_OF: dict[str, Callable[[Result], object]] = {
    "search": render_search,
    "comparison": render_comparison,
    "explanation": render_passage,
    "examination": examination_plots,
}


def _shown(result: Result, pages: bool) -> str:
    """Show a result as its verb does, and return control sequences that a terminal would obey."""
    told = io.StringIO()
    console = Console(file=told, width=100)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        sections.show(result, console)
        if pages and result.kind in PAGE_OF:
            PAGE_OF[result.kind](result)
        if isinstance(result.figures, ReproductionFigures):
            for table in (systems_table, gates_table, claims_table, findings_table):
                print(to_text(table(result.figures)), file=told)
    return _unprintable(told.getvalue())


def _unprintable(text: str) -> str:
    found = re.search("[\x00-\x08\x0b-\x1f\x7f-\x9f\u202a-\u202e\u2066-\u2069\ud800-\udfff]", text)
    return f"a terminal would obey {text[max(0, found.start() - 40) : found.start() + 10]!r}" if found else ""


TAGS = {
    *("html", "head", "meta", "title", "style", "body", "header", "h1", "h2"),
    *("h3", "h4", "p", "main", "section", "div", "span", "table", "thead"),
    *("tbody", "tr", "th", "td", "figure", "figcaption", "details", "summary", "pre"),
    *("dl", "dt", "dd", "ul", "li", "blockquote", "footer", "script", "fieldset"),
    *("legend", "label", "input", "i", "svg", "g", "defs", "path", "use"),
    *("rect", "text", "image", "clippath", "tspan"),
    *("code", "wbr"),  # commands, and where long names may break
    *("nav", "a"),  # contents, whose links stay on the page
}
ATTRIBUTES = {
    *("lang", "charset", "name", "content", "http-equiv", "class", "style", "tabindex", "role", "dir"),
    *("aria-label", "scope", "title", "id", "d", "x", "y", "width", "height"),
    *("href", "xlink:href", "transform", "clip-path", "viewbox", "version", "fill", "stroke", "font-family"),
    *(
        "stroke-linejoin",
        "pointer-events",
        "hidden",
        "type",
        "checked",
        "data-lead",
        "xmlns",
        "xmlns:xlink",
        "stroke-width",
    ),
    *("stroke-linecap"),
}


class _Page(HTMLParser):
    """Collects the tags and attributes that a page of ours does not have."""

    def __init__(self) -> None:
        super().__init__()
        self.strange: list[str] = []
        self.scripts = 0

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        if tag not in TAGS:
            self.strange.append(f"<{tag}>")
        for name, value in attrs:
            if name not in ATTRIBUTES or (name in ("href", "xlink:href") and not (value or "").startswith("#")):
                self.strange.append(f"{name}={value!r}"[:80])
            if re.search(r"javascript:|url\((?!#)|expression\(", value or "") and name in ("style", "clip-path"):
                self.strange.append(f"{name}={value!r}"[:80])
        self.scripts += tag == "script" and ("type", "application/json") not in attrs


def _unsafe(made: str) -> str:
    """Return True if foreign text became markup of the page."""
    parser = _Page()
    parser.feed(made)
    if parser.strange or parser.scripts > 1:
        return f"injected: {parser.strange[:3]}, {parser.scripts} scripts"
    found = re.search("[\x00-\x08\x0b\x0c\x0e-\x1f\x7f-\x9f\ud800-\udfff\ufffe\uffff]", made)
    return f"no HTML character: {found[0]!r}" if found else ""


# --- what is changed ---


def _starts() -> dict[str, Any]:
    """Results of every kind, small ones, by name."""
    found = {name: _narrow(_real(name)) for name in REAL}
    made, searched = _module("conftest"), _module("searched")
    for name in ("comparison", "explanation", "sample", "memory", "recency"):
        figures = getattr(made, name)()
        kind = name
        if name in ("memory", "recency"):
            kind, figures = "evaluation", made.evaluation(**{name: figures})
        found[name] = made.result(kind, figures)
    weights = _module("test_reports_weights").weights()
    heads = {key: {"write": 1.0, "read": [2.0, None]} for key in MEANS}
    memory = {"settings": {"slots": 40}, "window": 3, "windows": 2, "older_percent": 10.0}
    found["memory heads"] = made.result("explanation", made.explanation(weights=weights, **heads, **memory))
    found["search"] = searched.saved(searched.search())
    for result in found.values():
        result_from(json.dumps(result), "a start")  # a fault in what is changed would hide all others
    return found


def _module(name: str) -> Any:
    """A module beside the tests of reports; `conftest` is the name of others, too."""
    return scripts.load(f"tests/reports/{name}.py", f"reports_{name}")


def _real(name: str) -> Any:
    return json.loads((ROOT / "results" / f"{name}.json").read_bytes())


def _narrow(value: Any, key: str = "") -> Any:
    """A value whose long lists keep their first entries."""
    if isinstance(value, list):
        return [_narrow(item) for item in (value[:WIDE] if key not in ("blocks", "tokens") else value)]
    return {k: _narrow(v, k) for k, v in value.items()} if isinstance(value, dict) else value


NASTY = (
    *(
        "",
        "x",
        "\x00",
        "\x1b[2J\x07",
        "a\nb\r\tc",
        "\u202etxt.exe",
        "\ufffe\u2028",
        "\ud800",
        "$x^$",
        "$\\frac{",
        "{}%s%n",
    ),
    *("<script>alert(1)</script>", '"><img src=x onerror=alert(1)>', "' onload='alert(1)", "]]><svg onload=alert(1)>"),
    *("javascript:alert(1)", "</script><script>alert(1)</script>", "url(http://x)", "&lt;b&gt;", "<!--", "</style>"),
    *(
        "x" * 1000,
        "word " * 400,
        "x" * 100_000,
        "\u0301" * 300,
        "..",
        "../../etc/passwd",
        "character",
        "byte",
        "static",
    ),
    *(
        "complete",
        "failed",
        "yes",
        "truncate",
        "cache",
        "drop",
        "test",
        "near",
        "far",
        "frequency",
        "tag",
        "class",
        "NN",
    ),
)
NUMBERS = (
    *(0, 1, 2, -1, -0.0, 0.5, 7, 1e-320, 1e-9, -1e-9, 3.7, 1e6, 1e12, 1e15, 2**53, 2**53 + 1, 1e300, -1e300, 1.7e308),
    *(-1.7e308, 10**290, 10**400, float("nan"), float("inf"), -float("inf")),
)
OTHERS = (None, True, False, [], {}, [[]], [0], [None], ["x"], [1, 2, 3], {"x": 1}, {"passed": True}, [{}], [[1, 2]])


def _deep(levels: int) -> Any:
    value: Any = 1
    for _ in range(levels):
        value = [value]
    return value


def _changed(chosen: random.Random, start: Any, starts: dict[str, Any]) -> tuple[str, list[str]]:
    """The text of a changed result, and what was done to it."""
    result, done = copy.deepcopy(start), []
    for _ in range(chosen.choice([1, 1, 1, 1, 2, 3])):
        done.append(chosen.choice(STRUCTURAL)(chosen, result, starts))
    text = json.dumps(result)
    if chosen.random() < 0.08:
        done.append("as text")
        text = chosen.choice(TEXTUAL)(chosen, text)
    return text, done


def _place(chosen: random.Random, value: Any) -> tuple[Any, Any, str]:
    """A container somewhere in the figures, mostly, and a key of it that is there."""
    path: str = ""
    inside: Any = value
    key: Any = "figures" if chosen.random() < 0.9 else chosen.choice(list(value))
    while True:
        path += f".{key}"
        inner = inside[key]
        if not isinstance(inner, dict | list) or not inner or (path.count(".") > 1 and chosen.random() < 0.15):
            return inside, key, path
        inside = inner
        key = chosen.choice(list(inner)) if isinstance(inner, dict) else chosen.randrange(len(inner))


def _replace(chosen: random.Random, result: Any, starts: dict[str, Any]) -> str:
    inside, key, path = _place(chosen, result)
    before = inside[key]
    alike = NUMBERS if isinstance(before, int | float) else NASTY if isinstance(before, str) else OTHERS
    value = chosen.choice(alike if chosen.random() < 0.6 else chosen.choice([NUMBERS, NASTY, OTHERS]))
    inside[key] = _deep(chosen.choice([10, 60, 200])) if chosen.random() < 0.02 else copy.deepcopy(value)
    return f"{path} = {value!r:.60}"


def _scale(chosen: random.Random, result: Any, starts: dict[str, Any]) -> str:
    inside, key, path = _place(chosen, result)
    if not isinstance(inside[key], int | float):
        return _replace(chosen, result, starts)
    factor = chosen.choice([-1, 2, 0.5, 1e-6, 1e6, 1e100])
    inside[key] *= factor
    return f"{path} *= {factor:g}"


def _delete(chosen: random.Random, result: Any, starts: dict[str, Any]) -> str:
    inside, key, path = _place(chosen, result)
    del inside[key]
    return f"without {path}"


def _lists(chosen: random.Random, result: Any, starts: dict[str, Any]) -> str:
    inside, key, path = _place(chosen, result)
    for _ in range(30):
        if isinstance(inside[key], list):
            break
        inside, key, path = _place(chosen, result)
    if not isinstance(inside[key], list) or not inside[key]:
        return _delete(chosen, result, starts)
    change = chosen.choice(["shorter", "longer", "empty", "reversed", "doubled", "many"])
    items = inside[key]
    if change == "many":
        items *= 100 // len(items) + 1
    elif change == "empty":
        items.clear()
    elif change == "reversed":
        items.reverse()
    elif change == "shorter":
        items.pop(chosen.randrange(len(items)))
    else:
        items += copy.deepcopy(items[-1:] if change == "longer" else items)
    return f"{path} {change}"


def _every(chosen: random.Random, result: Any, starts: dict[str, Any]) -> str:
    """The same key everywhere."""
    _, key, _ = _place(chosen, result)
    value = chosen.choice([*NUMBERS[:20], *NASTY[:8], *OTHERS[:4]])

    def walk(inside: Any) -> None:
        for k, inner in inside.items() if isinstance(inside, dict) else enumerate(inside):
            if k == key:
                inside[k] = value
            elif isinstance(inner, dict | list):
                walk(inner)

    walk(result["figures"]) if isinstance(result.get("figures"), dict) else None
    return f"every {key} = {value!r:.40}"


def _add(chosen: random.Random, result: Any, starts: dict[str, Any]) -> str:
    """A key of the same kind's results or of none, where the reader may look for it."""
    inside, _key, path = _place(chosen, result)
    target = inside if isinstance(inside, dict) else result
    value = chosen.choice(chosen.choice([NUMBERS, NASTY, OTHERS]))
    name = chosen.choice([*OPTIONAL, "strange", "<b>", "\x1b"])
    target[name] = copy.deepcopy(value)
    return f"{path} with {name} = {value!r:.40}"


OPTIONAL = (
    *(
        "after",
        "addressing",
        "batch_size",
        "lengths",
        "audit",
        "memory",
        "recency",
        "answers",
        "unknown",
        "unknown_tokens",
    ),
    *(
        "out_of_vocabulary_tokens",
        "overlap",
        "groups",
        "models",
        "near",
        "seed",
        "window",
        "windows",
        "pieces_per_word",
    ),
    *(
        "cut_contexts",
        "word_score",
        "deviation",
        "hurt",
        "outside_window",
        "more_context_hurts",
        "low",
        "high",
        "curve",
    ),
    *("settings", "measured", "readings", "findings", "papers", "note", "protocol", "confounded", "better", "policy"),
    *(
        "best_lengths",
        "weights",
        "found",
        "layers",
        "tagger",
        "unknown_tag_share",
        "within_documents",
        "reader",
        "config",
    ),
    *("entropy_bits", "chosen", "digits", "against_nats_per_token", "averaging", "best_length", "effective_context"),
)


def _other_kind(chosen: random.Random, result: Any, starts: dict[str, Any]) -> str:
    other = starts[chosen.choice(sorted(starts))]
    if chosen.random() < 0.5:
        result["kind"] = other["kind"]
        return f"kind {other['kind']}"
    part = chosen.choice(["figures", "provenance"])
    result[part] = copy.deepcopy(other[part])
    return f"{part} of another"


def _envelope(chosen: random.Random, result: Any, starts: dict[str, Any]) -> str:
    key = chosen.choice(["schema", "kind", "name", "figures", "provenance"])
    value = chosen.choice([2, 99, "1", None, True, *chosen.choice([NASTY, NUMBERS, OTHERS])])
    result[key] = copy.deepcopy(value)
    return f"{key} = {value!r:.40}"


STRUCTURAL = (
    _replace,
    _replace,
    _replace,
    _scale,
    _delete,
    _delete,
    _lists,
    _every,
    _add,
    _add,
    _other_kind,
    _envelope,
)
TEXTUAL = (
    lambda chosen, text: text[: chosen.randrange(len(text))],
    lambda chosen, text: text.replace('"kind":', '"kind": "training", "kind":', 1),
    lambda chosen, text: "[" * chosen.choice([40, 100, 3000]) + text,
    lambda chosen, text: "\ufeff" + text,
    lambda chosen, text: text.replace('"', "'"),
    lambda chosen, text: f"[{text}]",
    lambda chosen, text: text.replace("e", "\udcff", 1),
    lambda chosen, text: text.replace("1", "1" * chosen.choice([200, 500, 5000]), 1),
    lambda chosen, text: f"{text}{text}",
    lambda chosen, text: chosen.choice(["", "null", "0", '"x"', "\x00", "<html>", "---\na: 1\n"]),
)


def _beside(chosen: random.Random, run: Path) -> str:
    """Another damaged file of the folder."""
    name = chosen.choice(["config.yaml", "metrics.jsonl"])
    epoch = {"event": "epoch", "epoch": 1, "step": 9, "train_nats": 5.0, "valid_nats": 4.0, "valid_perplexity": 54.6}
    epoch[chosen.choice(list(epoch))] = chosen.choice([*NUMBERS[:22], None, "x", [], True])
    content = chosen.choice(
        ["a: [1", "\x00", "a: &a [1]\nb: *a\n", "<b>: 1\n", "\ud800", f"{json.dumps(epoch)}\n" * 3, "[]\n"]
    )
    (run / name).write_bytes(content.encode("utf-8", "surrogatepass"))
    return f"{name} {content!r:.80}"
