"""Localized content-based addressing: a trained memory is read by a softmax over a window of its rows alone."""

from backstory.papers.published.paper import Figure, Paper

_COLUMNS = ("valid", "test")
_TABLES = {
    # lca-257: 257 rows are selected; mdm-2-1024-decay: two read vectors, 1,024 rows, the larger weight decay.
    ("ptb", "table 1"): {
        "lstm": ((1.8949, 0.0033), (1.8254, 0.0031)),
        "transformer": ((1.6042, 0.0006), (1.5954, 0.0004)),
        "trellis": ((1.3858, 0.0013), (1.3578, 0.0019)),
        "awd-lstm": ((1.5224, 0.0039), (1.4720, 0.0036)),
        "mdm-1-65": ((1.7335, 0.0011), (1.6977, 0.0010)),
        "mdm-1-129": ((1.6362, 0.0008), (1.6019, 0.0009)),
        "mdm-1-257": ((1.6592, 0.0011), (1.6288, 0.0009)),
        "mdm-1-513": ((1.6688, 0.0006), (1.6316, 0.0007)),
        "mdm-1-769": ((1.6529, 0.0006), (1.6214, 0.0008)),
        "mdm-1-1024-decay": ((1.7354, 0.0004), (1.6998, 0.0007)),
        "mdm-1-1024": ((1.6330, 0.0006), (1.5986, 0.0007)),
        "mdm-2-1024-decay": ((1.7716, 0.0003), (1.7341, 0.0005)),
        "mdm-2-1024": ((1.7210, 0.0009), (1.6906, 0.0002)),
        "mdm-4-1024": ((1.7428, 0.0005), (1.7044, 0.0009)),
    },
    ("ptb", "table 2"): {
        "lca-65": ((1.6580, 0.0022), (1.6249, 0.0024)),
        "lca-129": ((1.6432, 0.0029), (1.6103, 0.0027)),
        "lca-257": ((1.6172, 0.0021), (1.5648, 0.0018)),
        "lca-513": ((1.6230, 0.0024), (1.6071, 0.0022)),
        "lca-769": ((1.6419, 0.0015), (1.6297, 0.0014)),
    },
    ("enwik8", "table 3"): {
        "lstm": (None, (1.4610, None)),
        "transformer": (None, (1.1120, None)),
        "mdm-1": ((1.4502, 0.0010), (1.4475, 0.0007)),
        "mdm-2": ((1.4473, 0.0009), (1.4419, 0.0012)),
        "mdm-3": ((1.4185, 0.0011), (1.4117, 0.0010)),
        "mdm-4": ((1.3970, 0.0008), (1.3922, 0.0009)),
    },
    ("enwik8", "table 4"): {
        "lca-33": ((1.4120, 0.0018), (1.4113, 0.0021)),
        "lca-65": ((1.4007, 0.0020), (1.3995, 0.0019)),
        "lca-97": ((1.3895, 0.0017), (1.3887, 0.0020)),
    },
}
_PARAMETERS = {
    "ptb-lstm": "13.2 M",
    "ptb-transformer": "13.2 M",
    "ptb-trellis": "13.4 M",
    "ptb-awd-lstm": "13.8 M",
    "ptb-mdm-1": "18.3 M",
    "ptb-mdm-2": "23.6 M",
    "ptb-mdm-4": "34.2 M",
    "ptb-lca": "18.3 M",
    "enwik8-lstm": "18.1 M",
    "enwik8-transformer": "44.1 M",
    "enwik8-mdm-1": "30.2 M",
    "enwik8-mdm-2": "34.9 M",
    "enwik8-mdm-3": "37.8 M",
    "enwik8-mdm-4": "42.5 M",
    "enwik8-lca": "42.5 M",
}
"""As printed, by the beginning of CORPUS-SYSTEM."""


def _figures() -> dict[str, Figure]:
    """By CORPUS-SYSTEM-SPLIT; bits per character, means of five runs on PTB and of three on enwik8."""
    found = {}
    for (corpus, where), systems in _TABLES.items():
        for system, printed in systems.items():
            parameters = next(count for name, count in _PARAMETERS.items() if f"{corpus}-{system}".startswith(name))
            for split, one in zip(_COLUMNS, printed, strict=True):
                if one is not None:
                    # In how many rows it was read is not said.
                    found[f"{corpus}-{system}-{split}"] = Figure(
                        one[0], split, where, "static", "bits_per_token", None, one[1], parameters
                    )
    return found


PAPER = Paper(
    title="Language Model Using Neural Turing Machine Based on Localized Content-Based Addressing",
    cited="Lee et al. 2020",
    figures=_figures(),
)
