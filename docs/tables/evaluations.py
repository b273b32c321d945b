"""Tables of trained models and their scores."""

from tables.sources import (
    audit_ended,
    benchmark_rows,
    effective_context,
    figures_of,
    files,
    headed,
    result,
    unknown_cell,
)

from backstory.data.synthetic.algorithms import TASKS
from backstory.reports import Column, Table
from backstory.utils.formats import MISSING, duration, signed_percent


def learning() -> Table:
    """Validation perplexity of ptb-small after every epoch, a row per epoch and a column per run."""
    runs = [result(path.stem) for path in files("ptb-small-*-seed*")]
    heads = [f"{run.provenance.precision}, seed {run.provenance.seed}" for run in runs]
    curves = [run.figures.to_dict()["curve"] for run in runs]
    rows = [
        (str(epochs[0]["epoch"]), *(f"{epoch['valid_perplexity']:.2f}" for epoch in epochs))
        for epochs in zip(*curves, strict=True)
    ]
    return Table((Column("epoch", numeric=True), *(Column(head, numeric=True) for head in heads)), tuple(rows))


def reading() -> Table:
    """Perplexity, effective context and time of the recipes measured on two cores."""
    rows = []
    for name in ("demo", "ptb-small"):
        trained, read = result(f"recipe-{name}"), figures_of(f"read-{name}")
        context, corpus = figures_of(f"examine-{name}"), trained.provenance.corpus
        assert corpus is not None
        rows.append(
            (
                name,
                corpus.name,
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
    return headed(heads, rows, numbers=(2, 3, 4, 5))


def timed() -> Table:
    """The timed recipes: steps and time on two threads, and test perplexity with successive readers."""
    rows = []
    for name, label in TIMED.items():
        trained, read = result(f"recipe-{name}"), figures_of(f"read-{name}")
        origin = trained.provenance
        assert origin.config is not None and origin.seconds is not None and origin.device is not None
        extra = [f"read-{name}-{readers}" for readers in ("ngram", "cache", "stack", "gate")]
        adapted = (f"{figures_of(file)['perplexity']:.2f}" if files(file) else MISSING for file in extra)
        rows.append(
            (
                label,
                "no" if origin.config["model"]["buffer"]["kind"] == "none" else "yes",
                f"{origin.device.removeprefix('cpu ').strip('()')}, {origin.precision}",
                f"{trained.figures.to_dict()['curve'][-1]['step']:,}",
                duration(origin.seconds),
                f"{trained.figures.valid_perplexity:.2f}",
                f"{read['perplexity']:.2f}",
                *adapted,
            )
        )
    tests = ("test", *(f"test, {readers}" for readers in ("n-grams", "cache", "stack", "gate")))
    heads = ("recipe", "pointer", "trained on", "steps", "took", "validation", *tests)
    return headed(heads, rows, numbers=(3, *range(5, len(heads))))


TIMED = {
    "ptb-5min": "ptb-5min",
    "ptb-5min-float32": "ptb-5min without native bfloat16",
    "ptb-15min": "ptb-15min",
    "ptb-15min-one-core-seed1": "ptb-15min on one core, beside another seed",
    "ptb-15min-float32": "ptb-15min without native bfloat16",
    "ptb-15min-float32-again": "the same steps again",
    "ptb-15min-alone": "ptb-15min without the pointer",
    "ptb-60min": "ptb-60min",
    "ptb-60min-alone": "ptb-60min as it was without the pointer",
    "wikitext-2-60min-one-core": "wikitext-2-60min on one core",
    "wikitext-2-60min": "wikitext-2-60min, fewer steps",
}
"""Results of the timed recipes, and their names in tables."""


def own_text() -> Table:
    """Small LSTMs on two texts with and without a pointer, trained for about the same time."""
    rows = []
    for name, text in OWN_TEXTS.items():
        alone, pointer = (result(f"own-text-{name}-{model}").figures for model in ("demo", "pointer"))
        for f, head in ((alone, (text, f"{alone.tokens.train:,}", "no")), (pointer, ("", "", "yes"))):
            rows.append((*head, f"{f.to_dict()['curve'][-1]['step']:,}", f"{f.valid_perplexity:.2f}"))
    return headed(("text", "training words", "pointer", "steps", "validation"), rows, numbers=(1, 3, 4))


OWN_TEXTS = {
    "handbuch": "The Debian Administrator's Handbook, in German",
    "code": "Python source: the modules of Python 3.11 itself",
}
"""Results of `own_text`, and their texts."""


def full_size() -> Table:
    """A published size that was trained for a while on a GPU, read and examined."""
    rows = []
    for name in ("ptb-awd-lstm",):
        valid, test = result(f"read-valid-{name}"), result(f"read-{name}")
        context, config = figures_of(f"examine-{name}"), test.provenance.config
        assert config is not None
        rows.append(
            (
                name,
                test.provenance.device,
                f"{config['training']['epochs']} + {config['training']['finetune_epochs']}",
                f"{valid.figures.perplexity:.2f}",
                f"{test.figures.perplexity:.2f}",
                test.figures.audit.in_words(),
                effective_context(context),
            )
        )
    heads = ("recipe", "device", "epochs asked for", "validation", "test", "audit", "effective context")
    return headed(heads, rows, numbers=(3, 4))


def solved() -> Table:
    """Accuracy of trained memories on each task, at the lengths of training and beyond."""
    rows = []
    for task in TASKS:
        for path in files(f"{task}-*-test"):
            name = path.stem.removesuffix("-test")
            own, longer = (figures_of(f"{name}-{kind}")["answers"] for kind in ("test", "lengths"))
            beyond = ", ".join(f"{of['length']}: {of['bit_accuracy']:.2%}" for of in longer["lengths"])
            core = name.removeprefix(f"{task}-")
            rows.append((task, core, f"{own['bit_accuracy']:.2%}", f"{own['document_accuracy']:.1%}", beyond))
    heads = ("task", "core", "bits right", "documents right", "bits right by length")
    return headed(heads, rows, numbers=(2, 3))


def adaptive() -> Table:
    """Scores of the demo's model on the test split of Python's documentation, by reader."""
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
        share = signed_percent(100 * (figures["perplexity"] / static - 1)) if len(figures["gains"]) > 1 else "–"
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
    return headed(heads, rows, numbers=(2, 3, 4))


def normalization() -> Table:
    """Validation perplexity of dynamic evaluation against lambda, with either mean of the RMS."""
    decays: list[dict[str, float]] = benchmark_rows("normalization")
    rows = tuple((f"{row['decay']:g}", f"{row['weights']:.2f}", f"{row['tensors']:.2f}") for row in decays)
    return headed(("lambda", "weights", "tensors"), rows)
