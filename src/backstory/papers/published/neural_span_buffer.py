"""Span-based neural buffer: a second prediction from spans of the states before, chosen between by a learned policy."""

from backstory.papers.published.paper import Figure, Paper

_SYSTEMS = ("awd-lstm", "awd-lstm-snb", "mos", "mos-snb", "mos-ps", "mos-ps-snb", "mos-ps-at", "mos-ps-at-snb")
"""Mixture of softmaxes (MoS), partial shuffle (PS), adversarial training of the softmax (AT), span-based neural buffer."""
_COLUMNS = (("valid", "static"), ("test", "static"), ("valid", "dynamic"), ("test", "dynamic"))
_TABLES = {
    ("ptb", "table 1"): (
        (60.00, 57.30, 51.60, 51.10),
        (56.82, 54.92, 48.23, 47.54),
        (56.54, 54.44, 48.33, 47.69),
        (54.21, 52.62, 46.53, 45.41),
        (55.89, 53.92, 47.93, 47.49),
        (53.45, 51.10, 45.51, 45.33),
        (54.10, 52.20, 46.63, 46.01),
        (52.37, 50.18, 44.37, 43.87),
    ),
    ("wikitext-2", "table 2"): (
        (68.60, 65.80, 46.40, 44.30),
        (63.07, 60.43, 40.72, 38.59),
        (63.88, 61.45, 42.41, 40.68),
        (60.62, 58.79, 40.61, 37.76),
        (62.38, 59.98, 40.75, 39.03),
        (60.11, 57.87, 39.98, 37.01),
        (61.10, 58.95, 39.58, 38.07),
        (58.75, 56.12, 38.42, 35.16),
    ),
}
_CORPORA = ("ptb", "wikitext-2")
_PARAMETERS = {"ptb": ("24 M", "22 M"), "wikitext-2": ("33 M", "35 M")}
"""As printed, of AWD-LSTM and of a mixture of softmaxes, with a buffer and without."""
_ABLATIONS = {
    "full": (43.87, 35.16),
    "only-sequential": (46.85, 39.11),
    "only-buffer": (52.54, 45.57),
    "oracle": (38.72, 32.35),
    "no-annealing-in-training": (45.64, 38.23),
    "no-annealing-in-test": (44.12, 37.45),
    "no-reward": (45.92, 38.76),
    "words": (44.72, 37.88),
}
"""Table 3: of mos-ps-at-snb on the test split of both corpora, with dynamic evaluation in every line."""


def _figures() -> dict[str, Figure]:
    """By CORPUS-SYSTEM-SPLIT, `-dynamic` at the end where it was read so; table 3's by CORPUS-table-3-LINE."""
    found = {}
    for (corpus, where), lines in _TABLES.items():
        for system, values in zip(_SYSTEMS, lines, strict=True):
            for value, (split, reader) in zip(values, _COLUMNS, strict=True):
                name = f"{corpus}-{system}-{split}" + ("" if reader == "static" else f"-{reader}")
                parameters = _PARAMETERS[corpus][system.startswith("mos")]
                # Table 2 prints table 1's numbers in its lines with dynamic evaluation.
                wrong = (corpus, reader) == ("wikitext-2", "dynamic")
                found[name] = Figure(value, split, where, reader, parameters="" if wrong else parameters)
    for line, values in _ABLATIONS.items():
        for corpus, value in zip(_CORPORA, values, strict=True):
            found[f"{corpus}-table-3-{line}"] = Figure(value, "test", "table 3", "dynamic")
    return found


PAPER = Paper(
    title="Span-Based Neural Buffer: Towards Efficient and Effective Utilization of Long-Distance Context for Neural "
    "Sequence Models",
    cited="Li et al. 2020",
    figures=_figures(),
)
