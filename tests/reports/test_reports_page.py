"""The page is complete, safe and self-contained, and gives figures with their unit, tokens and audit."""

import base64
import hashlib
import json
import math
import os
import re
import subprocess
import sys
from html.parser import HTMLParser
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

from backstory.reports import render, render_passage, write
from backstory.reports.page import check_page
from backstory.reports.phrases import passage_summary
from backstory.results import result_from
from backstory.utils.errors import UserError

VOID = {"meta", "br", "hr", "img", "link", "input", "wbr"}


class Page(HTMLParser):
    """Reads a page strictly: every element closed in order; keeps tags, attributes, text, tables and pictures."""

    def __init__(self, html: str) -> None:
        super().__init__()
        self.open: list[str] = []
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.headings: list[tuple[str, str]] = []
        self.rows: list[list[str]] = []
        self.text = ""
        self.feed(html)
        self.close()
        assert self.open == []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))
        if tag not in VOID:
            self.open.append(tag)
        if re.fullmatch("h[1-6]", tag):
            self.headings.append((tag, ""))
        if tag == "tr":
            self.rows.append([])
        if tag in ("td", "th"):
            self.rows[-1].append("")

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        if "style" not in self.open:
            self.text += data
        if self.open and re.fullmatch("h[1-6]", self.open[-1]):
            self.headings[-1] = (self.headings[-1][0], self.headings[-1][1] + data)
        if "td" in self.open or "th" in self.open:
            self.rows[-1][-1] += data

    def count(self, tag: str) -> int:
        return sum(name == tag for name, _ in self.tags)


def flat(page: Page) -> str:
    return " ".join(page.text.split())


@pytest.fixture
def evaluated(run: Any, made: Any) -> Any:
    """Write a run folder with an evaluation alone: its page has no figures, which take most of the time."""
    return lambda folder="demo", **more: run(
        folder, {"evaluate-test": made.result("evaluation", made.evaluation())}, metrics="", **more
    )


@pytest.mark.full
def test_one_run(run: Any) -> None:
    html = render([run()])
    page = Page(html)
    assert html.startswith("<!doctype html>") and page.count("h1") == 1
    assert page.headings == [("h1", "demo")] + [
        ("h2", name) for name in ("Figures", "Learning", "Context", "Settings", "Measure it again")
    ]
    assert (
        "demo reads stdlib (test) at perplexity 98.1 per word over 20,123 words, audited; "
        "it uses about 150 tokens of context (95%: 100 to 200)."
    ) in flat(page)
    assert page.count("svg") == 4 and page.count("figcaption") == 2
    assert ["5 tokens", "165.7", "0.410", "0.390 to 0.430", "50.7%", "2,000 words"] in page.rows


@pytest.mark.full
def test_how_to_measure_again_is_complete(run: Any) -> None:
    text = flat(Page(render([run()])))
    for fact in (
        "backstory training demo backstory evaluation demo backstory examination demo",
        "Seed1", "Commitabc123", "backstory 0.1.0, python 3.11.7, torch 2.13.0+cpu", "cpu (AMD EPYC, 2 threads)",
        "bfloat16, because the processor has AVX-512 bf16 instructions",
        "stdlib, docstrings of 3.11.7, 13,800 types, fingerprint f00d",
        "2026-11-20T11:00:00Z", "1 min 5 s", "text: corpus: stdlib training: epochs: 3 seed: 1",
    ):  # fmt: skip
        assert fact in text


def test_a_precision_that_was_requested_needs_no_reason(run: Any, made: Any) -> None:
    made_of = {"precision": "float32", "precision_reason": "requested"}
    text = flat(Page(render([run(results={"e": made.result("evaluation", made.evaluation(), **made_of)})])))
    assert "Precisionfloat32" in text and "requested" not in text


@pytest.mark.full
def test_facts_on_which_results_differ_are_said_for_each(run: Any, made: Any) -> None:
    results = made.everything()
    results["evaluate-test"]["provenance"] |= {"commit": None, "device": "cuda"}
    page = Page(render([run(results=results)]))
    here = "cpu (AMD EPYC, 2 threads)"
    assert page.rows[-4:] == [
        ["Result", "Commit", "Device"],
        ["train", "abc123", here],
        ["evaluate test (static)", "not recorded", "cuda"],
        ["examine truncate on valid", "abc123", here],
    ]
    assert "Commitabc123" not in flat(page) and "Versionsbackstory 0.1.0" in flat(page)


@pytest.mark.full
def test_a_long_page_begins_with_its_contents(run: Any) -> None:
    page = render([run()])
    headings = re.findall("<h2>(.*?)</h2>", page)
    named = re.findall('<a href="#(.*?)">(.*?)</a>', page)
    assert [title for _, title in named] == headings and len(headings) > 3
    assert [name for name, _ in named] == re.findall('<section id="(.*?)">', page)
    ids = re.findall(' id="(.*?)"', page)
    assert len(ids) == len(set(ids))


@pytest.mark.full
def test_provenance_may_be_empty(run: Any, made: Any) -> None:
    results = made.everything()
    for content in results.values():
        content["provenance"] = {}
    text = flat(Page(render([run(results=results, config=None)])))
    assert "Devicenot recorded" in text and "demo reads its text (test) at perplexity 98.1" in text


@pytest.mark.full
def test_several_runs_are_compared(run: Any, made: Any) -> None:
    other = made.everything()
    other["evaluate-test"]["figures"] = made.evaluation(90.05)
    page = Page(render([run(), run("wide", results=other, name="wide")]))
    assert (
        page.count("h1") == 1 and page.count("figcaption") == 3
    )  # learning, context in nats, and both models' perplexities
    assert (
        "wide scores best: perplexity 90.0 per word over 20,123 words of stdlib (test), 8.2% below demo (98.1), the next best; "
        "none of these runs is its fair control."
    ) in flat(page)
    assert "cannot be compared" not in page.text
    perplexities = [row[:2] for row in page.rows if "static" in row]
    assert perplexities == [["demo", "98.1"], ["wide", "90.0"]]  # the unit is told once, in the heading


@pytest.mark.parametrize(
    ("figures", "corpus", "warned"),
    [
        ({"split": "valid"}, {}, False),
        ({"audit": None}, {}, False),
        ({}, {"fingerprint": "beef"}, True),
        ({}, {"types": 500}, True),
        ({"unit": "byte"}, {}, True),
    ],
)
def test_runs_that_do_not_compare_are_not_ranked(
    run: Any, evaluated: Any, made: Any, figures: dict[str, Any], corpus: dict[str, Any], warned: bool
) -> None:
    other = {"evaluate": made.result("evaluation", made.evaluation(80.0, **figures))}
    other["evaluate"]["provenance"]["corpus"] |= corpus
    page = Page(render([evaluated(), run("other", results=other, name="other", metrics="")]))
    assert "scores best" not in page.text
    assert ("cannot be compared" in page.text) == warned


def test_a_failed_audit_is_told_first_and_with_reasons(run: Any, made: Any) -> None:
    results = made.everything()
    audit = {"passed": False, "checks": {"causal": True, "scored_before_update": False}, "failures": ["row 0, token 7"]}
    results["evaluate-test"]["figures"]["audit"] = audit
    page = Page(render([run(results=results)]))
    text = flat(page)
    assert "over 20,123 words, but its AUDIT FAILED; it uses" in text
    assert "Audit failed: demo, evaluate test (static): failed: scored before update; row 0, token 7" in text
    assert any("AUDIT FAILED" in row for row in page.rows)


def test_the_summary_prefers_audited_then_test_then_the_lowest(run: Any, made: Any) -> None:
    results = {
        "a": made.result("evaluation", made.evaluation(50.0, audit={"passed": False})),
        "b": made.result("evaluation", made.evaluation(60.0, split="valid")),
        "c": made.result("evaluation", made.evaluation(90.0)),
        "d": made.result("evaluation", made.evaluation(85.0, reader="dynamic")),
    }
    text = flat(Page(render([run(results=results, metrics="")])))
    assert "demo reads stdlib (test) with the dynamic reader at perplexity 85.0 per word over 20,123 words, aud" in text


@pytest.mark.parametrize(
    ("kept", "sentence"),
    [
        ("", "demo reaches validation perplexity 130.1 per word on stdlib over 73,760 words, at epoch 3 of 3"),
        ("examine-truncate-valid", "demo uses about 150 tokens of context (95%: 100 to 200)."),
    ],
)
def test_summaries_without_an_evaluation(run: Any, made: Any, kept: str, sentence: str) -> None:
    results = {kept: made.everything()[kept]}
    assert sentence in flat(Page(render([run(results=results, metrics="")])))


@pytest.mark.full
def test_a_model_is_examined_beside_what_it_remembers_with_a_reader(run: Any, made: Any) -> None:
    longer = {"context": 300, "low": 200, "high": 500, "threshold_percent": 1.0, "more_context_hurts": False}
    results = made.everything() | {
        "evaluate-test-cache": made.result("evaluation", made.evaluation(60.0, reader="cache")),
        "examine-truncate-valid-cache": made.result(
            "examination", made.truncation(reader="cache", effective_context=longer)
        ),
    }
    page = Page(render([run(results=results)]))
    text = flat(page)
    assert "with the cache reader at perplexity 60.0 per word over 20,123 words, audited; it uses about 300 tok" in text
    assert "demo gains less than 1% from context beyond 150 tokens (95%: 100 to 200), and its" in text
    assert "5. demo, cache gains less than 1% from context beyond 300 tokens (95%: 200 to 500), and its" in text
    # In one figure, with the model alone first.
    assert [row[:2] for row in page.rows if row[0] in ("demo", "demo, cache") and "tokens (95" in row[1]] == [
        ["demo", "150 tokens (95%: 100 to 200)"],
        ["demo, cache", "300 tokens (95%: 200 to 500)"],
    ]
    # Without an evaluation by it, the cache's context is not said to be the model's.
    for place, gone in (("b", "evaluate-test-cache"), ("c", "evaluate-test")):
        del results[gone]
        assert "it uses about 150 tokens" in flat(Page(render([run(place, results=results)])))


@pytest.mark.parametrize(
    ("found", "sentence"),
    [
        ({"context": None, "low": None, "high": None}, "more than 1,000 tokens of context."),
        ({"context": None, "low": 800, "high": None}, "more than 1,000 tokens of context (95%: at least 800)."),
        ({"context": 500, "low": 300, "high": None}, "about 500 tokens of context (95%: 300 to more than 1,000)."),
    ],
)
def test_contexts_beyond_the_longest(run: Any, made: Any, found: dict[str, Any], sentence: str) -> None:
    figures = made.truncation(effective_context=found | {"threshold_percent": 1.0, "more_context_hurts": False})
    page = Page(render([run(results={"x": made.result("examination", figures)}, metrics="")]))
    assert f"demo uses {sentence}" in flat(page)


def test_characters_are_told_in_bits(run: Any, made: Any) -> None:
    figures = made.evaluation(2.5, unit="character", bits_per_character=1.32193)
    text = flat(Page(render([run(results={"e": made.result("evaluation", figures)}, metrics="")])))
    assert "demo reads stdlib (test) at 1.322 bits per character over 20,123 characters, audited." in text


def test_unknown_kinds_and_experiments_are_shown_plainly(run: Any, made: Any) -> None:
    results = {
        "a": made.result("dream", {"depth": {"mean": 1.25}, "<b>": "<i>"}),
        "b": made.result("examination", {"experiment": "telepathy", "answer": 42}),
    }
    page = Page(render([run(results=results, metrics="")]))
    assert ("h3", "demo: dream") in page.headings and ("h3", "demo: examine telepathy on unknown text") in page.headings
    assert ["depth.mean", "1.25"] in page.rows and ["<b>", "<i>"] in page.rows and ["answer", "42"] in page.rows
    assert "demo has the results below." in page.text


def with_passages(made: Any) -> dict[str, Any]:
    return made.everything() | {
        "explain-surprisal": made.result("explanation", made.explanation()),
        "sample": made.result("sample", made.sample()),
    }


def test_samples_and_passages_have_their_places(run: Any, made: Any) -> None:
    html = render([run(results=with_passages(made))])
    page = Page(html)
    assert [name for level, name in page.headings if level == "h2"] == [
        "Figures", "Learning", "Context", "Sample text", "Word by word", "Settings", "Measure it again"]  # fmt: skip
    assert '<span class="prompt">Return a list</span> of the names.\n\nAnd &lt;more&gt;</blockquote>' in html
    assert "temperature 0.8, seed 1" in page.text  # and no word of a setting that is left open
    assert ("h3", "A <passage>") in page.headings
    assert (
        "demo reads these 6 words at perplexity 98.1 per word, against 120.0 with b; 10 words before them were read first."
    ) in flat(page)
    assert "backstory explanation demo" in page.text  # how to measure it again


@pytest.mark.full
def test_only_the_script_of_the_passages_may_run(run: Any, made: Any) -> None:
    html = render([run(results=with_passages(made)), run("b", with_passages(made), name="b")])
    page = Page(html)
    (script,) = re.findall(r"<script>(.*?)</script>", html, re.DOTALL)
    digest = base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
    policy = [a["content"] for t, a in page.tags if t == "meta" and a.get("http-equiv") == "Content-Security-Policy"]
    assert policy == [f"default-src 'none'; style-src 'unsafe-inline'; script-src 'sha256-{digest}'"]
    assert page.count("script") == 3  # the data of two passages, and the one script
    names = [a["name"] for t, a in page.tags if t == "input"]
    assert len(names) == 6 and len(set(names)) == 2  # each passage switches its own layers


def test_a_passage_alone_is_a_page(made: Any) -> None:
    result = result_from(json.dumps(made.result("explanation", made.explanation())), "x")
    page = Page(render_passage(result))
    assert page.headings[0] == ("h1", "A <passage>") and "demo reads these 6 words" in flat(page)
    assert "abc123" in page.text and "backstory explanation demo" in page.text


@pytest.mark.parametrize("reader, says", [("static", "words at"), ("cache", "words with the cache reader at")])
def test_what_is_said_of_a_passage(reader: str, says: str, made: Any) -> None:
    figures = made.explanation(reader=reader, against=None, context=0)
    del figures["against_nats_per_token"]
    said = passage_summary(result_from(json.dumps(made.result("explanation", figures)), "x"))
    assert said == f"demo reads these 6 {says} perplexity 98.1 per word; nothing was read first."
    letters = made.result("explanation", {**figures, "unit": "character", "nats_per_token": 2 * math.log(2)})
    assert " at 2.000 bits per character; nothing" in passage_summary(result_from(json.dumps(letters), "x"))
    later = made.result("explanation", {"explanation": "buffer", "passage": figures["passage"]})
    assert passage_summary(result_from(json.dumps(later), "x")) == ""


def test_settings_that_differ_are_set_side_by_side(evaluated: Any) -> None:
    config = "text:\n  corpus: stdlib\nmodel:\n  core: {layers: 1}\ntraining:\n  epochs: 3\nseed: 1\n"
    more = config + "extra: {}\n"
    page = Page(render([evaluated(), evaluated("b", name="b", config=config), evaluated("c", name="c", config=more)]))
    assert ["Setting", "demo", "b", "c"] in page.rows
    assert ["model.core.layers", "–", "1", "1"] in page.rows and ["extra", "–", "–", "none"] in page.rows
    assert not any(row[0] in ("text.corpus", "seed") for row in page.rows)


@pytest.mark.parametrize("config", ["a: [1", "- 1\n", "", "a: 1\na: 2\n: :"])
def test_settings_that_cannot_be_read_are_named_and_those_of_a_result_are_compared(config: str, evaluated: Any) -> None:
    page = Page(render([evaluated(), evaluated("b", config=config)]))
    assert "b/config.yaml" in page.text and ["text.corpus", "stdlib", "stdlib"] not in page.rows


HOSTILE = "\"><script>alert('x')</script><img src=http://evil.example/x onerror=alert(1)>"


def hostile(value: Any) -> Any:
    """Make every text of a result hostile, except for those that identify its kind."""
    if isinstance(value, dict):
        return {k: v if k in ("kind", "experiment") else hostile(v) for k, v in value.items()}
    if isinstance(value, list):
        return [hostile(v) for v in value]
    return HOSTILE if isinstance(value, str) else value


@pytest.mark.full
def test_hostile_text_stays_text_and_nothing_is_loaded(run: Any, made: Any) -> None:
    results = {below: hostile(content) for below, content in made.everything().items()}
    results["odd"] = hostile(made.result("dream", {HOSTILE: HOSTILE})) | {"kind": HOSTILE}
    html = render([run(results=results, config=f"text: {HOSTILE}\n"), run("b")])
    page = Page(html)
    assert HOSTILE in page.text and page.count("script") == page.count("img") == page.count("link") == 0
    loading = ("src", "href", "xlink:href", "srcset", "data", "action")
    loads = [value for _, attrs in page.tags for key, value in attrs.items() if key in loading]
    assert loads and all(v and v.startswith("#") for v in loads)
    assert all(inside.startswith("#") for inside in re.findall(r"url\(([^)]*)\)", html))
    assert not any(k.startswith("on") for _, attrs in page.tags for k in attrs)
    assert "@import" not in html
    policy = [a["content"] for t, a in page.tags if t == "meta" and a.get("http-equiv") == "Content-Security-Policy"]
    assert policy == ["default-src 'none'; style-src 'unsafe-inline'"]


@pytest.mark.full
def test_hostile_passages_stay_text(run: Any, made: Any) -> None:
    results = {below: hostile(content) for below, content in with_passages(made).items()}
    html = render([run(results=results)])
    page = Page(html)
    words = [a for t, a in page.tags if t == "span" and a.get("title") is not None]
    assert len(words) == 6 and page.count("img") == 0 and page.count("script") == 2
    assert not any(k.startswith("on") for _, attrs in page.tags for k in attrs)
    (data,) = re.findall(r'<script type="application/json">(.*?)</script>', html, re.DOTALL)
    assert json.loads(data)["words"][0]["text"] == HOSTILE and "<" not in data


@pytest.mark.full
def test_ids_are_unique_headings_do_not_skip_and_wide_things_scroll(run: Any, made: Any) -> None:
    results = made.everything() | {"examine-2": made.result("examination", made.truncation(split="test"))}
    html = render([run(results=results), run("b", name="b")])
    page = Page(html)
    ids = [attrs["id"] for _, attrs in page.tags if "id" in attrs]
    # Learning, context on either split, and the perplexities of both runs on one of them.
    assert page.count("svg") == 8 and ids and len(ids) == len(set(ids))
    levels = [int(tag[1]) for tag, _ in page.headings]
    assert levels[0] == 1 and all(b - a <= 1 for a, b in pairwise(levels))
    regions = sum(a.get("class") == "scroll" and a.get("tabindex") == "0" for _, a in page.tags)
    assert regions == page.count("table")  # figures are redrawn for a narrow screen
    assert ("meta", {"name": "viewport", "content": "width=device-width, initial-scale=1"}) in page.tags
    assert "prefers-color-scheme: dark" in html and len(html.encode()) < 300_000


@pytest.mark.full
def test_the_same_files_give_the_same_page(run: Any) -> None:
    folders = [run(), run("b", name="b")]
    assert render(folders) == render(folders)


def test_runs_of_one_name_are_told_apart_and_one_run_is_shown_once(evaluated: Any) -> None:
    first, second = evaluated("x/demo"), evaluated("y/demo")
    page = Page(render([first, second, first / ".." / "demo"]))
    assert page.headings[0] == ("h1", "demo and demo (2)")
    assert sum(row[0].startswith("demo") and "static" in row for row in page.rows) == 2


def test_write_replaces_whole_and_leaves_nothing_else(evaluated: Any, tmp_path: Path) -> None:
    folder, out = evaluated(), tmp_path / "out" / "report.html"
    out.parent.mkdir()
    write([evaluated("other", name="other")], out)
    write([folder], out)
    assert out.read_text(encoding="utf-8") == render([folder])
    assert [p.name for p in out.parent.iterdir()] == ["report.html"]


def test_a_destination_that_cannot_be_written(run: Any, tmp_path: Path) -> None:
    folder = run()
    (tmp_path / "file").write_text("kept")
    (tmp_path / "taken").mkdir()
    for out in (tmp_path / "file" / "x.html", tmp_path / "gone" / "x.html", tmp_path / "taken"):
        with pytest.raises(UserError, match=r"cannot write .*; choose another place for the page"):
            write([folder], out)
    assert (tmp_path / "file").read_text() == "kept"
    assert not list(tmp_path.glob(".tmp-*"))


@pytest.mark.skipif(not hasattr(os, "geteuid"), reason="there are no sticky folders here")
def test_a_page_that_only_its_owner_can_replace_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (page := tmp_path / "report.html").write_text("theirs")
    tmp_path.chmod(0o1777)
    owner = os.geteuid()
    monkeypatch.setattr(os, "geteuid", lambda: owner + 1)
    with pytest.raises(UserError, match=r"only its owner can, .*, or choose another place for the page$"):
        check_page(page, overwrite=True)


@pytest.mark.parametrize("content", ["", "notes\n", "<!doctype html>\n<html><head></head></html>\n"])
def test_a_file_that_is_no_page_of_ours_is_kept(evaluated: Any, tmp_path: Path, content: str) -> None:
    folder, out = evaluated(), tmp_path / "notes.html"
    out.write_text(content)
    with pytest.raises(UserError, match=r"notes.html exists and is not a page of Backstory; .* or --overwrite"):
        write([folder], out)
    assert out.read_text() == content
    write([folder], out, overwrite=True)
    assert out.read_text(encoding="utf-8") == render([folder])


def test_a_pipe_is_no_place_for_a_page(run: Any, tmp_path: Path) -> None:
    """It is not waited for either."""
    folder, out = run(), tmp_path / "pipe"
    os.mkfifo(out)
    for overwrite in (False, True):
        with pytest.raises(UserError, match="it is not a regular file; choose another place"):
            write([folder], out, overwrite)


def test_no_run_at_all() -> None:
    with pytest.raises(UserError, match="name at least one run folder"):
        render([])


@pytest.mark.full
def test_no_torch_and_no_matplotlib_before_a_figure(run: Any) -> None:
    code = (
        "import sys; from pathlib import Path; from backstory.reports import render\n"
        "assert 'matplotlib' not in sys.modules\n"
        f"render([Path({str(run())!r})])\n"
        "assert 'matplotlib.figure' in sys.modules\n"
        "assert not {'torch', 'matplotlib.pyplot'} & set(sys.modules)"
    )
    done = subprocess.run([sys.executable, "-W", "error", "-c", code], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


@pytest.mark.full
def test_without_a_matplotlib_that_loads_nothing_is_left_out_in_silence(run: Any, tmp_path: Path) -> None:
    code = (
        "from pathlib import Path; from backstory.reports import write; from backstory.utils.errors import UserError\n"
        "try:\n"
        f"    write([Path({str(run())!r})], Path({str(tmp_path / 'page.html')!r}))\n"
        "except UserError as error:\n"
        "    print(error)"
    )
    environment = {**os.environ, "MPLBACKEND": "Qt4Agg"}
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, env=environment)
    said = "matplotlib does not load (Key backend: 'Qt4Agg' is not a valid value for backend)"
    assert done.stdout.startswith(said) and "unset MPLBACKEND" in done.stdout, done.stderr
    assert not (tmp_path / "page.html").exists()
