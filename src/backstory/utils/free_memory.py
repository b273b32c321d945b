"""The memory that this process can still take, as Linux tells it, and the files that it can open."""

import math
import sys
from collections.abc import Iterator
from pathlib import Path


def available_memory(proc: Path = Path("/proc"), groups: Path = Path("/sys/fs/cgroup")) -> int | None:
    """Return the bytes that can still be allocated; None if unknown, as without Linux."""
    if not sys.platform.startswith("linux"):
        return None
    left = [1024 * kibibytes for kibibytes in _fields(proc / "meminfo", "MemAvailable:")]
    return min([*left, *_left_in_groups(proc, groups), *_left_to_process(proc)], default=None)


def open_files() -> int | None:
    """Return the limit on the open files of this process (`ulimit -n`); None without one."""
    try:
        import resource
    except ImportError:  # Windows
        return None
    limit = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
    return None if limit == resource.RLIM_INFINITY else limit


def _left_to_process(proc: Path) -> Iterator[int]:
    """Yield the bytes left under the limits of this process (`ulimit -v`, `ulimit -d`)."""
    import resource

    for limit, used in ((resource.RLIMIT_AS, "VmSize:"), (resource.RLIMIT_DATA, "VmData:")):
        limit_bytes = resource.getrlimit(limit)[0]
        if limit_bytes != resource.RLIM_INFINITY:
            yield from (max(0, limit_bytes - 1024 * kibibytes) for kibibytes in _fields(proc / "self" / "status", used))


def _left_in_groups(proc: Path, groups: Path) -> Iterator[int]:
    """Yield the bytes left under the limit of each control group of this process; caches that it can drop count as free."""
    for line in _lines(proc / "self" / "cgroup"):
        _, controllers, path = line.split(":", 2)
        if controllers and "memory" not in controllers.split(","):
            continue
        root = groups / "memory" if controllers else groups
        first = root / path.strip("/")
        limit, usage, cache = (
            ("memory.limit_in_bytes", "memory.usage_in_bytes", "total_inactive_file")
            if controllers
            else ("memory.max", "memory.current", "inactive_file")
        )
        for folder in (first, *first.parents):
            bounds, used = _numbers(folder / limit), _numbers(folder / usage)
            if bounds and used:
                yield max(0, bounds[0] - used[0] + sum(_fields(folder / "memory.stat", cache)))
            if folder == root:
                break


def _fields(path: Path, name: str) -> list[int]:
    """Return the numbers after a name in a file of names and numbers."""
    return [int(parts[1]) for line in _lines(path) if (parts := line.split())[:1] == [name]]


def _numbers(path: Path) -> list[int]:
    return [int(line) for line in _lines(path) if line.isdecimal()]


def _lines(path: Path) -> list[str]:
    try:
        return path.read_text().splitlines()
    except OSError:
        return []


def shown_bytes(size: float) -> str:
    """Format a number of bytes: `1.5 GiB`."""
    power = min(max(0, int(math.log2(max(size, 1)) // 10)), 6)
    return f"{size / 1024**power:.3g} {('bytes', 'KiB', 'MiB', 'GiB', 'TiB', 'PiB', 'EiB')[power]}"
