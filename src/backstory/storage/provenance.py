"""Provenance of a result: settings, seed, commit, versions, device, precision and why, and time."""

import os
import platform
import shlex
import subprocess
import sys
from datetime import UTC, datetime
from functools import cache
from importlib import metadata
from pathlib import Path

from backstory.storage.atomic import check_replaceable, check_writable
from backstory.storage.documents import parse
from backstory.storage.run_files import RESULT, check_outside_runs
from backstory.utils.errors import UserError
from backstory.utils.process import world
from backstory.utils.small_file import read_small

SCHEMA = 1


def versions() -> dict[str, str]:
    """Return the versions that figures depend on."""
    versions = {"python": platform.python_version()}
    for name in ("backstory", "torch", "numpy"):
        try:
            versions[name] = metadata.version(name)
        except metadata.PackageNotFoundError:
            versions[name] = "unknown"
    return versions


@cache
def commit() -> str | None:
    """Return the commit of the checkout that this package runs from, with `+changes` if its code is edited, or None.

    The first answer stands: what is committed while a process runs is not the code that it has loaded.
    """
    here = Path(__file__).resolve().parent.parent
    root = _git(here, "rev-parse", "--show-toplevel")
    # An installed copy inside another repository is not a checkout of this one.
    if root is None or (Path(root) / "src" / "backstory").resolve() != here:
        return None
    return commit_of(here)


def commit_of(package: Path) -> str | None:
    """Return the commit of the checkout that a package's folder lies in, with `+changes` if its code is edited, or None."""
    head = _git(package, "rev-parse", "--short=12", "HEAD")
    return head and head + ("+changes" if _git(package, "status", "--porcelain", "--", ".") else "")


def _git(folder: Path, *arguments: str) -> str | None:
    try:
        done = subprocess.run(["git", "-C", str(folder), *arguments], capture_output=True, timeout=10)
    except (OSError, subprocess.TimeoutExpired):
        return None
    return os.fsdecode(done.stdout).strip() if done.returncode == 0 else None  # a path may be in any encoding


def processor() -> str:
    """Return the system's name of the processor."""
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
        return next(line.split(":", 1)[1].strip() for line in lines if line.startswith("model name"))
    except (OSError, StopIteration):
        return platform.processor() or platform.machine()


def now() -> str:
    """Return the time in UTC, to the second."""
    return datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


def command() -> str | None:
    """Return the command line that is running; None inside another program or a notebook."""
    name, package = os.path.basename(sys.argv[0]), Path(__file__).resolve().parent.parent
    ours = name == "backstory" or Path(sys.argv[0]).resolve() == package / "__main__.py"
    started = world()
    start = ["backstory"] if started == 1 else ["torchrun", "--nproc-per-node", str(started), "-m", "backstory"]
    return shlex.join([*start, *sys.argv[1:]]) if ours else None


def check_place(folder: Path, kind: str, dry_run: bool = False) -> None:
    """Raise UserError, before the work, unless a result of this kind can be written into the folder.

    With `dry_run` the user need not be permitted to write.
    """
    check_outside_runs(folder)
    if not dry_run:
        check_writable(folder)
    check_replaceable(folder / RESULT, "another folder with --out")
    try:
        result = parse(read_small(folder / RESULT, inside=folder))
    except FileNotFoundError:
        return
    except OSError as error:
        raise UserError(
            f"{folder / RESULT} is in the way: {error.strerror}; move it, or choose another folder"
        ) from None
    except ValueError:  # damaged, which the new one mends
        return
    if isinstance(result, dict) and result.get("kind") != kind:
        what = f"holds a result of kind {result.get('kind')}, which would be lost"
        raise UserError(f"{folder / RESULT} {what}; choose another folder with --out")
