"""Tables of the tests of the program: attacks, audit, referee, and overlap of the corpora."""

from typing import Any

from tables.sources import headed, measured

from backstory.reports import Table
from backstory.utils.formats import MISSING


def reliability() -> Table:
    """Attacks on the program, with the promise that each tests, its trials and its failures."""
    cases: dict[str, dict[str, Any]] = measured("reliability")
    rows = tuple(
        (case, row["what"], row["promise"], f"{row['trials']:,}", f"{row['failures']:,}") for case, row in cases.items()
    )
    heads = ("case", "what", "must hold", "trials", "failures")
    return headed(heads, rows, texts=3)


def split_overlaps() -> Table:
    """Share of each corpus's held-out splits that occurs in earlier splits."""
    benchmark: dict[str, Any] = measured("benchmark-corpora")
    python = ".".join(benchmark["provenance"]["versions"]["python"].split(".")[:2])
    corpora: dict[str, dict[str, Any]] = benchmark["rows"]
    names = {"stdlib": f"stdlib, Python {python}"}
    rows = tuple(
        (names.get(name, name), *(f"{one['share']:.2%}" for one in row["overlap"]))
        for name, row in corpora.items()
        if "overlap" in row
    )
    return headed(("corpus", "validation in training", "test in training", "test in validation"), rows)


def zoo(part: str, name: str = "audit-zoo") -> dict[str, dict[str, Any]]:
    """A part of the results on the audit or the referee."""
    return measured(name)[part]


def caught_cheats() -> Table:
    """Number of seeds with which the audit caught each planted cheat."""
    rows = tuple(
        (name, f"{row['rows']}", f"{row['caught']} of {row['seeds']}", (row["check"] or MISSING).replace("_", " "))
        for name, row in zoo("cheats").items()
    )
    return headed(("cheat", "rows", "caught", "by"), rows, numbers=(1, 2))


def refused(subject: str, name: str) -> Table:
    """Number of seeds with which the audit or the referee refused each honest subject."""
    rows = tuple((one, f"{row['refused']} of {row['seeds']}") for one, row in zoo("honest", name).items())
    return headed((f"honest {subject}", "refused"), rows)


def refereed_cheats() -> Table:
    """Number of seeds with which the referee caught each cheat, by the broken condition, and the expected share."""
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
    """Relative cost of the audit by the length of a reading."""
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
