"""Fill the tables of README and docs from the files in results/, which the program wrote: `python docs/generate.py`."""

import json
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

from backstory.reports import Column, Result, Table, fill, reproductions, result_from
from backstory.reports.formats import MISSING, duration
from backstory.reports.words import effective_context, verdict
from backstory.text.algorithms import TASKS

ROOT = Path(__file__).resolve().parent.parent
RESULTS = ROOT / "results"


def result(name: str) -> Result:
    """A result file by its name."""
    path = RESULTS / f"{name}.json"
    return result_from(path.read_text(encoding="utf-8"), path.name)


def headed(heads: Sequence[str], rows: Iterable[tuple[str, ...]], texts: int = 1) -> Table:
    """A table under these headings; the first `texts` columns are text, the others numbers."""
    return Table(tuple(Column(head, numeric=i >= texts) for i, head in enumerate(heads)), tuple(rows))


def learning() -> Table:
    """Validation perplexity of ptb-small after every epoch, a row per epoch and a column per run."""
    runs = [result(path.stem) for path in sorted(RESULTS.glob("ptb-small-*-seed*.json"))]
    heads = [f"{run.provenance['precision']}, seed {run.provenance['seed']}" for run in runs]
    curves = [run.figures["curve"] for run in runs]
    rows = [
        (str(epochs[0]["epoch"]), *(f"{epoch['valid_perplexity']:.2f}" for epoch in epochs))
        for epochs in zip(*curves, strict=True)
    ]
    return Table((Column("epoch", numeric=True), *(Column(head, numeric=True) for head in heads)), tuple(rows))


def reading() -> Table:
    """Perplexity, effective context and time of the recipes that were trained, read and examined on two cores."""
    rows = []
    for name in ("demo", "ptb-small"):
        trained, read = result(f"recipe-{name}"), result(f"read-{name}").figures
        context = result(f"examine-{name}").figures
        rows.append(
            (
                name,
                trained.provenance["corpus"]["name"],
                f"{trained.figures['valid_perplexity']:.2f}",
                f"{read['perplexity']:.2f}",
                f"{read['tokens']:,}",
                verdict(read["audit"]),
                effective_context(context),
                duration(trained.provenance["seconds"]),
            )
        )
    heads = ("recipe", "corpus", "validation", "test", "words", "audit", "effective context", "training took")
    return Table(tuple(Column(head, numeric=i in (2, 3, 4)) for i, head in enumerate(heads)), tuple(rows))


def full_size() -> Table:
    """A published size that was trained for a while on a GPU, read and examined."""
    rows = []
    for name in ("ptb-awd-lstm",):
        valid, test = result(f"read-valid-{name}"), result(f"read-{name}")
        context, settings = result(f"examine-{name}").figures, test.provenance["config"]["training"]
        rows.append(
            (
                name,
                test.provenance["device"],
                f"{settings['epochs']} + {settings['finetune_epochs']}",
                f"{valid.figures['perplexity']:.2f}",
                f"{test.figures['perplexity']:.2f}",
                verdict(test.figures["audit"]),
                effective_context(context),
            )
        )
    heads = ("recipe", "device", "epochs asked for", "validation", "test", "audit", "effective context")
    return Table(tuple(Column(head, numeric=i in (3, 4)) for i, head in enumerate(heads)), tuple(rows))


def speed(name: str) -> Table:
    """Tokens per second and peak memory of a training step against the plain one."""
    found: dict[str, dict[str, Any]] = json.loads((RESULTS / f"{name}.json").read_text())["rows"]
    rows = tuple(
        (
            size,
            f"{row['reference']['tokens_per_second']:,.0f}",
            f"{row['backstory']['tokens_per_second']:,.0f}",
            f"{row['ratio']:.2f}",
            f"{row['reference']['peak_gib']:.2f}",
            f"{row['backstory']['peak_gib']:.2f}",
        )
        for size, row in found.items()
    )
    heads = ("step", "plain, tokens/s", "Backstory, tokens/s", "ratio", "plain, GiB", "Backstory, GiB")
    return headed(heads, rows)


def continued() -> Table:
    """Validation perplexity of a trained ptb-small after one epoch more, with and without second predictions; one seed."""
    names = {
        "longer": "no second prediction",
        "second-softmax": "second softmax (the control)",
        "printed": "spans, as printed: T 100 and 0.1, reward 0.01",
        "spans": "spans, T 1, bilinear, no reward",
        "end-residual": "the same; states at span ends, added to the present one",
        "words": "the same; every word a span, up to the present one",
        "following": "the same; words, of which the following ones are attended to",
    }
    rows = []
    for name, shown in names.items():
        figures = result(f"ptb-continued-{name}").figures
        policy = figures["curve"][-1].get("policy")
        told = (f"{figures['valid_perplexity']:.2f}",)
        if policy is not None:
            parts = (policy[f"{part}_perplexity"] for part in ("p", "q", "oracle"))
            told += (f"{policy['mean_lambda']:.3f}", *(f"{part:.2f}" for part in parts))
        rows.append((shown, *told, *["–"] * (5 - len(told))))
    heads = ("second prediction", "validation", "mean lambda", "p alone", "q alone", "oracle")
    return headed(heads, rows)


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
    rows = tuple(
        (
            name,
            row["precision"],
            f"{row['tokens_per_second']:,.0f}",
            f"{row['to_plain']:.2f}",
            "{:.2f} to {:.2f}".format(*row["to_plain_quartiles"]),
        )
        for name, row in found.items()
    )
    heads = ("model", "products", "tokens/s", "times the plain loop", "quartiles")
    return headed(heads, rows, texts=2)


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
    heads = ("rows", "memory", "ms per step", "times as fast as plain", "as dense NTM", "passes")
    return Table(tuple(Column(head, numeric=i != 1) for i, head in enumerate(heads)), tuple(rows))


def memory_training() -> Table:
    """What a step of training keeps of an external memory, against the plain form."""
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
    heads = ("memory", "MiB per step", "plain", "share", "ms per step", "times as fast as plain")
    return headed(heads, rows)


def solved() -> Table:
    """What trained memories get right of each task, at the lengths of training and beyond."""
    rows = []
    for task in TASKS:
        for path in sorted(RESULTS.glob(f"{task}-*-test.json")):
            name = path.stem.removesuffix("-test")
            own, longer = (result(f"{name}-{kind}").figures["answers"] for kind in ("test", "lengths"))
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
    heads = ("model", "form", "targets/s", "times the naive form", "peak, GiB")
    return headed(heads, rows, texts=2)


MEMORIES = {"lstm": "LSTM", "cache": "with a neural cache", "pointer": "with a pointer buffer"}
"""Systems whose use of up to 4,000 words was examined (results/examine-memory-*.json), by what they are called."""


def remembering() -> Table:
    """Perplexity with so many words of context, without a memory and with two kinds of one."""
    found = [result(f"examine-memory-{name}").figures for name in MEMORIES]
    rows = [
        (f"{these[0]['context']:,}", *(f"{condition['perplexity']:.2f}" for condition in these))
        for these in zip(*(figures["conditions"] for figures in found), strict=True)
    ]
    rows.append(("all", *(f"{figures['baseline']['perplexity']:.2f}" for figures in found)))
    rows.append(("effective context", *(effective_context(figures) for figures in found)))
    return headed(("words of context", *MEMORIES.values()), rows, texts=0)


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


def grids() -> list[str]:
    """The grids that have a result."""
    return [path.stem.removeprefix("reproduce-") for path in sorted(RESULTS.glob("reproduce-*.json"))]


def reproduction(name: str) -> Table:
    """Published beside ours, system by system, from results/reproduce-NAME.json; systems not run yet are left out."""
    return _having(reproductions.systems(result(f"reproduce-{name}")), "Ours", MISSING)


def claims(name: str) -> Table:
    """Whether the claims of the same file hold; those on systems not run yet are left out."""
    return _having(reproductions.claims(result(f"reproduce-{name}")), "Does it hold?", "runs are missing: no claim")


def findings(name: str) -> Table:
    """Published findings beside ours, of the same file; those that nothing was run for are left out."""
    return _having(reproductions.findings(result(f"reproduce-{name}")), "Does it hold?", "not run")


def _having(table: Table, heading: str, lacking: str) -> Table:
    """A table without the rows that say `lacking` in a column, named by the start of its heading."""
    place = next(i for i, column in enumerate(table.columns) if column.heading.startswith(heading))
    return replace(table, rows=tuple(row for row in table.rows if row[place] != lacking))


def parts(name: str) -> Table:
    """What the gates between two predictions make of them, of the same file."""
    return reproductions.gates(result(f"reproduce-{name}"))


def remembered(name: str) -> Table:
    """Where what comes back is paid for, of the same file."""
    return reproductions.memories(result(f"reproduce-{name}"))


def recent(name: str) -> Table:
    """What a token costs by how long ago the same one came last, of the same file."""
    return reproductions.recencies(result(f"reproduce-{name}"))


def reproduced() -> dict[str, Callable[[], Table]]:
    """The tables of every grid that has a result: `NAME`; `NAME-claims` where it has claims, `NAME-parts` where a model has two
    predictions, and `NAME-memory` where the exact cost of its text is known."""
    names = grids()
    tables: dict[str, Callable[[], Table]] = {name: partial(reproduction, name) for name in names}
    tables |= {f"{name}-claims": partial(claims, name) for name in names if claims(name).rows}
    tables |= {f"{name}-parts": partial(parts, name) for name in names if parts(name).rows}
    return tables | {f"{name}-memory": partial(remembered, name) for name in names if remembered(name).rows}


def adaptive() -> Table:
    """The test split of the documentation of Python, read with the demo's model by each reader."""
    rows = []
    for name in ("read-demo", "read-demo-cache", "read-demo-dynamic"):
        figures = result(name).figures
        static = figures["gains"][0]["perplexity"]
        settings = "; ".join(
            ", ".join(
                f"{key} {value}" for key, value in reader["settings"].items() if value and value not in ("rms", "all")
            )
            for reader in figures["readers"]
        )
        share = f"{100 * (figures['perplexity'] / static - 1):+.1f}%" if len(figures["gains"]) > 1 else "–"
        row = (
            figures["reader"],
            settings.strip("; ") or "–",
            f"{figures['perplexity']:.2f}",
            share,
            verdict(figures["audit"]),
        )
        rows.append(row)
    heads = ("reader", "settings, tuned on validation", "test", "against static", "audit")
    return Table(tuple(Column(head, numeric=i in (2, 3)) for i, head in enumerate(heads)), tuple(rows))


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
    """What was done to the program, what must hold, how often it was tried, and how often it did not hold."""
    found: dict[str, dict[str, Any]] = json.loads((RESULTS / "reliability.json").read_text(encoding="utf-8"))
    rows = tuple(
        (case, row["what"], row["promise"], f"{row['trials']:,}", f"{row['failures']:,}") for case, row in found.items()
    )
    heads = ("case", "what", "must hold", "trials", "failures")
    return headed(heads, rows, texts=3)


TABLES: dict[str, dict[str, Callable[[], Table]]] = {
    "README.md": {
        "ptb-small": learning,
        "recipes": reading,
        "full-size": full_size,
        "base": partial(reproduction, "base"),
        "base-claims": partial(claims, "base"),
        "dynamical": partial(reproduction, "dynamical"),
        "dynamical-claims": partial(claims, "dynamical"),
        "reliability": reliability,
        "speed": partial(speed, "benchmark-training"),
        "speed-gpu": partial(speed, "benchmark-training-cuda"),
    },
    "docs/context.md": {
        "tags": tags,
        "scoring-speed": scoring_speed,
        "memories": remembering,
        "sampled": sampled,
        "precisions": precisions,
    },
    "docs/reliability.md": {"reliability": reliability},
    "docs/reproduce.md": reproduced(),
    "docs/span-buffer.md": {
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
        "localized-ntm": partial(reproduction, "localized-ntm"),
    },
    "docs/dynamical.md": {
        "dynamical": partial(reproduction, "dynamical"),
        "dynamical-claims": partial(claims, "dynamical"),
        "adaptive": adaptive,
        "reading-speed": reading_speed,
    },
}


def offered(text: str) -> dict[str, Callable[[], Table]]:
    """Tables that a text has a place for, as any may: `NAME-recency` and `NAME-findings` of the grids whose results hold it."""
    makers = {"recency": recent, "findings": findings}
    places = [(name, kind) for name in grids() for kind in makers if f"<!-- table: {name}-{kind} -->" in text]
    return {f"{name}-{kind}": partial(makers[kind], name) for name, kind in places if makers[kind](name).rows}


def filled(document: str) -> str:
    """A document's text with its tables made anew."""
    text = (ROOT / document).read_text(encoding="utf-8")
    for name, table in (TABLES[document] | offered(text)).items():
        text = fill(text, name, table())
    return text


if __name__ == "__main__":
    for document in TABLES:
        (ROOT / document).write_text(filled(document), encoding="utf-8")
        print(document)
