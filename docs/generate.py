"""Fill the tables of README and docs from the files in results/, which the program wrote: `python docs/generate.py`."""

import ast
import dataclasses
import importlib
import inspect
import itertools
import json
import math
import re
import statistics
import textwrap
import types
import typing
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from functools import cache, partial
from pathlib import Path
from typing import Any

from evidence import evidence

from backstory.config.formats import MISSING, duration
from backstory.data.synthetic.algorithms import TASKS
from backstory.papers.findings import NOT_MEASURED
from backstory.papers.paper import paper
from backstory.reports import Column, Table, fill
from backstory.reports.sections import SECTIONS
from backstory.reports.sections import reproduction_section as reproductions
from backstory.reports.sections.evaluation_section import Named
from backstory.reports.sections.settings_section import AGAIN, SETTINGS
from backstory.results import AuditRecord, Result, TruncationFigures, result_from
from backstory.results.common import UnknownTokens
from backstory.results.evaluation_record import MemoryRecord
from backstory.results.validation import Absent, holds_other_keys, key_of

ROOT = Path(__file__).resolve().parent.parent
RESULTS = ROOT / "results"


def figures_of(name: str) -> dict[str, Any]:
    """The figures of a result file as JSON."""
    return result(name).figures.to_dict()


def unknown_cell(figures: dict[str, Any]) -> str:
    """The share of `<unk>` in an evaluation, as a table shows it."""
    names = [field.name for field in dataclasses.fields(UnknownTokens)]
    unknown = UnknownTokens(**{name: figures.get(name) for name in names})
    return unknown.unknown_among(figures["tokens"]).cell()


def audit_ended(audit: dict[str, Any]) -> str:
    """How an audit ended, in words."""
    return AuditRecord.read(audit, "the audit").in_words()


def effective_context(figures: dict[str, Any]) -> str:
    """The effective context of a truncation experiment, in words."""
    return TruncationFigures.read(figures, "the examination").context_in_words()


def result(name: str) -> Result:
    """A result file by its name."""
    return result_at(RESULTS / f"{name}.json")


@cache
def result_at(path: Path) -> Result:
    return result_from(path.read_text(encoding="utf-8"), path.name)


def headed(heads: Sequence[str], rows: Iterable[tuple[str, ...]], texts: int = 1) -> Table:
    """A table under these headings; the first `texts` columns are text, the others numbers."""
    return Table(tuple(Column(head, numeric=i >= texts) for i, head in enumerate(heads)), tuple(rows))


def evidence_of_papers() -> Table:
    """Every table row, figure and claim of the papers: the protocol here, published, ours and the verdict."""
    rows = tuple(dataclasses.astuple(row) for row in evidence(RESULTS))
    heads = ("paper", "item", "protocol as published?", "scale", "seeds", "published", "ours", "verdict")
    return headed(heads, rows, texts=len(heads))


def learning() -> Table:
    """Validation perplexity of ptb-small after every epoch, a row per epoch and a column per run."""
    runs = [result(path.stem) for path in sorted(RESULTS.glob("ptb-small-*-seed*.json"))]
    heads = [f"{run.provenance.precision}, seed {run.provenance.seed}" for run in runs]
    curves = [run.figures.to_dict()["curve"] for run in runs]
    rows = [
        (str(epochs[0]["epoch"]), *(f"{epoch['valid_perplexity']:.2f}" for epoch in epochs))
        for epochs in zip(*curves, strict=True)
    ]
    return Table((Column("epoch", numeric=True), *(Column(head, numeric=True) for head in heads)), tuple(rows))


def reading() -> Table:
    """Perplexity, effective context and time of the recipes that were trained, read and examined on two cores."""
    rows = []
    for name in ("demo", "ptb-small"):
        trained, read = result(f"recipe-{name}"), figures_of(f"read-{name}")
        context = figures_of(f"examine-{name}")
        rows.append(
            (
                name,
                trained.provenance.corpus.name,
                f"{trained.figures.valid_perplexity:.2f}",
                f"{read['perplexity']:.2f}",
                f"{read['tokens']:,}",
                unknown_cell(read) or MISSING,
                audit_ended(read["audit"]),
                effective_context(context),
                duration(trained.provenance.seconds),
            )
        )
    heads = ("recipe", "corpus", "validation", "test", "words", "<unk>", "audit", "effective context", "training took")
    return Table(tuple(Column(head, numeric=i in (2, 3, 4, 5)) for i, head in enumerate(heads)), tuple(rows))


def full_size() -> Table:
    """A published size that was trained for a while on a GPU, read and examined."""
    rows = []
    for name in ("ptb-awd-lstm",):
        valid, test = result(f"read-valid-{name}"), result(f"read-{name}")
        context, settings = figures_of(f"examine-{name}"), test.provenance.config["training"]
        rows.append(
            (
                name,
                test.provenance.device,
                f"{settings['epochs']} + {settings['finetune_epochs']}",
                f"{valid.figures.perplexity:.2f}",
                f"{test.figures.perplexity:.2f}",
                test.figures.audit.in_words(),
                effective_context(context),
            )
        )
    heads = ("recipe", "device", "epochs asked for", "validation", "test", "audit", "effective context")
    return Table(tuple(Column(head, numeric=i in (3, 4)) for i, head in enumerate(heads)), tuple(rows))


def speed(name: str) -> Table:
    """Tokens per second and peak memory of a training step against the plain one; a row for each precision of a size."""
    found: dict[str, dict[str, Any]] = json.loads((RESULTS / f"{name}.json").read_text())["rows"]
    if any("reference" in row for row in found.values()):
        return _speed_across(found)
    rows = tuple(
        (size, precision, *_speed_in(precision, row["steps"], row["ratios"]))
        for size, row in found.items()
        for precision in ("float32", "bfloat16")
        if f"backstory, {precision}" in row["steps"]
    )
    heads = ("plain, tokens/s", "Backstory, tokens/s", "ratio in the same precision", "ratio to plain float32")
    return headed(("step", "products", *heads, "plain, GiB", "Backstory, GiB"), rows, texts=2)


def _speed_in(precision: str, steps: dict[str, dict[str, float]], ratios: dict[str, float]) -> Iterable[str]:
    pair = [steps.get(f"{kind}, {precision}", {}) for kind in ("plain", "backstory")]
    yield from (_number(step, "tokens_per_second", ",.0f") for step in pair)
    yield from (_number(ratios, f"{precision} : {other}", ".2f") for other in (precision, "float32"))
    yield from (_number(step, "peak_gib", ".2f") for step in pair)


def _speed_across(found: dict[str, dict[str, Any]]) -> Table:
    """The same of older files, which have ours in bfloat16 and the plain step in float32 alone."""
    rows = tuple(
        (
            size,
            *(f"{row[step]['tokens_per_second']:,.0f}" for step in ("reference", "backstory")),
            f"{row['ratio']:.2f}",
            *(f"{row[step]['peak_gib']:.2f}" for step in ("reference", "backstory")),
        )
        for size, row in found.items()
    )
    heads = ("plain float32, tokens/s", "Backstory bfloat16, tokens/s", "bfloat16 : float32")
    return headed(("step", *heads, "plain float32, GiB", "Backstory bfloat16, GiB"), rows)


def _number(figures: dict[str, float], key: str, form: str) -> str:
    return format(figures[key], form) if key in figures else MISSING


def continued() -> Table:
    """Validation perplexity of a trained ptb-small after one epoch more, with and without auxiliary predictions; one seed."""
    names = {
        "longer": "no auxiliary prediction",
        "auxiliary-softmax": "second softmax (the control)",
        "printed": "spans, the printed settings: T 100 and 0.1, reward 0.01",
        "spans": "spans, T 1, bilinear, no reward",
        "end-residual": "the same; states at span ends, added to the present one",
        "words": "the same; every word a span, up to the present one",
        "following": "the same; words, of which the following ones are attended to",
    }
    rows = []
    for name, shown in names.items():
        figures = figures_of(f"ptb-continued-{name}")
        policy = figures["curve"][-1].get("policy")
        told = (f"{figures['valid_perplexity']:.2f}",)
        if policy is not None:
            parts = (policy[f"{part}_perplexity"] for part in ("p", "q", "oracle"))
            told += (f"{policy['mean_lambda']:.3f}", *(f"{part:.2f}" for part in parts))
        rows.append((shown, *told, *["–"] * (5 - len(told))))
    heads = ("auxiliary prediction", "validation", "mean lambda", "p alone", "q alone", "oracle")
    return headed(heads, rows)


def buffer_search() -> Table:
    """The complete trials of a search over the buffer's open settings, best first, with the gate's use of the buffer."""
    rows = []
    trials = [t for t in figures_of("search-span-buffer")["trials"] if t["state"] == "complete"]
    for trial in sorted(trials, key=lambda trial: trial["valid_perplexity"]):
        reward, gate = "model.buffer.gate.reward", "model.buffer.gate"
        names = (f"{reward}.weight", f"{reward}.power", f"{reward}.baseline", f"{gate}.training_temperature")
        names += (f"{gate}.temperature", f"{gate}.rate", "model.core.output_dropout")
        curve = figures_of(f"search-span-buffer/{trial['trial']:04d}")["curve"]
        policy = curve[-1]["policy"]
        used = ", ".join(f"{epoch['policy']['utilization']:.0%}" for epoch in curve)
        parts = (f"{policy[f'{part}_perplexity']:.1f}" for part in ("p", "q"))
        settings = (f"{float(format(trial['settings'][name], '.2g')):g}" for name in names)
        rows.append((*settings, f"{trial['valid_perplexity']:.1f}", *parts, f"{policy['win_share']:.0%}", used))
    heads = ("eta", "kappa", "b", "T", "T in evaluation", "gate rate", "dropout", "validation", "p alone", "q alone")
    return headed((*heads, "q wins", "PoU after each epoch"), rows, texts=0)


def buffer_training() -> Table:
    """The printed buffer trained from nothing, epoch by epoch: what p and q score, and how much the gate takes of q."""
    rows = []
    for epoch in figures_of("span-buffer-scratch")["curve"]:
        policy = epoch["policy"]
        scores = (policy["p_perplexity"], policy["q_perplexity"], policy["best_constant_perplexity"])
        shares = (policy["win_share"], policy["utilization"])
        cells = (f"{epoch['valid_perplexity']:.1f}", *(f"{s:.1f}" for s in scores), *(f"{s:.0%}" for s in shares))
        rows.append((str(epoch["epoch"]), *cells))
    heads = ("epoch", "validation", "p alone", "q alone", "with the best constant lambda", "q wins", "PoU")
    return headed(heads, rows, texts=0)


def buffer_cost() -> Table:
    """A training step with a span buffer, as multiples of its control's."""
    found: dict[str, dict[str, Any]] = json.loads((RESULTS / "benchmark-span-buffer.json").read_text())["rows"]
    rows = tuple(
        (
            f"{int(words):,}",
            name,
            f"{row['tokens_per_second']:,.0f}",
            f"{row['time']:.2f}",
            f"{row['peak_gib']:.2f}",
            f"{row['memory']:.2f}",
        )
        for words, models in found.items()
        for name, row in models.items()
    )
    heads = ("words", "model", "tokens/s", "time", "peak, GiB", "memory")
    return Table(tuple(Column(head, numeric=i != 1) for i, head in enumerate(heads)), rows)


def core_speed() -> Table:
    """Training steps of LSTM and Mogrifier, with and without the dual connection, against a plain loop over Mogrifier cells."""
    found: dict[str, dict[str, Any]] = json.loads((RESULTS / "benchmark-cores.json").read_text())["rows"]
    alike = all("to_plain_alike" in row for row in found.values())  # which older files have not
    rows = tuple(
        (
            name,
            row["precision"],
            f"{row['tokens_per_second']:,.0f}",
            f"{row['to_plain']:.2f}",
            "{:.2f} to {:.2f}".format(*row["to_plain_quartiles"]),
            *((f"{row['to_plain_alike']:.2f}",) if alike else ()),
        )
        for name, row in found.items()
    )
    heads = ("model", "products", "tokens/s", "times the plain loop in float32", "quartiles")
    heads += ("times it in the same precision",) if alike else ()
    return headed(heads, rows, texts=2)


def coded(text: str) -> dict[str, dict[str, Any]]:
    """Rows of a text of the benchmark of codes, by coder."""
    return json.loads((RESULTS / "benchmark-codec.json").read_text())["texts"][text]["rows"]


def codes() -> Table:
    """Length of the beginning of enwik8 as code, and processor time of its first million bytes."""
    whole = coded("enwik8.prefix, 4,154,399 bytes")
    rows = []
    for name, row in coded("enwik8.prefix, 1,000,000 bytes").items():
        all_of_it = f"{whole[name]['bits_per_byte']:.3f}" if name in whole else MISSING
        rows.append((name, f"{row['bytes']:,}", f"{row['bits_per_byte']:.3f}", *code_speeds(row), all_of_it))
    return headed(
        ("coder", "bytes", "bits per byte", "KB/s encoding", "KB/s decoding", "bits per byte of 4 MB"), tuple(rows)
    )


def codes_of_docs() -> Table:
    """Length of documentation as code by general compressors and by a run, with and without its weights, and processor time."""
    rows = tuple(
        (name.replace("demo, ", "run, "), f"{row['bytes']:,}", f"{row['bits_per_byte']:.3f}",
         *(f"{row[part]:.3f}" if part in row else MISSING for part in ("model_bits_per_byte", "spelling_bits_per_byte")),
         f"{row['with_weights']:,.3f}" if row["with_weights"] < 10 else f"{row['with_weights']:,.0f}", *code_speeds(row))
        for name, row in coded("docs:numpy, 100,000 bytes").items()
    )  # fmt: skip
    heads = ("coder, or reader of the run", "bytes", "bits per byte", "of tokens", "of spelling", "with the weights")
    return headed((*heads, "KB/s encoding", "KB/s decoding"), rows)


def code_speeds(row: dict[str, Any]) -> tuple[str, str]:
    return f"{row['compress_kb_per_second']:,.1f}", f"{row['decompress_kb_per_second']:,.1f}"


def coding_speed() -> Table:
    """Tokens per second of coding with an untrained model of the small recipe, by the rows that are read side by side."""
    speeds = json.loads((RESULTS / "benchmark-codec.json").read_text())["speeds"]["ptb-small"]["rows"]
    rows = tuple((str(row["rows"]), *(f"{row[way]:,.0f}" for way in ("compress", "decompress"))) for row in speeds)
    return headed(("rows", "tokens/s encoding", "tokens/s decoding"), rows, texts=0)


def memory_speed() -> Table:
    """Milliseconds per step of external memories of several sizes, against the plain form, the dense memory and a pass."""
    found: dict[str, dict[str, Any]] = json.loads((RESULTS / "benchmark-memory.json").read_text())["rows"]
    rows = []
    for place, row in found.items():
        name, _, size = place.rpartition(" at ")
        if "ms_per_step" in row and name != "pass":
            plain = (
                ""
                if name.endswith("plain") or f"{name.split(',')[0]}, plain at {size}" not in found
                else f"{row['to_plain']:.2f}"
            )
            times = f"{row['ms_per_step']:.1f}", plain, f"{row['to_dense']:.2f}", f"{row['passes']:.1f}"
            rows.append((f"{int(size):,}", name, *times))
    heads = ("slots", "memory", "ms per step, float32", "times as fast as plain in float32", "as dense NTM", "passes")
    return Table(tuple(Column(head, numeric=i != 1) for i, head in enumerate(heads)), tuple(rows))


def inference_time() -> Table:
    """Milliseconds per batch of the systems of Lee et al. and the ratio to the dense memory, beside what the paper prints."""
    measured: dict[str, dict[str, Any]] = json.loads((RESULTS / "benchmark-inference.json").read_text())["rows"]
    rows = []
    for name, row in measured.items():
        printed = ("", "")
        if row["published_ms_per_batch"] is not None:
            printed = f"{row['published_ms_per_batch']:,}", f"{row['published_to_dense']:.2f}"
        quartiles = "{:.2f} to {:.2f}".format(*row["to_dense_quartiles"])
        ours = f"{row['parameters']:,}", f"{row['ms_per_batch']:,.0f}", f"{row['to_dense']:.2f}", quartiles
        rows.append((row["corpus"], name.removeprefix("enwik8-"), *ours, *printed))
    heads = (
        "corpus",
        "system",
        "parameters",
        "ms per batch",
        "as dense",
        "quartiles",
        "published ms",
        "published, as dense",
    )
    return headed(heads, tuple(rows), texts=2)


def memory_training() -> Table:
    """Memory that a step of training keeps of an external memory, against the plain form."""
    found: dict[str, dict[str, Any]] = json.loads((RESULTS / "benchmark-memory.json").read_text())["rows"]
    rows = tuple(
        (
            name,
            f"{row['bytes_per_step'] / 2**20:.1f}",
            f"{row['plain_bytes_per_step'] / 2**20:.1f}",
            f"{row['share']:.2f}",
            f"{row['training_ms_per_step']:.1f}",
            f"{row['training_to_plain']:.2f}",
        )
        for name, row in found.items()
        if "bytes_per_step" in row
    )
    heads = ("memory", "MiB per step", "plain", "share", "ms per step, float32", "times as fast as plain in float32")
    return headed(heads, rows)


def solved() -> Table:
    """Accuracy of trained memories on each task, at the lengths of training and beyond."""
    rows = []
    for task in TASKS:
        for path in sorted(RESULTS.glob(f"{task}-*-test.json")):
            name = path.stem.removesuffix("-test")
            own, longer = (figures_of(f"{name}-{kind}")["answers"] for kind in ("test", "lengths"))
            beyond = ", ".join(f"{of['length']}: {of['bit_accuracy']:.2%}" for of in longer["lengths"])
            core = name.removeprefix(f"{task}-")
            rows.append((task, core, f"{own['bit_accuracy']:.2%}", f"{own['document_accuracy']:.1%}", beyond))
    heads = ("task", "core", "bits right", "documents right", "bits right by length")
    return Table(tuple(Column(head, numeric=i in (2, 3)) for i, head in enumerate(heads)), tuple(rows))


def scoring_speed() -> Table:
    """Targets per second after 300 tokens of context, against the naive form."""
    found: dict[str, dict[str, Any]] = json.loads((RESULTS / "benchmark-context.json").read_text())["rows"]
    rows = tuple(
        (size, form, f"{row['targets_per_second']:.1f}", f"{row['speed']:.2f}", f"{row['peak_gib']:.2f}")
        for size, forms in found.items()
        for form, row in forms.items()
    )
    heads = ("model", "form", "targets/s", "times the naive form in float32", "peak, GiB")
    return headed(heads, rows, texts=2)


MEMORIES = {"lstm": "LSTM", "cache": "with a neural cache", "pointer": "with a pointer buffer"}
"""Systems whose use of up to 4,000 words was examined (results/examine-memory-*.json), by what they are called."""


def remembering() -> Table:
    """Perplexity with so many words of context, without a memory and with two kinds of one."""
    found = [figures_of(f"examine-memory-{name}") for name in MEMORIES]
    rows = [
        (f"{these[0]['context']:,}", *(f"{condition['perplexity']:.2f}" for condition in these))
        for these in zip(*(figures["conditions"] for figures in found), strict=True)
    ]
    rows.append(("all", *(f"{figures['baseline']['perplexity']:.2f}" for figures in found)))
    rows.append(("effective context", *(effective_context(figures) for figures in found)))
    return headed(("words of context", *MEMORIES.values()), rows, texts=0)


REMEMBERED = (
    ("lstm", "static"),
    ("lstm", "cache"),
    ("auxiliary-softmax", "static"),
    ("snb-t1", "static"),
    ("following", "static"),
)
"""Systems of the suite `recall` and their readers whose memory docs/memory.png shows."""


def remembered_curves() -> list[Named[MemoryRecord]]:
    """Return the memory of the first seed of these systems, each by its name, from results/reproduce-recall.json."""
    suite = result("reproduce-recall")
    runs = {run.run: run.readings for run in suite.figures.runs}
    curves = []
    for row, reader in REMEMBERED:
        (reading,) = (one for one in runs[f"{row}-seed1"] if one.reader == reader)
        assert reading.memory is not None
        curves.append(Named(f"{row}, {reader}", suite, reading.memory))
    return curves


WITH_CACHE = "examine-cache-ptb-small"
"""Figure 7 on one seed of ptb-small."""
PLACES = {"near": "among the last 50 words", "far": "farther back, in the window", "none": "not in the window"}


def with_cache() -> Table:
    """Gain of a neural cache by where a word came before, beside what was printed; absent until it is measured."""
    heads = ("words", "share", "perplexity with the cache", "without it", "95% interval", "published")
    if not (RESULTS / f"{WITH_CACHE}.json").exists():
        return headed(heads, [("all", *[NOT_MEASURED] * (len(heads) - 1))])
    figures = figures_of(WITH_CACHE)
    groups = {g["group"]: g for g in figures["groups"] if g["by"] == "cache"}
    rows = []
    for name, group in {**groups, "all": {**figures, "share": 1.0}}.items():
        [condition] = group["conditions"]
        printed = paper("context").values.get(f"ptb-without-cache-{name}")
        low, high = (f"{100 * math.expm1(condition[end]):+.1f}%" for end in ("low", "high"))
        rows.append(
            (
                PLACES.get(name, name),
                f"{group['share']:.1%}",
                f"{group['baseline']['perplexity']:.2f}",
                f"{condition['effect_percent']:+.1f}%",
                f"{low} to {high}",
                MISSING if printed is None else f"+{printed.value:g}%",
            )
        )
    return headed(heads, rows)


def harmed() -> Table:
    """How many words are not in the cache's window, and how many it harms."""
    heads = ("of all words", "ours", "published")
    printed = paper("context").values["ptb-outside-window"].value
    found = [NOT_MEASURED] * 2
    if (RESULTS / f"{WITH_CACHE}.json").exists():
        [condition] = figures_of(WITH_CACHE)["conditions"]
        found = [f"{condition[key]:.2%}" for key in ("outside_window", "hurt")]
    return headed(heads, [("not in the window", found[0], f"{printed:g}%"), ("harmed", found[1], MISSING)])


def sampled() -> Table:
    """Of draws of some targets, how often the 95% interval holds the figure of all."""
    found: list[dict[str, Any]] = json.loads((RESULTS / "benchmark-sampling.json").read_text())["coverage"]
    rows = tuple(
        (
            row["condition"],
            f"{row['all']} tokens" if row["width"] is None else f"{row['all']:+.4f} nats",
            MISSING if row["width"] is None else f"{row['width']:.4f}",
            f"{row['covered']:.1%}",
        )
        for row in found
    )
    heads = ("condition", "of all targets", "width of the interval", "intervals that hold it")
    return headed(heads, rows)


def precisions() -> Table:
    """How far the means of examinations in bfloat16 and in float32 lie apart."""
    found: list[dict[str, Any]] = json.loads((RESULTS / "benchmark-sampling.json").read_text())["precision"]
    rows = tuple(
        (row["experiment"], f"{row['conditions']}", f"{row['mean']:.5f}", f"{row['effect']:.5f}") for row in found
    )
    heads = ("experiment", "conditions", "means apart, nats", "effects apart, nats")
    return headed(heads, rows)


def suites() -> list[str]:
    """Suites that have a result."""
    return [path.stem.removeprefix("reproduce-") for path in sorted(RESULTS.glob("reproduce-*.json"))]


def reproduction(name: str) -> Table:
    """Published beside ours, system by system, from results/reproduce-NAME.json; systems not run yet are left out."""
    return _having(reproductions.systems_table(result(f"reproduce-{name}").figures), "Ours", MISSING)


def claims(name: str) -> Table:
    """Whether the claims of the same file hold; those on systems not run yet are left out."""
    return _having(
        reproductions.claims_table(result(f"reproduce-{name}").figures),
        "Does it hold here?",
        "runs are missing: no claim",
    )


def findings(name: str) -> Table:
    """Published findings beside ours, of the same file; those that nothing was run for are left out."""
    return _having(reproductions.findings_table(result(f"reproduce-{name}").figures), "Does it hold here?", "not run")


def _having(table: Table, heading: str, lacking: str) -> Table:
    """A table without the rows that say `lacking` in a column, named by the start of its heading."""
    place = next(i for i, column in enumerate(table.columns) if column.heading.startswith(heading))
    return replace(table, rows=tuple(row for row in table.rows if row[place] != lacking))


def parts(name: str) -> Table:
    """Statistics of the gates between two predictions, of the same file."""
    return reproductions.gates_table(result(f"reproduce-{name}").figures)


def remembered(name: str) -> Table:
    """Where what comes back is paid for, of the same file."""
    return reproductions.memory_table(result(f"reproduce-{name}").figures)


def recent(name: str) -> Table:
    """Cost of a token by how long ago the same one came last, of the same file."""
    return reproductions.recency_table(result(f"reproduce-{name}").figures)


def reproduced() -> dict[str, Callable[[], Table]]:
    """Tables of every suite that has a result: `NAME`; `NAME-claims` where it has claims, `NAME-parts` where a model has two
    predictions, and `NAME-memory` where the exact cost of its text is known."""
    names = suites()
    tables: dict[str, Callable[[], Table]] = {name: partial(reproduction, name) for name in names}
    tables |= {f"{name}-claims": partial(claims, name) for name in names if claims(name).rows}
    tables |= {f"{name}-parts": partial(parts, name) for name in names if parts(name).rows}
    return tables | {f"{name}-memory": partial(remembered, name) for name in names if remembered(name).rows}


def adaptive() -> Table:
    """The test split of the documentation of Python, read with the demo's model by each reader."""
    rows = []
    for name in ("read-demo", "read-demo-cache", "read-demo-dynamic"):
        figures = figures_of(name)
        static = figures["gains"][0]["perplexity"]
        settings = "; ".join(
            ", ".join(
                f"{key} {value}"
                for key, value in reader["settings"].items()
                if value and value not in ("rms", "all", "weights")
            )
            for reader in figures["readers"]
        )
        share = f"{100 * (figures['perplexity'] / static - 1):+.1f}%" if len(figures["gains"]) > 1 else "–"
        row = (
            figures["reader"],
            settings.strip("; ") or "–",
            f"{figures['perplexity']:.2f}",
            share,
            unknown_cell(figures),
            audit_ended(figures["audit"]),
        )
        rows.append(row)
    heads = ("reader", "settings, tuned on validation", "test", "against static", "<unk>", "audit")
    return Table(tuple(Column(head, numeric=i in (2, 3, 4)) for i, head in enumerate(heads)), tuple(rows))


def normalization() -> Table:
    """Validation perplexity of dynamic evaluation over lambda, with either mean of the RMS."""
    found: list[dict[str, float]] = json.loads((RESULTS / "benchmark-normalization.json").read_text())["rows"]
    rows = tuple((f"{row['decay']:g}", f"{row['weights']:.2f}", f"{row['tensors']:.2f}") for row in found)
    return headed(("lambda", "weights", "tensors"), rows)


def floor_speed() -> Table:
    """A training step against its matrix products alone: medians, and the quartiles of the share."""
    found: dict[str, dict[str, Any]] = json.loads((RESULTS / "benchmark-floor.json").read_text())["rows"]
    rows = []
    for size, row in found.items():
        speeds = (f"{row['tokens_per_second'][kind][1]:,.0f}" for kind in ("floor", "backstory"))
        low, median, high = row["share_of_floor"]
        rows.append((size, *speeds, f"{median:.0%}", f"{low:.0%} to {high:.0%}"))
    heads = ("products alone, tokens/s", "Backstory, tokens/s", "share of their speed", "quartiles")
    return headed(("step", *heads), tuple(rows))


def reading_speed() -> Table:
    """Tokens per second of the readers, each size in one run."""
    found: dict[str, dict[str, float]] = json.loads((RESULTS / "benchmark-reading.json").read_text())["rows"]
    rows = tuple(
        (
            name,
            *(cell for size in found.values() for cell in (f"{size[name]:,.0f}", f"{size['static'] / size[name]:.2f}")),
        )
        for name in next(iter(found.values()))
    )
    heads = ("reader", *(head for size in found for head in (f"{size}, tokens/s", "times static's time")))
    return headed(heads, rows)


def tags() -> Table:
    """How far the tags of PatternTagger agree with those that go with a corpus."""
    found: dict[str, dict[str, Any]] = json.loads((RESULTS / "benchmark-tags.json").read_text(encoding="utf-8"))["rows"]
    shares = ("tag", "class", "content", "function")
    rows = tuple(
        (f"{corpus}, {row['split']}", f"{row['words']:,}", *(f"{100 * row[share]:.1f}%" for share in shares))
        for corpus, row in found.items()
    )
    heads = ("text", "words", "same tag", "same class", "content words found", "function words found")
    return headed(heads, rows)


def reliability() -> Table:
    """Attacks on the program, with the promise that each tests, how often it was tried, and how often it did not hold."""
    found: dict[str, dict[str, Any]] = json.loads((RESULTS / "reliability.json").read_text(encoding="utf-8"))
    rows = tuple(
        (case, row["what"], row["promise"], f"{row['trials']:,}", f"{row['failures']:,}") for case, row in found.items()
    )
    heads = ("case", "what", "must hold", "trials", "failures")
    return headed(heads, rows, texts=3)


def split_overlaps() -> Table:
    """How much of the held-out splits of each corpus stands in those before them."""
    found: dict[str, Any] = json.loads((RESULTS / "benchmark-corpora.json").read_text(encoding="utf-8"))
    python = ".".join(found["provenance"]["versions"]["python"].split(".")[:2])
    corpora: dict[str, dict[str, Any]] = found["rows"]
    names = {"stdlib": f"stdlib, Python {python}"}
    rows = tuple(
        (names.get(name, name), *(f"{one['share']:.2%}" for one in row["overlap"]))
        for name, row in corpora.items()
        if "overlap" in row
    )
    return headed(("corpus", "validation in training", "test in training", "test in validation"), rows)


def zoo(part: str, name: str = "audit-zoo") -> dict[str, dict[str, Any]]:
    """A part of what the audit, or the referee, was measured on."""
    return json.loads((RESULTS / f"{name}.json").read_text(encoding="utf-8"))[part]


def caught_cheats() -> Table:
    """How often the audit caught each planted cheat, over seeds."""
    rows = tuple(
        (name, f"{row['rows']}", f"{row['caught']} of {row['seeds']}", (row["check"] or MISSING).replace("_", " "))
        for name, row in zoo("cheats").items()
    )
    return Table(
        tuple(Column(head, numeric=i in (1, 2)) for i, head in enumerate(("cheat", "rows", "caught", "by"))), rows
    )


def refused(subject: str, name: str) -> Table:
    """How often the audit or the referee refused each honest subject, over seeds."""
    rows = tuple((one, f"{row['refused']} of {row['seeds']}") for one, row in zoo("honest", name).items())
    return headed((f"honest {subject}", "refused"), rows)


def refereed_cheats() -> Table:
    """How often the referee caught each cheat, by the condition that it breaks, and how often it should."""
    rows = tuple(
        (
            row["how"],
            row["condition"].replace("_", " "),
            f"{100 * row['expected']:.0f}%",
            f"{row['caught']} of {row['seeds']}",
        )
        for row in zoo("cheats", "referee-zoo").values()
    )
    return headed(("cheat", "condition", "expected", "caught"), rows, texts=2)


def audit_cost() -> Table:
    """The share that the audit adds to a reading, by its length."""
    rows = tuple(
        (
            name,
            f"{row['20000']['block_ms']:.1f}",
            f"{row['82430']['places']}",
            *(
                f"{row[t]['cuts']}, {row[t]['place_ms']:.0f} ms, {100 * row[t]['share']:.0f}%"
                for t in ("20000", "82430")
            ),
        )
        for name, row in zoo("cost").items()
    )
    heads = (
        "reader",
        "ms per block",
        "places",
        "20,000 tokens: cuts, place, added",
        "82,430 tokens: cuts, place, added",
    )
    return headed(heads, rows)


GAINS: tuple[tuple[str, str, str, str], ...] = (
    ("neural cache", "the model alone", "dynamical", "A neural cache helps"),
    ("dynamic evaluation", "the model alone", "dynamical", "Dynamic evaluation helps"),
    ("dynamic evaluation and a cache", "dynamic evaluation", "dynamical", "A cache adds to dynamic evaluation"),
    (
        "meta-learner with three levels of memory",
        "the model alone",
        "dynamical",
        "The meta-learner with long-term memory (three levels) helps",
    ),
    ("meta-learner and a cache", "meta-learner", "dynamical", "A cache adds to the meta-learner"),
    (
        "pointer buffer, trained for one epoch more",
        "an epoch more without a buffer",
        "span-buffer",
        "A pointer to the words that followed beats the equally long baseline",
    ),
)
"""A memory, the control that it has to beat, and the suite and the claim that compare them."""


def gains() -> Table:
    """Gain of each memory over its control: mean test perplexity over seeds, and the interval of the gain."""
    rows = []
    for memory, control, suite, sentence in GAINS:
        found = figures_of(f"reproduce-{suite}")
        (one,) = (claim for claim in found["claims"] if claim["sentence"] == sentence)
        with_it, without = (
            next(row["mean"] for row in found["systems"] if side.items() <= row.items())
            for side in (one["better"], one["than"])
        )
        gain = f"{one['gain']:.1f} ({one['low']:.1f} to {one['high']:.1f})"
        rows.append((memory, f"{with_it:.1f}", control, f"{without:.1f}", gain))
    heads = ("memory", "perplexity", "control", "its perplexity", "gain (95% interval)")
    return Table(tuple(Column(head, numeric=i in (1, 3, 4)) for i, head in enumerate(heads)), tuple(rows))


def field_types(hint: Any) -> str:
    """JSON types that a type hint stands for, in words."""
    origin, arguments = typing.get_origin(hint), typing.get_args(hint)
    if origin is typing.Annotated:
        return field_types(arguments[0])
    if origin in (typing.Union, types.UnionType):
        names = [field_types(one) for one in arguments if one not in (type(None), Absent)]
        return " or ".join(dict.fromkeys([*names, *(["null"] if type(None) in arguments else [])]))
    if origin is tuple or isinstance(hint, typing.TypeVar):
        return "list"
    words = {bool: "true or false", str: "text", int: "number", float: "number", typing.Any: "any"}
    return words.get(hint, "text" if origin is typing.Literal else "object")


def field_meanings(record: type) -> dict[str, str]:
    """The text below each field of a record, those of its bases too."""
    meanings: dict[str, str] = {}
    for base in reversed(record.__mro__):
        if dataclasses.is_dataclass(base):
            (body,) = (node.body for node in ast.parse(textwrap.dedent(inspect.getsource(base))).body)
            for node, after in itertools.pairwise(body):
                if isinstance(node, ast.AnnAssign) and isinstance(after, ast.Expr):
                    meanings[node.target.id] = " ".join(after.value.value.split())
    return meanings


def fields(record: type, without: type | None = None) -> str:
    """The fields of a record as a table in Markdown; those of a base may stand elsewhere."""
    hints, meanings = typing.get_type_hints(record, include_extras=True), field_meanings(record)
    elsewhere = {field.name for field in dataclasses.fields(without)} if without else set()
    lines = ["| Field | Type | Meaning |", "|---|---|---|"]
    for field in dataclasses.fields(record):
        if field.name not in elsewhere and not holds_other_keys(field):
            meaning = meanings[field.name].removesuffix(".") + "."
            lines.append(f"| `{key_of(field)}` | {field_types(hints[field.name])} | {meaning} |")
    return "\n".join(lines)


def with_fields(text: str) -> str:
    """The text with the table of each record that it names between `<!-- fields: NAME -->` and `<!-- end -->`."""

    def filled_in(match: re.Match[str]) -> str:
        names = [name.strip() for name in match[2].split("without")]
        records = [getattr(importlib.import_module(path), name) for path, name in (n.rsplit(".", 1) for n in names)]
        return f"{match[1]}\n{fields(*records)}\n<!-- end -->"

    return re.sub(r"(<!-- fields: ([\w. ]+) -->)\n.*?<!-- end -->", filled_in, text, flags=re.DOTALL)


def report_sections() -> Table:
    """The sections of a report, in the order of the page, and what each shows."""
    shown = ((section.heading, inspect.getdoc(section.pieces) or "") for section in (*SECTIONS, SETTINGS, AGAIN))
    rows = [(heading, doc.removeprefix("Yield ").removesuffix(".")) for heading, doc in shown]
    return headed(("section", "shows"), rows, texts=2)


def counted(part: str) -> Any:
    """A part of the benchmark of counting."""
    return json.loads((RESULTS / "benchmark-counting.json").read_text(encoding="utf-8"))[part]


def counted_ngrams() -> Table:
    """Perplexity of n-grams of Penn Treebank alone, by their length."""
    rows = []
    for row in counted("ngrams")["rows"]:
        name = f"{row['order']}" + ("" if row["across_lines"] else ", lines apart") + (", online" * row["online"])
        cached = [f"{row['cache'][split]:.2f}" if "cache" in row else MISSING for split in ("valid", "test")]
        scores = [f"{row[split]:.2f}" for split in ("valid", "test")]
        cost = f"{row['counting_seconds']:.1f} s", f"{row['bytes'] / 2**20:,.0f} MiB"
        rows.append((name, f"{row['ngrams']:,}", *scores, *cached, *cost))
    heads = "n", "n-grams", "validation", "test", "validation, with a cache", "test, with a cache", "counting", "memory"
    return headed(heads, rows)


def counted_bytes() -> Table:
    """Bits per byte of PPM alone, and of compressors."""
    part = counted("ppm")
    rows = [(name, MISSING, MISSING, f"{bits:.3f}") for name, bits in part["compressors"].items()]
    for row in part["rows"]:
        name = f"PPM, order {row['order']}" + (", exclusion" if row["exclusion"] else "")
        rows.append(
            (
                name,
                row["escape"],
                MISSING if row["escape"] == "c" else f"{row['discount']}",
                f"{row['bits_per_byte']:.3f}",
            )
        )
    return headed(("model", "escape", "discount", "bits per byte"), rows, texts=2)


def counted_stacks(corpus: str) -> Table:
    """Test perplexity of readers around small models, from the inside out: the mean over models, and what each adds."""
    models = [row["test"] for row in counted("stacks")["rows"] if row.get("corpus", "stdlib") == corpus]
    rows, before = [], None
    for name in models[0]:
        test = [layers[name] for layers in models]
        gain = [MISSING] if before is None else [f"{a - b:.2f}" for a, b in zip(before, test, strict=True)]
        rows.append((name, f"{statistics.mean(test):.2f}", f"{statistics.stdev(test):.2f}", ", ".join(gain)))
        before = test
    return headed(("reader", "perplexity", "deviation", "gain on the line above, each model"), rows)


TABLES: dict[str, dict[str, Callable[[], Table]]] = {
    "README.md": {"memories-gain": gains},
    "docs/results/README.md": {
        "ptb-small": learning,
        "recipes": reading,
        "full-size": full_size,
        "base": partial(reproduction, "base"),
        "base-claims": partial(claims, "base"),
        "dynamical": partial(reproduction, "dynamical"),
        "dynamical-claims": partial(claims, "dynamical"),
    },
    "docs/results/evidence.md": {"evidence": evidence_of_papers},
    "docs/results/speed.md": {
        "speed": partial(speed, "benchmark-training"),
        "floor": floor_speed,
        "speed-gpu": partial(speed, "benchmark-training-cuda"),
    },
    "docs/context.md": {
        "tags": tags,
        "scoring-speed": scoring_speed,
        "memories": remembering,
        "sampled": sampled,
        "precisions": precisions,
        "with-cache": with_cache,
        "harmed": harmed,
    },
    "docs/results.md": {},
    "docs/codec.md": {"codes": codes, "codes-of-docs": codes_of_docs, "coding-speed": coding_speed},
    "docs/counting.md": {
        "ngrams": counted_ngrams,
        "ppm": counted_bytes,
        "stacks": partial(counted_stacks, "stdlib"),
    },
    "docs/corpora.md": {"overlaps": split_overlaps},
    "docs/reliability.md": {"reliability": reliability},
    "docs/honest-figures.md": {
        "cheats": caught_cheats,
        "honest": partial(refused, "reader", "audit-zoo"),
        "audit-cost": audit_cost,
    },
    "docs/referee.md": {
        "referee-cheats": refereed_cheats,
        "referee-honest": partial(refused, "predictor", "referee-zoo"),
    },
    "docs/reports.md": {"sections": report_sections},
    "docs/reproduce.md": reproduced(),
    "docs/span-buffer.md": {
        "span-buffer-scratch": buffer_training,
        "span-buffer-search": buffer_search,
        "span-buffer-cost": buffer_cost,
        "ptb-continued": continued,
        "span-buffer": partial(reproduction, "span-buffer"),
        "span-buffer-claims": partial(claims, "span-buffer"),
        "span-buffer-parts": partial(parts, "span-buffer"),
        "recall-continued": partial(reproduction, "recall-continued"),
        "recall-continued-memory": partial(remembered, "recall-continued"),
        "recall-continued-claims": partial(claims, "recall-continued"),
        "recall": partial(reproduction, "recall"),
        "recall-memory": partial(remembered, "recall"),
        "recall-claims": partial(claims, "recall"),
    },
    "docs/dual.md": {
        "cores": core_speed,
        "dual": partial(reproduction, "dual"),
        "dual-claims": partial(claims, "dual"),
    },
    "docs/external-memory.md": {
        "tasks": solved,
        "memory-speed": memory_speed,
        "memory-training": memory_training,
        "inference-time": inference_time,
        "localized-ntm": partial(reproduction, "localized-ntm"),
    },
    "docs/dynamical.md": {
        "dynamical": partial(reproduction, "dynamical"),
        "dynamical-claims": partial(claims, "dynamical"),
        "adaptive": adaptive,
        "normalization": normalization,
        "reading-speed": reading_speed,
    },
}


def offered(text: str) -> dict[str, Callable[[], Table]]:
    """Tables that a text has a place for, as any may: `NAME-recency` and `NAME-findings` of suites whose results hold it."""
    makers = {"recency": recent, "findings": findings}
    places = [(name, kind) for name in suites() for kind in makers if f"<!-- table: {name}-{kind} -->" in text]
    return {f"{name}-{kind}": partial(makers[kind], name) for name, kind in places if makers[kind](name).rows}


def filled(document: str) -> str:
    """A document's text with its tables made anew."""
    text = (ROOT / document).read_text(encoding="utf-8")
    for name, table in (TABLES[document] | offered(text)).items():
        text = fill(text, name, table())
    return with_fields(text)


if __name__ == "__main__":
    for document in TABLES:
        (ROOT / document).write_text(filled(document), encoding="utf-8")
        print(document)
