"""What a person sees of a sweep on its way: the trials that run and the best so far, or lines when not a terminal."""

from collections.abc import Sequence
from typing import TYPE_CHECKING

from rich.console import Console, Group
from rich.table import Table
from rich.text import Text

from backstory.config.units import nats
from backstory.reports.formats import MISSING, figure, perplexity
from backstory.reports.phrases import validation
from backstory.training.progress_display import LiveDisplay, say
from backstory.tuning.trial_queue import best_of
from backstory.tuning.trial_runner import Ended, Work

if TYPE_CHECKING:
    from optuna.trial import FrozenTrial


class Display(LiveDisplay):
    """Shows where the trials stand."""

    def __init__(self, console: Console, title: str, most: int, unit: str | None = None) -> None:
        """`unit`: what a token that is scored is, where it is told in bits of each."""
        super().__init__(console)
        self._title, self._most, self.unit = title, most, unit

    def ended(self, trial: Ended, best: bool) -> None:
        """One line for a trial that ended; `best` says that no other is better."""
        again = f" ({trial.first} again)" if trial.first != trial.number else ""
        value = "" if trial.value is None else f", {validation(trial.value, self.unit)}"
        line = f"trial {trial.number}{again}: "
        if trial.state == "again":
            line += f"{trial.problem}; it is tried again"
        elif trial.problem:
            line += f"{trial.state}: {trial.problem}"
        else:
            line += f"{trial.state}{value}"
        say(self.console, f"{line}  best" if best else line)

    def show(self, trials: Sequence["FrozenTrial"], working: Sequence[Work]) -> None:
        """Bring the table up to date."""
        if self._live is not None:
            self._live.update(self._table(trials, working))

    def _table(self, trials: Sequence["FrozenTrial"], working: Sequence[Work]) -> Group:
        done = sum(t.state.is_finished() for t in trials)
        best = best_of(trials)
        elsewhere = sum(t.state.name == "RUNNING" for t in trials) - len(working)
        beside = f", {elsewhere} running elsewhere" if elsewhere > 0 else ""
        value = f"; best {validation(best.value, self.unit)}" if best is not None and best.value else ""
        table = Table()
        for heading in ("trial", "epoch", "validation", "settings"):
            table.add_column(heading, justify="left" if heading == "settings" else "right", no_wrap=True)
        for work in working:
            last = work.curve.get(max(work.curve, default=0))
            epoch = f"{min(len(work.curve) + 1, work.epochs)} of {work.epochs}"
            drawn = ", ".join(f"{n.rpartition('.')[2]} {_short(v)}" for n, v in work.claim.trial.params.items())
            table.add_row(
                str(work.number), epoch, MISSING if last is None else self._value(last), Text(drawn, style="dim")
            )
        return Group(Text(f"{self._title}: {done} of {self._most} trials done{beside}{value}"), table)

    def _value(self, found: float) -> str:
        return perplexity(found) if self.unit is None else figure(nats(found), self.unit)


def _short(value: object) -> str:
    return f"{value:.3g}" if isinstance(value, float) else str(value)
