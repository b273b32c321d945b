"""Tables of reproductions: suites, their claims and findings, and trainings of the span buffer."""

import dataclasses
from collections.abc import Callable
from dataclasses import replace
from typing import get_args

from evidence import evidence
from tables import sources
from tables.sources import figures_of, files, headed, result

from backstory.papers.plan import runs_of
from backstory.papers.suite import Scale, load
from backstory.papers.suite import names as suite_names
from backstory.reports import Table
from backstory.reports.sections import reproduction_section as reproductions
from backstory.utils.formats import MISSING


def evidence_of_papers() -> Table:
    """All table rows, figures and claims of the papers: our protocol, published and our values, and the verdict."""
    rows = tuple(dataclasses.astuple(row) for row in evidence(sources.RESULTS))
    heads = ("paper", "item", "protocol as published?", "scale", "seeds", "published", "ours", "verdict")
    return headed(heads, rows, texts=len(heads))


def suites() -> list[str]:
    """Suites with a result."""
    return [path.stem.removeprefix("reproduce-") for path in files("reproduce-*")]


def reproduction(name: str) -> Table:
    """Published and our scores by system, from results/reproduce-NAME.json, without systems that were not run yet."""
    table = reproductions.systems_table(result(f"reproduce-{name}").figures)
    return _having(table, ("Ours", "Perplexity", "Bits"), MISSING)


def claims(name: str) -> Table:
    """Verdicts on the claims of the same file, without systems that were not run yet."""
    return _having(
        reproductions.claims_table(result(f"reproduce-{name}").figures),
        "Does it hold here?",
        "runs are missing: no claim",
    )


def findings(name: str) -> Table:
    """Published and our findings from the same file, without those that were not run."""
    return _having(reproductions.findings_table(result(f"reproduce-{name}").figures), "Does it hold here?", "not run")


def _having(table: Table, heading: str | tuple[str, ...], lacking: str) -> Table:
    """Drop the rows that contain `lacking` in a column, which is named by the start of its heading."""
    index = next(i for i, column in enumerate(table.columns) if column.heading.startswith(heading))
    return replace(table, rows=tuple(row for row in table.rows if row[index] != lacking))


def parts(name: str) -> Table:
    """Statistics of the gates between two predictions, from the same file."""
    return reproductions.gates_table(result(f"reproduce-{name}").figures)


def remembered(name: str) -> Table:
    """Cost of recurring tokens by distance, from the same file."""
    return reproductions.memory_table(result(f"reproduce-{name}").figures)


def recent(name: str) -> Table:
    """Cost of a token by distance to its last occurrence, from the same file."""
    return reproductions.recency_table(result(f"reproduce-{name}").figures)


KINDS: dict[str, Callable[[str], Table]] = {
    "": reproduction,
    "-claims": claims,
    "-findings": findings,
    "-parts": parts,
    "-memory": remembered,
    "-recency": recent,
}
"""Tables of a suite, by the suffix of its name in a document's markers."""


def suites_and_costs() -> Table:
    """The packaged suites: title, and at both scales runs, stated time and number of runs with a result here."""
    rows = []
    for name in suite_names():
        suite, cells = load(name), []
        for scale in get_args(Scale):
            runs = runs_of(suite, scale, name) if any(getattr(system, scale) for system in suite.systems) else []
            hours = f"{sum(run.minutes for run in runs) / 60:,.1f}"
            cells += [str(len(runs)), hours, str(_finished(name, scale))] if runs else ["–"] * 3
        rows.append((name, suite.title, *cells))
    small = ("small scale: runs", "core-hours stated", "finished here")
    full = ("full scale: runs", "GPU-hours stated", "finished here")
    return headed(("suite", "title", *small, *full), rows, texts=2)


def _finished(name: str, scale: str) -> int:
    """Return the number of complete runs in a suite's result, if it is of this scale."""
    if name not in suites():
        return 0
    figures = figures_of(f"reproduce-{name}")
    return sum(run["state"] == "done" for run in figures["runs"]) if figures["scale"] == scale else 0


GAINS: tuple[tuple[str, str, str, str], ...] = (
    ("neural cache", "the model alone", "dynamical", "A neural cache helps"),
    ("dynamic evaluation", "the model alone", "dynamical", "Dynamic evaluation helps"),
    ("dynamic evaluation and a cache", "dynamic evaluation", "dynamical", "A cache adds to dynamic evaluation"),
    ("meta-learner", "dynamic evaluation", "dynamical", "The meta-learner beats the dynamic evaluation it starts from"),
    ("meta-learner and a cache", "meta-learner", "dynamical", "A cache adds to the meta-learner"),
    (
        "pointer buffer, trained for one epoch more",
        "an epoch more without a buffer",
        "span-buffer",
        "A pointer to the words that followed beats the equally long baseline",
    ),
)
"""A memory, its control, and the suite and claim that compare them."""


def gains() -> Table:
    """Gain of each memory over its control: mean test perplexity over seeds, and the interval of the gain."""
    rows = []
    for memory, control, suite, sentence in GAINS:
        figures = figures_of(f"reproduce-{suite}")
        (one,) = (claim for claim in figures["claims"] if claim["sentence"] == sentence)
        with_it, without = (
            next(row["mean"] for row in figures["systems"] if side.items() <= row.items())
            for side in (one["better"], one["than"])
        )
        gain = f"{one['gain']:.1f} ({one['low']:.1f} to {one['high']:.1f})"
        rows.append((memory, f"{with_it:.1f}", control, f"{without:.1f}", gain))
    heads = ("memory", "perplexity", "control", "its perplexity", "gain (95% interval)")
    return headed(heads, rows, numbers=(1, 3, 4))


def continued() -> Table:
    """Validation perplexity of a ptb-small after one more epoch, by auxiliary prediction; one seed."""
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
        cells = (f"{figures['valid_perplexity']:.2f}",)
        if policy is not None:
            parts = (policy[f"{part}_perplexity"] for part in ("p", "q", "oracle"))
            cells += (f"{policy['mean_lambda']:.3f}", *(f"{part:.2f}" for part in parts))
        rows.append((shown, *cells, *["–"] * (5 - len(cells))))
    heads = ("auxiliary prediction", "validation", "mean lambda", "p alone", "q alone", "oracle")
    return headed(heads, rows)


_BEST_TRIALS = 5
_USE_OF_BUFFER = (("below 0.5%", 0.0, 0.005), ("0.5% to 50%", 0.005, 0.5), ("50% or more", 0.5, 1.01))
"""Names of the shares of words whose gate prefers the buffer, with their limits."""


def _searched() -> list[tuple[dict, list[dict]]]:
    """Return the complete trials of the search over the buffer's open settings with their epochs, the best first."""
    trials = [t for t in figures_of("search-span-buffer")["trials"] if t["state"] == "complete"]
    trials.sort(key=lambda trial: trial["valid_perplexity"])
    return [(trial, figures_of(f"search-span-buffer/{trial['trial']:04d}")["curve"]) for trial in trials]


def buffer_search() -> Table:
    """The best trials of a search over the buffer's open settings, with the gate's use of the buffer."""
    rows = []
    for trial, curve in _searched()[:_BEST_TRIALS]:
        reward, gate = "model.buffer.gate.reward", "model.buffer.gate"
        names = (f"{reward}.weight", f"{reward}.power", f"{reward}.baseline", f"{gate}.training_temperature")
        names += (f"{gate}.temperature", f"{gate}.rate", "model.core.output_dropout")
        policy = curve[-1]["policy"]
        used = ", ".join(f"{epoch['policy']['utilization']:.0%}" for epoch in curve)
        parts = (f"{policy[f'{part}_perplexity']:.1f}" for part in ("p", "q"))
        settings = (f"{float(format(trial['settings'][name], '.2g')):g}" for name in names)
        rows.append((*settings, f"{trial['valid_perplexity']:.1f}", *parts, f"{policy['win_share']:.0%}", used))
    heads = ("eta", "kappa", "b", "T", "T in evaluation", "gate rate", "dropout", "validation", "p alone", "q alone")
    return headed((*heads, "q wins", "PoU after each epoch"), rows, texts=0)


def buffer_search_by_use() -> Table:
    """All trials of the same search by the gate's use of the buffer after the last epoch."""
    rows = []
    for name, least, limit in _USE_OF_BUFFER:
        trials = [(t, c[-1]["policy"]) for t, c in _searched() if least <= c[-1]["policy"]["utilization"] < limit]
        scores = [trial["valid_perplexity"] for trial, _ in trials]
        excess = [trial["valid_perplexity"] - policy["p_perplexity"] for trial, policy in trials]
        settings = [trial["settings"] for trial, _ in trials]
        hot = sorted({one["model.buffer.gate.training_temperature"] for one in settings})
        dropout = [one["model.core.output_dropout"] for one in settings]
        rows.append((name, str(len(trials)), ", ".join(f"{one:g}" for one in hot), _range(dropout, 2), _range(scores, 1),
                     _range(excess, 1)))  # fmt: skip
    heads = ("PoU after the last epoch", "trials", "T", "dropout", "validation", "above p alone by")
    return headed(heads, rows)


def _range(values: list[float], digits: int) -> str:
    return f"{min(values):.{digits}f} to {max(values):.{digits}f}"


def buffer_training() -> Table:
    """The printed buffer trained from scratch, by epoch: scores of p and q, and the gate's use of q."""
    rows = []
    for epoch in figures_of("span-buffer-scratch")["curve"]:
        policy = epoch["policy"]
        scores = (policy["p_perplexity"], policy["q_perplexity"], policy["best_constant_perplexity"])
        shares = (policy["win_share"], policy["utilization"])
        cells = (f"{epoch['valid_perplexity']:.1f}", *(f"{s:.1f}" for s in scores), *(f"{s:.0%}" for s in shares))
        rows.append((str(epoch["epoch"]), *cells))
    heads = ("epoch", "validation", "p alone", "q alone", "with the best constant lambda", "q wins", "PoU")
    return headed(heads, rows, texts=0)
