"""Trainings of every kind of core and optimizer, with and without --init-from, killed in the first save and at random times."""

import itertools
import random
import signal
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from kill import Chain
from processes import Running, zygote
from runs import tiny_config, tiny_corpus, with_model, with_training
from small_runs import SAVE_OFTEN, write_recipe

from backstory.config import (
    AuxiliarySoftmaxConfig,
    DNCConfig,
    LSTMConfig,
    MDMConfig,
    MogrifierConfig,
    NTMConfig,
    RunConfig,
    SpanBufferConfig,
    TransformerConfig,
    TrellisConfig,
)

_MEMORY: dict[str, Any] = {"layers": (8,), "slots": 5, "width": 4, "heads": 1}
CORES = {
    "lstm": LSTMConfig(layers=2, hidden=8, weight_drop=0.2),
    "mogrifier": MogrifierConfig(layers=1, hidden=8, rank=3),
    "transformer": TransformerConfig(layers=2, heads=2, hidden=8, window=5),
    "trellis": TrellisConfig(levels=4, hidden=8),
    "ntm": NTMConfig(**_MEMORY),
    "dnc": DNCConfig(**_MEMORY),
    "mdm": MDMConfig(**_MEMORY),
}
OPTIMIZERS: dict[str, dict[str, Any]] = {
    "SGD": {"averaging": "none"},
    "averaged SGD": {"averaging": "always"},
    "Adam": {"optimizer": "adam", "learning_rate": 0.01, "averaging": "none"},
}
SECOND = (SpanBufferConfig(size=12, span=4), AuxiliarySoftmaxConfig())
SYSTEMS = list(itertools.product(CORES, OPTIMIZERS, (False, True)))
"""Core, optimizer, and whether a run goes on from another with an auxiliary prediction, or begins by itself."""
COUNT = 2 * len(SYSTEMS)
BOUNDED = (0, 1, len(SYSTEMS), len(SYSTEMS) + 1)
"""Both kills of two systems."""


def killed_cores(trials: Sequence[int], folder: Path) -> Iterator[str]:
    """A trial is one kill: of a system's first it is in the very first save, of its second at a random time."""
    corpus, landed = tiny_corpus(folder / "corpus", lines=20), Counter[str]()
    spread = random.Random(0).sample(range(len(SYSTEMS)), len(SYSTEMS))  # so that any part of them is of all kinds
    bases: dict[str, Path] = {}
    with zygote(folder) as started:
        for place, index in enumerate(spread):
            mine = [trial for trial in trials if trial % len(SYSTEMS) == place]
            if not mine:
                continue
            core, optimizer, begun = SYSTEMS[index]
            config = _config(corpus, core, optimizer)
            begin: tuple[object, ...] = ()
            if begun:
                if core not in bases:
                    bases[core] = folder / f"base-{core}"
                    base = write_recipe(with_training(config, epochs=1), folder / f"{core}.yaml")
                    if started.start("train", base, "--out", bases[core]).wait() != 0:
                        raise RuntimeError(f"{core} does not train")
                begin, config = ("--init-from", bases[core]), with_model(config, buffer=SECOND[index // 2 % 2])
            chain = FirstSave(started, config, folder / str(index), landed, begin)
            name = f"{core}, {optimizer}, {'with' if begun else 'without'} --init-from"
            yield from (f"{name}, {failure}" for failure in chain.run(mine))
    print("  killed during: " + ", ".join(f"{what} {count}" for what, count in landed.most_common()), flush=True)


class FirstSave(Chain):
    """Kill each second time while the first checkpoint is being written; each run starts from scratch."""

    def killed_after(self, steps: int, seconds: float) -> Running | None:
        self.kills = getattr(self, "kills", 0) + 1
        if self.kills % 2 == 0:
            return super().killed_after(steps, seconds)
        self.begin_again()
        running = self.start()
        while self.phase.now() != "save" and not running.ended(0.0):
            pass
        if running.ended(seconds / 50):
            return running
        running.send(signal.SIGKILL)
        return None if running.wait() == -signal.SIGKILL else running


def _config(corpus: Path, core: str, optimizer: str) -> RunConfig:
    config = with_model(tiny_config(corpus), core=CORES[core])
    config = with_training(config, epochs=2, batch_size=6, save_minutes=SAVE_OFTEN, **OPTIMIZERS[optimizer])
    return replace(config, seed=3)
