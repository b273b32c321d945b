"""Count our functions on the path from `evaluate` or `train` to the first block of text.

    OMP_NUM_THREADS=1 python benchmarks/walk.py [evaluate | train] [--depth 2] [--list]

The walk counts each function or method of ours that is called up to `depth` calls below the top-level function (1: the
functions that it calls directly), up to the model's first prediction, on a small LSTM run that the script trains.
Generated methods (of dataclasses) and comprehensions do not count, nor do the checks of arguments
(`backstory.utils.arguments`), which call the function itself. Rooms are the subpackages of these functions. `climbs`
are calls, at any depth, into the module of a core or part that the model does not have. The limits are 25 calls at
depth 1, and no climb.
"""

import argparse
import sys
import tempfile
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from types import FrameType
from typing import Any

import backstory
from backstory.config import EmbeddingConfig, LSTMConfig, ModelConfig, RunConfig, TextConfig, TrainingConfig
from backstory.models import ComposedModel

PACKAGE = Path(backstory.__file__).parent
SKIPPED = ("utils/arguments.py",)
OTHER_PARTS = ("external_memory", "trellis", "transformer", "span_buffer", "auxiliary", "memory")
"""Modules under `models` of parts that the LSTM run does not have."""


class FirstBlock(Exception):
    """Raised when the first block is reached."""


@dataclass
class Walk:
    """The functions called in a run, in the order of their first calls."""

    calls: dict[tuple[str, str], int] = field(default_factory=dict)
    """Depth of each function, by its file and name."""
    climbs: list[str] = field(default_factory=list)

    @property
    def rooms(self) -> list[str]:
        return sorted({file.split("/")[0].removesuffix(".py") for file, _ in self.calls})

    def follow(self, function: Callable[[], Any], depth: int) -> None:
        """Call the function and record its calls of our functions, up to the model's first prediction."""
        depths: dict[FrameType, int] = {}

        def profile(frame: FrameType, event: str, argument: object) -> None:
            if event != "call":
                return
            code = frame.f_code
            if code is ComposedModel.forward.__code__:
                raise FirstBlock
            if not code.co_filename.startswith(str(PACKAGE)) or code.co_name.startswith("<"):
                return
            file = Path(code.co_filename).relative_to(PACKAGE).as_posix()
            if file in SKIPPED:
                return
            level, caller = 0, frame.f_back
            while caller is not None:
                if caller in depths:
                    level = depths[caller] + 1
                    break
                caller = caller.f_back
            depths[frame] = level
            if file.startswith("models/") and any(part in file for part in OTHER_PARTS):
                self.climbs.append(f"{file}: {code.co_qualname}")
            if level <= depth:
                self.calls.setdefault((file, code.co_qualname), level)

        sys.setprofile(profile)
        try:
            function()
        except FirstBlock:
            pass
        finally:
            sys.setprofile(None)


def small_config(folder: Path) -> RunConfig:
    """Write a text, and return the settings of an LSTM that trains on it in a second."""
    for split in ("train", "valid", "test"):
        (folder / f"{split}.txt").write_text(
            f"the {split} cat sat on the mat and the dog saw it\n" * 40, encoding="utf-8"
        )
    model = ModelConfig(embedding=EmbeddingConfig(size=8), core=LSTMConfig(layers=1, hidden=8))
    training = TrainingConfig(epochs=1, batch_size=2, segment=10, device="cpu", precision="float32")
    return RunConfig(text=TextConfig(corpus=str(folder)), model=model, training=training)


def walk(verb: str, depth: int) -> Walk:
    """Follow a verb on a small LSTM run."""
    from backstory.evaluation.evaluation import evaluate
    from backstory.training.fit import train

    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(temporary)
        (folder / "corpus").mkdir()
        config = small_config(folder / "corpus")
        found = Walk()
        if verb == "evaluate":
            train(config, folder / "run")
            found.follow(lambda: evaluate(folder / "run", device="cpu"), depth)
        else:
            found.follow(lambda: train(config, folder / "run"), depth)
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("verbs", nargs="*", default=["evaluate", "train"], help="evaluate, train")
    parser.add_argument("--depth", type=int, default=1)
    parser.add_argument("--list", action="store_true")
    given = parser.parse_args()
    for verb in given.verbs:
        found = walk(verb, given.depth)
        print(f"{verb}: {len(found.calls)} calls in {len(found.rooms)} rooms ({', '.join(found.rooms)})")
        print(f"  {len(found.climbs)} climbs into parts that the model does not have", *found.climbs, sep="\n    ")
        if given.list:
            for (file, name), level in found.calls.items():
                print(f"  {'  ' * level}{name}  {file}")


if __name__ == "__main__":
    main()
