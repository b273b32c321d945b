"""What a person sees of a reproduction on its way: a table that keeps up with it, or lines when not a terminal."""

import math
from collections.abc import Sequence

from rich.console import Console, Group
from rich.table import Table
from rich.text import Text

from backstory.papers.suite import Metric
from backstory.papers.suite_progress import DONE, FAILED, Standing, minutes_to_go
from backstory.reports.formats import MISSING, decimal, duration, perplexity
from backstory.training.progress_display import LiveDisplay, say


class Display(LiveDisplay):
    """Shows where the runs stand."""

    def __init__(self, console: Console, title: str, processes: int, metric: Metric) -> None:
        super().__init__(console)
        self._title, self._processes, self._metric = title, processes, metric
        self._said: dict[str, str] = {}

    def show(self, found: Sequence[Standing]) -> None:
        """Bring the table up to date, or say what is new, a line for each run that moved on."""
        if self._live is not None:
            self._live.update(self._table(found))
            return
        for standing in found:
            line = f"{standing.run.name}: {state(standing)}"
            if standing.valid is not None and not standing.problem:
                line += f", validation {self._metric.replace('_', ' ')} {self._figure(standing.valid)}"
            if self._said.get(standing.run.name, f"{standing.run.name}: waiting") != line:
                self._said[standing.run.name] = line
                say(self.console, line)

    def _table(self, found: Sequence[Standing]) -> Group:
        done = sum(s.state == DONE for s in found)
        left = duration(60 * minutes_to_go(found, self._processes))
        title, table = f"{self._title}: {done} of {len(found)} runs done, about {left} left", Table()
        for heading in ("run", "seed", "state", "validation", "time left"):
            table.add_column(heading, justify="left" if heading in ("run", "state") else "right")
        for s in found:
            left = duration(60 * s.minutes_left) if s.minutes_left else MISSING
            style = {DONE: "green", FAILED: "red", "waiting": "dim"}.get(s.state)
            table.add_row(Text(s.run.row), str(s.run.seed), Text(state(s)), self._figure(s.valid), left, style=style)
        return Group(Text(title), table)

    def _figure(self, valid: float | None) -> str:
        """A validation perplexity in the metric of the grid."""
        if valid is None or self._metric == "perplexity":
            return perplexity(valid)
        return decimal(math.log2(valid), 3)


def state(standing: Standing) -> str:
    """The state in words."""
    if standing.state == "running":
        return f"running, epoch {min(standing.epoch + 1, standing.epochs)} of {standing.epochs}"
    return f"{standing.state}: {standing.problem}" if standing.problem else standing.state
