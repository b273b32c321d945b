"""Numbers from small fixed runs, to compare two versions of the code: `behaviour.py record FILE`, then `compare FILE`.

Trains a model of every core and memory on a fixed text, then evaluates with every reader, runs every experiment and every
explanation, continues a prompt and searches settings. `compare` runs all of it again and prints each number that differs in
any bit. The numbers depend on the machine and the build of PyTorch, so they are not kept in the repository.
"""

import json
import os
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from runs import sentences

from backstory.cli import main
from backstory.context.experiments import EXPERIMENTS
from backstory.readers.registry import READERS

SMALL = (
    "--training.epochs 2 --training.batch-size 4 --training.segment 12 --training.precision float32 --training.device cpu "
    "--model.embedding.size 12"
)
MEMORY = "--model.core.layers 12 --model.core.slots 8 --model.core.width 6"
MODELS = {
    "lstm": "--model.core.hidden 12 --model.core.layers 2",
    "mogrifier": "--model.core.kind mogrifier --model.core.hidden 12 --model.core.layers 1 --training.optimizer nadam "
    "--training.learning-rate 0.003 --training.averaging none --training.finetune-epochs 0",
    "dual": "--model.core.hidden 12 --model.core.layers 1 --model.dual.kind dual",
    "mixture": "--model.core.hidden 12 --model.core.layers 1 --model.head.kind mixture --model.head.experts 2",
    "transformer": "--model.core.kind transformer --model.core.hidden 12 --model.core.heads 2 --model.core.layers 2 "
    "--model.core.window 16",
    "trellis": "--model.core.kind trellis --model.core.levels 4 --model.core.hidden 16 --model.core.output 12",
    **{kind: f"--model.core.kind {kind} {MEMORY}" for kind in ("ntm", "dnc", "mdm")},
    "buffer": "--model.core.hidden 12 --model.core.layers 1 --model.buffer.kind span-buffer --model.buffer.size 32",
    "second": "--model.core.hidden 12 --model.core.layers 1 --model.buffer.kind auxiliary-softmax",
}
STACKS = (
    *(name for name in READERS if name not in ("shuffled-buffer", "mixture", "ensemble")),
    "ensemble:runs=mixture",
    "dynamic+cache",
    "ngram+ppm+mixture",
)
SKIPPED = {"seconds", "tokens_per_second"}
"""Keys of results that differ from run to run."""


def commands() -> Iterator[str]:
    """The command lines, in order."""
    for name, settings in MODELS.items():
        yield f"train demo --corpus text --out {name} {SMALL} {settings}"
        yield f"evaluate {name} --audit-seed 1"
    yield "reader statistics lstm"
    yield "reader tune lstm --reader cache --tokens 1500"
    yield "reader train lstm --skip 500 --training.stream 200 --training.streams 4 --training.steps 4"
    for reader in STACKS:
        yield f"evaluate lstm --reader {reader} --audit-seed 1"
    yield "evaluate buffer --reader shuffled-buffer --batch-size 4 --audit-seed 1"
    for name in ("transformer", "mdm", "buffer"):
        yield f"evaluate {name} --reader cache --audit-seed 1"
    for experiment in (name for name in EXPERIMENTS if name != "cache"):
        yield f"examine lstm --experiment {experiment} --targets 120"
    yield "examine lstm --experiment cache --reader cache --targets 120"
    yield "examine transformer --experiment truncate --targets 120"
    for explanation, name in (("surprisal", "lstm"), ("cache", "lstm"), ("buffer", "buffer"), ("memory", "mdm")):
        yield f"explain {explanation} {name} --at 300"
    yield "explain reading lstm --reader cache --against static"
    yield "generate lstm --prompt ann --tokens 40 --save"
    yield "compress text/valid.txt --model lstm --reader cache --out code.bks"
    yield f"train recall --out recall {SMALL} --model.core.hidden 12 --training.epochs 1"
    yield "evaluate recall --audit-seed 1"


def numbers(value: Any, path: str = "") -> Iterator[tuple[str, Any]]:
    """The plain values in a result, each with its path."""
    if isinstance(value, dict):
        for key, one in sorted(value.items()):
            if key not in SKIPPED:
                yield from numbers(one, f"{path}/{key}")
    elif isinstance(value, list):
        for index, one in enumerate(value):
            yield from numbers(one, f"{path}/{index}")
    else:
        yield path, value


def measured() -> dict[str, Any]:
    """Run all commands in an empty folder; return every number of every result that they wrote."""
    with tempfile.TemporaryDirectory() as folder:
        os.chdir(folder)
        Path("text").mkdir()
        for seed, (split, lines) in enumerate({"train": 600, "valid": 200, "test": 200}.items()):
            Path("text", f"{split}.txt").write_text(sentences(lines, seed), encoding="utf-8")
        found: dict[str, Any] = {}
        for command in commands():
            print(f"backstory {command}", file=sys.stderr, flush=True)
            if code := main.main(command.split()):
                sys.exit(f"exit code {code}")
        for path in sorted(Path().rglob("result.json")):
            figures = json.loads(path.read_text(encoding="utf-8"))["figures"]
            found |= {f"{path.parent}{place}": value for place, value in numbers(figures)}
        os.chdir("/")
    return found


if __name__ == "__main__":
    action, file = sys.argv[1], Path(sys.argv[2]).absolute()
    now = measured()
    if action == "record":
        file.write_text(json.dumps(now, indent=0), encoding="utf-8")
        print(f"{len(now):,} numbers", file=sys.stderr)
        sys.exit(0)
    before = json.loads(file.read_text(encoding="utf-8"))
    now = json.loads(json.dumps(now))
    different = [key for key in before.keys() | now.keys() if before.get(key) != now.get(key)]
    for key in sorted(different):
        print(f"{key}: {before.get(key, 'missing')} before, {now.get(key, 'missing')} now")
    print(f"{len(different):,} of {len(before):,} numbers differ", file=sys.stderr)
    sys.exit(bool(different))
