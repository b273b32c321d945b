"""Sharp Nearby, Fuzzy Far Away: how much of its context an LSTM uses, and what for."""

from backstory.papers.published.paper import Figure, Paper, Printed
from backstory.reports.published import Published

_WHERE: dict[str, tuple[str, Printed]] = {
    "valid": ("table 1", "perplexity"),
    "test": ("table 1", "perplexity"),
    "effective-context": ("section 4", "tokens"),
    "effective-context-average": ("section 4", "tokens"),
    "effective-context-frequent": ("section 4.1", "tokens"),
    "effective-context-infrequent": ("section 4.1", "tokens"),
    "effective-context-DT": ("section 4.1", "tokens"),
    "truncate-13": ("section 7", "effect_percent"),
    "local-order": ("section 5.1", "tokens"),
    "global-order": ("section 5.1", "tokens"),
    "drop-content-5": ("section 5.2", "effect_percent"),
    "drop-content-5-control": ("section 5.2", "effect_percent"),
    "drop-function-5": ("section 5.2", "effect_percent"),
    "drop-distant-near": ("section 6.1", "effect_percent"),
    "drop-distant-far": ("section 6.1", "effect_percent"),
    "drop-target-near": ("section 6.1", "effect_percent"),
    "drop-target-far": ("section 6.1", "effect_percent"),
    "replace-target-near": ("section 6.1", "effect_percent"),
    "without-cache-near": ("section 6.2", "effect_percent"),
    "without-cache-far": ("section 6.2", "effect_percent"),
    "hurt": ("section 6.2", "share_percent"),
}
"""Where each figure stands, and what it is. `replace-target-near` is the most that any replacement costs."""

_SHARED = {
    "effective-context-average": 200.0,
    "effective-context-frequent": 50.0,
    "effective-context-infrequent": 200.0,
    "effective-context-DT": 10.0,
    "local-order": 20.0,
    "global-order": 50.0,
}
"""Said of both corpora."""
_PRINTED = {
    "ptb": {
        "valid": 59.07,
        "test": 56.89,
        "effective-context": 150.0,
        **_SHARED,
        "truncate-13": 25.0,
        "drop-content-5": 65.0,
        "drop-content-5-control": 17.0,
        "drop-function-5": 15.0,
        "drop-distant-near": 3.5,
        "drop-distant-far": 12.0,
        "drop-target-near": 9.0,
        "drop-target-far": 2.0,
        "replace-target-near": 14.0,
        "without-cache-near": 22.0,
        "without-cache-far": 28.0,
        "hurt": 36.0,
    },
    "wikitext-2": {
        "valid": 67.29,
        "test": 64.51,
        "effective-context": 250.0,
        **_SHARED,
        "without-cache-near": 32.0,
        "without-cache-far": 53.0,
        "hurt": 20.0,
    },
}


def _figures() -> dict[str, Figure]:
    """By CORPUS-NAME; all but the test perplexities are of the validation text."""
    return {
        f"{corpus}-{name}": Figure(value, "test" if name == "test" else "valid", *_read(name))
        for corpus, values in _PRINTED.items()
        for name, value in values.items()
    }


def _read(name: str) -> tuple[str, str, Printed]:
    where, metric = _WHERE[name]
    return where, "cache" if name.startswith(("without-cache", "hurt")) else "static", metric


PAPER = Paper(
    title="Sharp Nearby, Fuzzy Far Away: How Neural Language Models Use Context",
    cited="Khandelwal et al. 2018",
    figures=_figures(),
)

BESIDE = Published(PAPER.cited, "an AWD-LSTM, the mean of three seeds, on every token of the validation text", _PRINTED)
"""The same for a report."""
