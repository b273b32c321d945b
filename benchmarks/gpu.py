"""Run everything that needs a GPU within some minutes: the CUDA tests first, then the benchmarks.

    python benchmarks/gpu.py --minutes 9 --out gpu [--wheels wheels] [--data-dir data]
    python benchmarks/gpu.py --minutes 9 --out dry --dry

Each step is a process with a time limit of its own, and its log and figures are on disk before the next one starts:
`summary.txt` has a line for each step, and `gpu.tar.gz` holds all files. Trainings side by side share the GPU through
NVIDIA's MPS server if the driver has it. Nothing is installed, and no network is needed: missing packages can be supplied as
pure-Python wheels in a folder. `--dry` runs the same steps on a CPU at their smallest sizes, where the tests are skipped. This
file needs only Python.
"""

import argparse
import importlib.util
import os
import shlex
import shutil
import signal
import subprocess
import sys
import tarfile
import tempfile
import time
import zipfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
NEEDED = (
    "filelock", "hypothesis", "jinja2", "matplotlib", "numpy", "pytest", "pytest_timeout", "rich", "safetensors", "torch",
    "transformers", "tyro", "yaml",
)  # fmt: skip
TEST_SECONDS = 90
"""Time limit of one test."""
WORKERS = 14
"""Number of processes that run tests in parallel on the GPU."""
RECIPES = ("ptb-small", "ptb-awd-lstm", "ptb-mos", "wikitext-2-awd-lstm", "ptb-dual-mogrifier", "ptb-awd-lstm-snb")
SUITES = {
    "large": "regularized-lstm --scale full --only lstm-1500 --seeds 1",
    "base": "base --processes 10",
    "wikitext-2": "wikitext-2 --only lstm dual-lstm dlstm dual-dlstm --seeds 1 2 3 --processes 6",
}
"""Suites that are reproduced, each with its options; the one with the largest model first."""
SAVING_SECONDS = 20
"""Seconds that a stopped step has to save its work."""
LEAST = 10
"""Remaining seconds below which no step is started."""
MPS_SERVER = "nvidia-cuda-mps-control"
MPS_FOLDERS = ("/usr/local/nvidia/bin", "/usr/local/cuda/bin", "/usr/bin")
"""Where it is, if not in one of the folders for programs."""
NOT_COLLECTED = (2, 3, 4)
"""Exit codes of pytest that say nothing about the tests."""
MACHINE = "import platform, torch; print(platform.python_version(), torch.__version__, torch.cuda.is_available())"


@dataclass(frozen=True)
class Step:
    """A command with its time limit; OUT in it is the folder for its files."""

    name: str
    seconds: float
    command: tuple[str, ...]
    shares: bool = False
    """Its processes share the GPU."""


def steps(dry: bool, data_dir: Path | None) -> list[Step]:
    """Return the steps, the most important first."""
    python, device = sys.executable, "cpu" if dry else "cuda"
    recipes = RECIPES[:1] if dry else RECIPES  # published sizes take minutes on a CPU
    profiled = ("ptb-small",) if dry else ("ptb-awd-lstm", "ptb-small", "ptb-lstm-1500")
    buffers = ("--buffers", "256", "2048", "16384")
    corpora = None if dry or data_dir is None else data_dir.resolve()

    def benchmark(name: str, seconds: float, *options: str, small: Sequence[str] = ()) -> Step:
        out = ("--device", device, "--out", f"OUT/benchmark-{name.replace('_', '-')}-{device}.json")
        return Step(name, seconds, (python, f"benchmarks/{name}.py", *(small if dry else options), *out))

    return [
        Step("machine", 30, (python, "-c", MACHINE)),
        Step("nvidia-smi", 20, ("nvidia-smi",)),
        Step("tests", 120, tests()),
        *([] if corpora is None else trainings(corpora)),
        Step(
            "profile", 60, (python, "benchmarks/step_profile.py", *profiled, "--device", device, "--out", "OUT/profile")
        ),
        benchmark("training", 80, small=("--sizes", "S", "--steps", "1", "--precisions", "float32")),
        Step(
            "recipes",
            100,
            (python, "-m", "backstory", "benchmark", "--device", device, "--json", "--recipes", *recipes),
        ),
        benchmark("reading", 60, small=("--sizes", "S", "--blocks", "1", "--readers", "static", "dynamic-5")),
        benchmark("context", 60, small=("--sizes", "S", "--turns", "1", "--targets", "4", "--tokens", "20")),
        benchmark("cores", 60, small=("--turns", "2", "--precision", "float32")),
        benchmark("span_buffer", 70, *buffers, small=("--size", "S", "--buffers", "64", "--steps", "1")),
        scaling(dry),
        *([] if corpora is None else [rest_of_time(corpora)]),
    ]


def trainings(data_dir: Path) -> list[Step]:
    """Return the steps that measure the speed of trainings side by side, and reproduce suites."""
    return [throughput(data_dir), suites(data_dir)]


def suites(data_dir: Path) -> Step:
    """Return the step that reproduces suites, all at once, and keeps their folders without weights in `suites.tar.gz`.

    The first has the GPU before the others. Runs that were not finished are left out. Where the archive is unpacked, the
    same commands take over the finished runs, train the others, and write the result.
    """
    reproduce = f"{shlex.quote(sys.executable)} -m backstory reproduce --data-dir {shlex.quote(str(data_dir))}"
    lines = ["trap : TERM", "mkdir OUT/../suites", "cd OUT/../suites"]  # a stop waits until each suite is saved
    for rank, (name, options) in enumerate(SUITES.items()):
        lines.append(f"CUDA_MPS_CLIENT_PRIORITY={min(rank, 1)} {reproduce} {options} --out {name} > {name}.txt 2>&1 &")
    lines += [
        "wait",
        "wait",
        "tail -n 1 *.txt",
        'for run in */runs/*; do grep -q "^${run##*/}: done" ${run%%/*}.txt || rm -r $run; done',
        "cd ..",
        "tar --exclude=checkpoints -czf OUT/suites.tar.gz suites",
    ]
    return Step("suites", 480, ("bash", "-c", "\n".join(lines)), shares=True)


def rest_of_time(data_dir: Path) -> Step:
    """Return the step that trains an AWD-LSTM of the published size in the minutes that are left."""
    spend = ("spend", "base", "--minutes", "MINUTES", "--only", "awd-lstm", "--out", "OUT/full-size")
    command = (sys.executable, "benchmarks/full_size.py", *spend, "--data-dir", str(data_dir))
    return Step("full-size", 3600, command, True)


def throughput(data_dir: Path) -> Step:
    """Return the step that measures models of one recipe side by side."""
    options = ("throughput", "--out", "OUT", "--data-dir", str(data_dir))
    return Step("side-by-side", 90, (sys.executable, "benchmarks/full_size.py", *options), shares=True)


def scaling(dry: bool) -> Step:
    """Return the step that trains on several cores of the GPU's machine."""
    cores = ("2",) if dry else ("4", "16")
    options = ("--sizes", "S", "--steps", "2") if dry else ("--sizes", "S", "P", "--steps", "7")
    out = ("--out", "OUT/benchmark-scaling-cores.json")
    return Step("scaling", 120, (sys.executable, "benchmarks/scaling.py", "--cores", *cores, *options, *out))


def tests(*options: str) -> tuple[str, ...]:
    """Return the command for the tests that need a GPU. It ignores pytest plugins that the machine happens to have."""
    side_by_side = ["-p", "xdist.plugin", "-n", str(WORKERS)] if importlib.util.find_spec("xdist") else []
    plugins = ["-p", "pytest_timeout", "-p", "no:cacheprovider", *side_by_side]
    limit = [f"--timeout={TEST_SECONDS}", "-ra", "--tb=short", "--durations=20"]
    return (sys.executable, "-m", "pytest", *plugins, *limit, *options, *cuda_tests())


def cuda_tests() -> list[str]:
    """Return the tests that need a GPU, as arguments of pytest in the repository's root."""
    files = [str(path.relative_to(ROOT)) for path in sorted(ROOT.glob("tests/*/test_*_cuda.py"))]
    return [*files, "tests/interop/test_hf_loading.py::test_a_device_map_reads_the_same"]


# --- running them ---


def missing(environment: dict[str, str]) -> list[str]:
    """Return the packages that cannot be found."""
    program = f"import importlib.util as u; print(*[n for n in {NEEDED!r} if u.find_spec(n) is None])"
    return subprocess.run(
        [sys.executable, "-c", program], env=environment, capture_output=True, text=True, check=True
    ).stdout.split()


def unpacked(wheels: Path, out: Path) -> Path:
    """Unpack pure-Python wheels into a folder from which they can be imported."""
    for wheel in sorted(wheels.glob("*.whl")):
        with zipfile.ZipFile(wheel) as archive:
            archive.extractall(out)
    return out


@contextmanager
def shared_gpu(folder: Path) -> Iterator[dict[str, str]]:
    """Run NVIDIA's MPS server, with which processes compute on a GPU at once. Yield their variables, none without it."""
    folders = os.pathsep.join([os.environ.get("PATH", ""), *MPS_FOLDERS])
    pipes = {"CUDA_MPS_PIPE_DIRECTORY": str(folder / "pipes"), "CUDA_MPS_LOG_DIRECTORY": str(folder / "logs")}
    server = shutil.which(MPS_SERVER, path=folders)
    for path in pipes.values():
        Path(path).mkdir(parents=True)
    if server is None or subprocess.run([server, "-d"], env=os.environ | pipes, check=False).returncode != 0:
        yield {}
        return
    try:
        yield pipes
    finally:
        subprocess.run([server], input="quit\n", text=True, env=os.environ | pipes, check=False, capture_output=True)


def run(step: Step, out: Path, seconds: float, environment: dict[str, str]) -> tuple[int | None, float]:
    """Run a step with its output in `NAME.txt`. Return its exit code (None if the time ran out) and its duration.

    Its processes form a group, which is killed when it ends.
    """
    started = time.monotonic()
    command = [part.replace("OUT", str(out)).replace("MINUTES", f"{0.9 * seconds / 60:.2f}") for part in step.command]
    with (out / f"{step.name}.txt").open("w") as log:
        try:
            process = subprocess.Popen(
                command, cwd=ROOT, env=environment, stdout=log, stderr=subprocess.STDOUT, start_new_session=True
            )
        except OSError as error:
            log.write(f"{error}\n")
            return 127, 0.0
        code: int | None = None
        for wait, ending in ((seconds, signal.SIGTERM), (SAVING_SECONDS, signal.SIGKILL)):
            try:
                done = process.wait(wait)
                code = done if ending == signal.SIGTERM else None
                break
            except subprocess.TimeoutExpired:
                _end(process.pid, ending)
        _end(process.pid, signal.SIGKILL)  # processes that it left behind
        process.wait()
    return code, time.monotonic() - started


def failures(log: Path) -> list[str]:
    """Return the lines in which pytest names failures; none for a skipped step."""
    lines = log.read_text(errors="replace").splitlines() if log.exists() else []
    return [f"  {line[:200]}" for line in lines if line.startswith(("FAILED ", "ERROR "))][:40]


def _end(group: int, ending: signal.Signals) -> None:
    try:
        os.killpg(group, ending)
    except ProcessLookupError:
        return


def pack(folder: Path, out: Path) -> None:
    """Write all files of a folder into `gpu.tar.gz`, whole or not at all."""
    with tarfile.open(out / "gpu.tar.gz.part", "w:gz") as archive:
        archive.add(folder, "gpu")
    (out / "gpu.tar.gz.part").replace(out / "gpu.tar.gz")


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--minutes", type=float, required=True, help="all of the time")
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--wheels", type=Path, help="folder of pure-Python wheels that the machine lacks")
    parser.add_argument(
        "--data-dir", type=Path, help="corpora; the minutes that are left train models of published sizes"
    )
    parser.add_argument("--only", nargs="+", help="names of steps; all by default")
    parser.add_argument("--dry", action="store_true", help="on a CPU, in the smallest sizes")
    args = parser.parse_args()
    end = time.monotonic() + 60 * args.minutes
    args.out.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory() as place, shared_gpu(Path(place) / "mps") as side_by_side:
        folder = Path(place) / "gpu"
        folder.mkdir()
        site = [] if args.wheels is None else [str(unpacked(args.wheels, Path(place) / "site"))]
        paths = [str(ROOT / "src"), *site, os.environ.get("PYTHONPATH", "")]
        environment = os.environ | {
            "PYTHONPATH": os.pathsep.join(filter(None, paths)),
            "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1",
            "PYTHONUNBUFFERED": "1",
            "HF_HUB_OFFLINE": "1",
            "MPLBACKEND": "agg",
        }
        if lacking := missing(environment):
            print(f"this machine lacks {', '.join(lacking)}: bring them as wheels with --wheels", flush=True)
            return 2
        (args.out / "summary.txt").write_text("")
        left = [step for step in steps(args.dry, args.data_dir) if args.only is None or step.name in args.only]
        while left:
            step = left.pop(0)
            seconds = min(step.seconds, end - time.monotonic())
            if seconds < LEAST:
                line = f"{step.name:<12} left out: no time"
            else:
                variables = environment | (side_by_side if step.shares else {})
                code, took = run(step, folder, seconds, variables)
                ended = "stopped at its limit" if code is None else f"exit code {code}"
                last = (folder / f"{step.name}.txt").read_text(errors="replace").strip().splitlines()[-1:]
                line = f"{step.name:<12} {took:>6.0f} s  {ended:<21} {''.join(last)[:150]}"
                if step.name == "tests" and code in NOT_COLLECTED:  # a warning of this machine's packages, perhaps
                    left.insert(0, Step("tests-lenient", step.seconds, tests("-W", "default")))
            print(line, *failures(folder / f"{step.name}.txt"), sep="\n", flush=True)
            with (args.out / "summary.txt").open("a") as summary:
                summary.write(line + "\n")
            shutil.copy(args.out / "summary.txt", folder)
            pack(folder, args.out)
    return 0


if __name__ == "__main__":
    sys.exit(main())
