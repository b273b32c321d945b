"""Train a suite at its published sizes on a GPU that is available for minutes only, and carry its weights away.

    python benchmarks/full_size.py throughput --out full-size --data-dir data
    python benchmarks/full_size.py spend base --minutes 28 --only awd-lstm mos --out full-size --data-dir data
    python benchmarks/full_size.py unpack full-size/awd-lstm-seed141 --out runs/awd-lstm

`throughput` trains 1, 2, 4 and 8 models of one recipe in parallel. `spend` does so first, and reproduces the suite at its
full scale in the remaining time, with the number of processes that had the highest total speed (`gpu.py` runs the CUDA
tests). `pack` writes a run in parts of at most 15 MB, with its weights in bfloat16 and without the state for resuming.
`unpack` restores a run from the parts, with the rounded weights in float32.
"""

import argparse
import hashlib
import io
import json
import statistics
import subprocess
import sys
import tarfile
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from figures import write

if TYPE_CHECKING:
    import torch

PART = 15 * 2**20
"""Size of a part in bytes."""
HASH = "parts.sha256"
SETTLED = 0.4
"""Share of a training's log lines left out of its speed: start, compilation and warm-up."""
ONE_LENGTH = ("--training.short-probability", "0", "--training.segment-deviation", "0")
"""Settings of those trainings: a GPU records the steps of each length first."""
READING_SHARE = 0.25
"""Share of the time reserved for readings, validation of the last epoch, and packing."""


# --- a GPU for some minutes ---


def spend(args: argparse.Namespace) -> None:
    """Run throughput, trainings and packing within the minutes. Finished work is always on disk."""
    started, out = time.monotonic(), args.out
    rows = measure(args)
    best = max(rows, key=lambda row: row["tokens_per_second"])["runs"]
    left = args.minutes - (time.monotonic() - started) / 60
    folder = out / "suite"
    runs = _planned_runs(args, folder, best)
    turns = -(-len(runs) // best)
    minutes = left * (1 - READING_SHARE) / turns
    if minutes <= 0:
        raise SystemExit(f"no time is left for trainings: {args.minutes:g} minutes were spent on throughput")
    print(f"{len(runs)} runs, {best} side by side, {minutes:.1f} minutes each", flush=True)
    _backstory([*_reproduce(args, folder, best), "--minutes", f"{minutes:.2f}"], check=False)
    for run in sorted((folder / "runs").iterdir()):
        if any((run / "checkpoints").glob("best-*")):
            pack(run, out / run.name)


def _planned_runs(args: argparse.Namespace, folder: Path, processes: int) -> list[str]:
    """Return the names of the suite's runs."""
    text = _backstory([*_reproduce(args, folder, processes), "--dry-run"], capture=True)
    return [line.split()[0] for line in text.splitlines() if line.startswith("  ")]


def _reproduce(args: argparse.Namespace, folder: Path, processes: int) -> list[str]:
    only = ["--only", *args.only] if args.only else []
    places = ["--data-dir", str(args.data_dir)] if args.data_dir else []
    options = ["--scale", args.scale, "--out", str(folder), "--processes", str(processes)]
    return ["reproduce", args.suite, *options, *only, *places]


def _backstory(arguments: Sequence[str], capture: bool = False, check: bool = True) -> str:
    """Run the command line in a process of its own. Return its output if captured."""
    command = [sys.executable, "-m", "backstory", *arguments]
    return subprocess.run(command, check=check, stdout=subprocess.PIPE if capture else None, text=True).stdout or ""


def measure(args: argparse.Namespace) -> list[dict[str, int]]:
    """Measure the throughput, print its table and write it to `benchmark-side-by-side.json`."""
    args.out.mkdir(parents=True, exist_ok=True)
    rows = throughput(args.recipe, args.side_by_side, args.steps, args.data_dir, args.settings)
    write(args.out / "benchmark-side-by-side.json", "side by side", args.device, recipe=args.recipe, rows=rows)
    print(_table(rows), flush=True)
    return rows


def throughput(
    recipe: str, counts: Sequence[int], steps: int, data_dir: Path | None, settings: Sequence[str] = ()
) -> list[dict[str, int]]:
    """Train k models of a recipe in parallel for some steps, for each k. Return their total tokens per second."""
    rows = []
    for count in counts:
        with tempfile.TemporaryDirectory() as place:
            folders = [Path(place) / f"run{index}" for index in range(count)]
            places = ["--data-dir", str(data_dir)] if data_dir else []
            options = ["--training.steps", str(steps), *ONE_LENGTH, *settings, *places]
            train = [sys.executable, "-m", "backstory", "train", recipe, *options]
            commands = [[*train, "--seed", str(seed), "--out", str(folder)] for seed, folder in enumerate(folders)]
            with tempfile.TemporaryFile("w+") as log:
                started = [subprocess.Popen(c, stdout=log, stderr=log, text=True) for c in commands]
                failed = [process for process in started if process.wait() != 0]
                log.seek(0)
                if failed:
                    print(f"{count} side by side: {log.read().strip().splitlines()[-1]}", flush=True)
                    break
            speeds = [_speed(folder / "metrics.jsonl") for folder in folders]
        rows.append(
            {"runs": count, "tokens_per_second": round(sum(speeds)), "of_one": round(statistics.median(speeds))}
        )
    if not rows:
        raise SystemExit(f"not even one training of {recipe} ran")
    return rows


def _speed(metrics: Path) -> float:
    """Return the median tokens per second of a training once it has settled."""
    events = [json.loads(line) for line in metrics.read_text().splitlines()]
    speeds = [event["tokens_per_second"] for event in events if event["event"] == "steps"]
    return statistics.median(speeds[int(SETTLED * len(speeds)) :])


def _table(rows: Sequence[dict[str, int]]) -> str:
    lines = [f"{row['runs']:>12} {row['tokens_per_second']:>18,} {row['of_one']:>12,}" for row in rows]
    return "\n".join(["side by side  tokens/s together  tokens/s each", *lines])


# --- weights to carry ---


def pack(run: Path, out: Path) -> list[Path]:
    """Write a run in parts of at most 15 MB: settings, log, results, readers, and its best weights in bfloat16."""
    import torch

    from backstory.runs.run import BEST
    from backstory.storage.checkpoint import newest_checkpoint, write_checkpoint

    best = newest_checkpoint(run / "checkpoints", BEST)
    if best is None:
        raise SystemExit(f"{run} has no checkpoint with its best weights")
    rounded = _cast(best.tensors, torch.float32, torch.bfloat16)
    packed = io.BytesIO()
    with tempfile.TemporaryDirectory() as place, tarfile.open(fileobj=packed, mode="w:xz") as archive:
        archive.add(
            write_checkpoint(Path(place), best.path.name, rounded, best.documents), f"checkpoints/{best.path.name}"
        )
        for path in sorted(run.iterdir()):
            if path.name not in ("checkpoints", "tensorboard") and not path.name.startswith("."):
                archive.add(path, path.name)
    content = packed.getvalue()
    out.mkdir(parents=True, exist_ok=True)
    parts = []
    for number, start in enumerate(range(0, len(content), PART), 1):
        parts.append(out / f"part-{number:02}")
        parts[-1].write_bytes(content[start : start + PART])
    (out / HASH).write_text(hashlib.sha256(content).hexdigest() + "\n")
    return parts


def unpack(folder: Path, out: Path) -> Path:
    """Restore a run from its parts, after checking the hash of the whole."""
    import torch

    from backstory.storage.checkpoint import read_checkpoint, write_checkpoint

    if out.exists():
        raise SystemExit(f"{out} is there already; choose another folder with --out")
    content = b"".join(path.read_bytes() for path in sorted(folder.glob("part-*")))
    if hashlib.sha256(content).hexdigest() != (folder / HASH).read_text().strip():
        raise SystemExit(f"the parts in {folder} are not those that were packed; copy all of them again")
    with tarfile.open(fileobj=io.BytesIO(content)) as archive:
        archive.extractall(out, filter="data")
    for path in list((out / "checkpoints").iterdir()):
        saved = read_checkpoint(path)
        tensors = _cast(saved.tensors, torch.bfloat16, torch.float32)
        write_checkpoint(path.parent, path.name, tensors, saved.documents)
    return out


def _cast(
    files: "dict[str, dict[str, torch.Tensor]]", present: "torch.dtype", wanted: "torch.dtype"
) -> "dict[str, dict[str, torch.Tensor]]":
    """Return the tensors of a checkpoint by file, converting those of one type to another."""
    return {
        file: {name: t.to(wanted) if t.dtype == present else t for name, t in tensors.items()}
        for file, tensors in files.items()
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    verbs = parser.add_subparsers(dest="verb", required=True)
    spending = verbs.add_parser("spend", help="throughput, trainings, packing")
    spending.add_argument("suite", help="a suite, or a YAML file")
    spending.add_argument("--minutes", type=float, required=True, help="all of the time")
    spending.add_argument("--out", type=Path, required=True)
    spending.add_argument("--scale", default="full")
    spending.add_argument("--only", nargs="*", default=[], help="systems of the suite")
    measuring = verbs.add_parser("throughput", help="some models in parallel, for some steps")
    measuring.add_argument("--out", type=Path, required=True)
    for verb in (spending, measuring):
        verb.add_argument("--recipe", default="ptb-awd-lstm", help="trained side by side to measure throughput")
        verb.add_argument("--side-by-side", type=int, nargs="+", default=[1, 2, 4, 8])
        verb.add_argument("--steps", type=int, default=150, help="of each of those trainings")
        verb.add_argument("--settings", nargs="*", default=[], help="more flags of those trainings, after a --")
        verb.add_argument("--device", default="cuda", help="named in the result")
        verb.add_argument("--data-dir", type=Path)
    packing = verbs.add_parser("pack", help="a run as parts of at most 15 MB")
    unpacking = verbs.add_parser("unpack", help="a run of its parts")
    for verb in (packing, unpacking):
        verb.add_argument("folder", type=Path)
        verb.add_argument("--out", type=Path, required=True)
    args = parser.parse_args()
    if args.verb == "spend":
        spend(args)
    elif args.verb == "throughput":
        measure(args)
    elif args.verb == "pack":
        print(*pack(args.folder, args.out), sep="\n")
    else:
        print(unpack(args.folder, args.out))


if __name__ == "__main__":
    main()
