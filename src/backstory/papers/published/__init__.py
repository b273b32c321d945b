"""Figures that papers printed and what they found, a module for each paper; a new one is found by its file."""

import importlib
from importlib import resources

from backstory.config import check_name
from backstory.papers.published.paper import Cost, Figure, Finding, Measure, Metric, Paper

__all__ = ["Cost", "Figure", "Finding", "Measure", "Metric", "Paper", "figure", "names", "paper"]


def names() -> list[str]:
    """The papers: their modules' names with hyphens."""
    files = (p.name for p in resources.files(__name__).iterdir())
    modules = {n.removesuffix(".py") for n in files if n.endswith(".py")} - {"__init__", "paper"}
    return sorted(module.replace("_", "-") for module in modules)


def paper(name: str) -> Paper:
    """A paper by its name. Raises UserError for an unknown one."""
    check_name(name, names(), "paper")
    return importlib.import_module(f"{__name__}.{name.replace('-', '_')}").PAPER


def figure(reference: str) -> tuple[Figure, str]:
    """A figure by PAPER/FIGURE (`awd-lstm/ptb-test`), and where it stands in words. Raises UserError."""
    name, _, key = reference.partition("/")
    found = paper(name)
    check_name(key, found.figures, f"figure of {name}")
    return found.figures[key], f"{found.cited}, {found.figures[key].where}"
