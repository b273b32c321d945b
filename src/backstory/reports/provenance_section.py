"""What it takes to measure a run again: its commands, and the facts its results agree or differ on."""

from collections.abc import Callable, Iterable

from backstory.reports import formats
from backstory.reports.results import Result, RunResults


def commands(run: RunResults) -> list[str]:
    """The commands that made the results, in the order of the results, each once."""
    recorded = (result.provenance.get("command") for result in run.results)
    return _distinct(str(command) for command in recorded if command)


def facts(run: RunResults) -> list[tuple[str, str]]:
    """Seed, weights, commit, versions, device, precision, text and time as (term, text), `not recorded` where there is none."""
    return [(term, _agreed(run, fact)) for term, fact in _FACTS.items()]


def _agreed(run: RunResults, fact: Callable[[Result], str]) -> str:
    """A fact of all results of a run: said once where they agree, else once for each that differs."""
    said = [(result.label, fact(result) or "not recorded") for result in run.results]
    texts = _distinct(text for _, text in said)
    if len(texts) == 1:
        return texts[0]
    return "; ".join(f"{text} ({', '.join(label for label, t in said if t == text)})" for text in texts)


def _versions(result: Result) -> str:
    versions = result.provenance.get("versions")
    return ", ".join(f"{k} {formats.plain(v)}" for k, v in versions.items()) if isinstance(versions, dict) else ""


def _precision(result: Result) -> str:
    precision, reason = (result.provenance.get(key) for key in ("precision", "precision_reason"))
    return f"{precision}, because {reason}" if precision and reason else str(precision or "")


def _text(result: Result) -> str:
    c = result.corpus
    types, fingerprint = c.get("types"), c.get("fingerprint")
    parts = [c.get("name"), c.get("provenance"), types and f"{types} types"]
    return ", ".join(str(part) for part in [*parts, fingerprint and f"fingerprint {fingerprint}"] if part)


def _took(result: Result) -> str:
    seconds = result.provenance.get("seconds")
    return formats.duration(seconds) if isinstance(seconds, int | float) else ""


def _field(key: str) -> Callable[[Result], str]:
    return lambda result: "" if result.provenance.get(key) is None else formats.plain(result.provenance[key])


def _distinct(texts: Iterable[str]) -> list[str]:
    return list(dict.fromkeys(texts))


def _weights(result: Result) -> str:
    """The first digits of the hash, which tell weights apart."""
    told = result.provenance.get("weights")
    return (
        told[:12] if isinstance(told, str) else ", ".join(str(w)[:12] for w in told) if isinstance(told, list) else ""
    )


_FACTS: dict[str, Callable[[Result], str]] = {
    "Seed": _field("seed"),
    "Weights": _weights,
    "Commit": _field("commit"),
    "Versions": _versions,
    "Device": _field("device"),
    "Precision": _precision,
    "Text": _text,
    "Started": _field("started"),
    "Took": _took,
}
