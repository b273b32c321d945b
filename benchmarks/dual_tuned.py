"""The dual connection with searched settings: nine searches of equally many trials, then the suite that uses them.

    python benchmarks/dual_tuned.py [--trials 12] [--epochs 3] [--modules lstm dlstm mdlstm] [--seeds 1 2 3] [--dry-run]

Learning rate and dropouts are searched for each recurrent module plain, with the connection, and with the control, all alike.
Every search and the suite go on where they stopped if the command is given again. Flags after `--` go to all searches.
"""

import argparse
import shlex
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import yaml

SUITE = Path(__file__).with_suffix(".yaml")
FOLDER = Path("runs", "dual-tuned")
MODULES = {
    "lstm": ["ptb-small-dual", "--model.core.layers", "1"],
    "dlstm": ["ptb-small-dual"],
    "mdlstm": ["ptb-small-mogrifier"],
}
"""Recipe of each recurrent module, with the flags that it takes."""
CONNECTIONS = {
    "{}": ["--model.dual.kind", "none"],
    "dual-{}": ["--model.dual.kind", "dual"],
    "{}-plus": ["--model.dual.kind", "dual", "--model.dual.no-direct"],
}
"""The module alone, with the connection, and with the control: the name of the search, and its flags."""
SCHEDULE = ["--training.schedule", "cosine", "--training.decay-epochs"]
"""The decay of all, whatever the epochs."""


def searches(modules: Sequence[str], trials: int, epochs: int, further: Sequence[str] = ()) -> dict[str, list[str]]:
    """Return the arguments of `backstory` for each search, by its name."""
    shared = ["--space", "dual-dropout", "--trials", str(trials), "--training.epochs", str(epochs), *SCHEDULE, *further]
    return {
        (name := connection.format(module)): [
            "sweep", "run", *MODULES[module], *shared, *flags, "--out", str(FOLDER / name)
        ]
        for module in modules
        for connection, flags in CONNECTIONS.items()
    }  # fmt: skip


def suite(modules: Sequence[str]) -> Path:
    """Return the suite, or a copy with the systems and claims of some modules, which needs their searches alone."""
    if set(modules) == set(MODULES):
        return SUITE
    entries = yaml.safe_load(SUITE.read_text(encoding="utf-8"))
    systems = [s for s in entries["systems"] if s["name"].removeprefix("dual-").partition("-")[0] in modules]
    names = {system["name"] for system in systems}
    claims = [c for c in entries["claims"] if {c["better"]["system"], c["than"]["system"]} <= names]
    path = FOLDER / f"{'-'.join(modules)}.yaml"
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(yaml.safe_dump(entries | {"systems": systems, "claims": claims}, sort_keys=False), encoding="utf-8")
    return path


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--trials", type=int, default=12)
    parser.add_argument("--epochs", type=int, default=3)
    parser.add_argument("--modules", nargs="+", choices=MODULES, default=list(MODULES))
    parser.add_argument("--seeds", nargs="+", type=int, default=[], help="only these seeds of the suite")
    parser.add_argument("--data-dir", type=Path)
    parser.add_argument("--dry-run", action="store_true", help="print the commands only")
    own, further = sys.argv[1:], []
    if "--" in own:
        own, further = own[: own.index("--")], own[own.index("--") + 1 :]
    args = parser.parse_args(own)
    data = ["--data-dir", str(args.data_dir)] if args.data_dir else []
    planned = suite(args.modules)
    last = [
        "reproduce",
        str(planned),
        "--out",
        str(FOLDER / ("suite" if planned == SUITE else f"suite-{planned.stem}")),
    ]
    last += ["--seeds", *map(str, args.seeds)] if args.seeds else []
    for command in [*searches(args.modules, args.trials, args.epochs, further).values(), last]:
        print("backstory", shlex.join([*command, *data]), flush=True)
        if not args.dry_run and (
            code := subprocess.run([sys.executable, "-m", "backstory", *command, *data]).returncode
        ):
            raise SystemExit(code)


if __name__ == "__main__":
    main()
