"""How to cite Backstory: a BibTeX entry, as CITATION.cff has it."""

from backstory.storage.provenance import versions


def bibtex() -> str:
    """Return a BibTeX entry of this version."""
    fields = {
        "title": "{Backstory}: a library for language models that remember",
        "author": "{The Backstory developers}",
        "version": versions().get("backstory", "unknown"),
        "note": "MIT license",
    }
    width = max(map(len, fields))
    lines = (f"  {name:<{width}} = {{{value}}}," for name, value in fields.items())
    return "\n".join(("@software{backstory,", *lines, "}"))
