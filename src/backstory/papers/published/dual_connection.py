"""Dual connection: a layer before the softmax that reads the present word beside what the recurrent module made of it."""

from backstory.papers.published.paper import Figure, Paper

_DYNAMIC = "dynamic:rule=nadam+tempered"
"""A softmax temperature goes with their dynamic evaluation."""
_COLUMNS = (("valid", "static"), ("test", "static"), ("valid", _DYNAMIC), ("test", _DYNAMIC))
_SEARCHED = ("tuned-dual-mdlstm", "static")
"""Here the temperature was searched for without dynamic evaluation, too."""
_TABLES = {
    # dlstm: two layers; mdlstm: two Mogrifier layers; plus: the layer, but no connection to the present word ("mdLSTM+").
    ("ptb", "table 2"): {
        "lstm": (67.37, 64.91, 62.31, 61.17),
        "dual-lstm": (61.22, 59.39, 55.26, 54.69),
        "dlstm": (63.44, 61.03, 57.18, 56.01),
        "dual-dlstm": (60.99, 59.56, 56.11, 54.87),
        "mdlstm": (57.42, 55.48, 51.16, 50.27),
        "dual-mdlstm": (56.08, 54.12, 48.82, 48.00),
        "mdlstm-plus": (57.77, 56.29, 50.42, 49.83),
    },
    # With a vocabulary that fits the text in lower case only.
    ("wikitext-2", "table 2"): {
        "lstm": (92.84, 88.28, 74.98, 69.42),
        "dual-lstm": (85.88, 82.48, 61.94, 57.61),
        "dlstm": (78.65, 75.60, 63.26, 59.42),
        "dual-dlstm": (77.01, 73.90, 61.10, 57.10),
        "mdlstm": (72.05, 69.06, 57.42, 53.93),
        "dual-mdlstm": (71.78, 70.83, 53.48, 50.71),
    },
    ("ptb", "table 3"): {
        "tuned-dual-mdlstm": (52.87, 51.19, 45.13, 44.61),
        "mogrifier": (51.40, 50.10, 44.90, 44.80),
        "awd-lstm-doc": (54.12, 52.38),
        "awd-lstm-pdr": (57.90, 55.60, 50.10, 49.30),
        "mos-pdr": (56.20, 53.80, 48.00, 47.30),
        "doc-x5": (48.63, 47.17),
        "mos-frage": (55.52, 53.51, 47.38, 46.54),
        "mos-at": (54.98, 52.87, 47.15, 46.52),
        "mos-at-ps": (54.10, 52.20, 46.63, 46.01),
    },
}
_PARAMETERS = {
    "ptb-lstm": "8.88 M",
    "ptb-dual-lstm": "9.60 M",
    "ptb-dlstm": "13.62 M",
    "ptb-dual-dlstm": "13.94 M",
    "ptb-mdlstm": "21.43 M",
    "ptb-dual-mdlstm": "22.88 M",
    "ptb-mdlstm-plus": "22.16 M",
    "ptb-tuned-dual-mdlstm": "23 M",
    "wikitext-2-lstm": "20.23 M",
    "wikitext-2-dual-lstm": "20.95 M",
    "wikitext-2-dlstm": "29.60 M",
    "wikitext-2-dual-dlstm": "30.32 M",
    "wikitext-2-mdlstm": "37.51 M",
    "wikitext-2-dual-mdlstm": "38.95 M",
}
"""As printed, of the systems that are run here."""


def _figures() -> dict[str, Figure]:
    """By CORPUS-SYSTEM-SPLIT, `-dynamic` at the end where it was read so."""
    found = {}
    for (corpus, where), lines in _TABLES.items():
        for system, values in lines.items():
            for value, (split, reader) in zip(values, _COLUMNS, strict=False):
                name = f"{corpus}-{system}-{split}" + ("" if reader == "static" else "-dynamic")
                reader = "tempered" if (system, reader) == _SEARCHED else reader
                parameters = _PARAMETERS.get(f"{corpus}-{system}", "")
                found[name] = Figure(value, split, where, reader, parameters=parameters)
    return found


PAPER = Paper(
    title="The Importance of the Current Input in Sequence Modeling",
    cited="Oliva and Lago-Fernández 2021",
    figures=_figures(),
)
