"""Devices: which one, in which precision its matrix products run, and how much memory it has free."""

import ctypes
import math
import sys
from collections.abc import Iterator
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor

from backstory.config import UserError, check_name, plural
from backstory.config.arguments import checked
from backstory.config.errors import shown
from backstory.storage.provenance import processor


@dataclass(frozen=True)
class Precision:
    """The dtype of matrix products and why; weights, sums and probabilities stay in float32."""

    dtype: torch.dtype
    reason: str
    native: bool = False
    """True if the weights are of this dtype too, so that nothing is cast."""

    @property
    def name(self) -> str:
        return str(self.dtype).removeprefix("torch.")

    def context(self, device: torch.device) -> AbstractContextManager:
        """Return the autocast context in which a model runs."""
        if self.native or self.dtype == torch.float32:
            return nullcontext()
        return torch.autocast(device.type, self.dtype)


@checked()
def choose_precision(precision: str, device: torch.device) -> Precision:
    """Resolve `auto`, `float32` or `bfloat16` for a device. Raises UserError for another."""
    check_name(precision, ("auto", "float32", "bfloat16"), "precision")
    if precision != "auto":
        return Precision(getattr(torch, precision), "requested")
    if device.type == "cuda":
        if torch.cuda.is_bf16_supported(including_emulation=False):
            return Precision(torch.bfloat16, "the GPU multiplies bfloat16 natively")
        return Precision(torch.float32, "the GPU has no native bfloat16")
    if torch.cpu._is_avx512_bf16_supported() or torch.cpu._is_amx_tile_supported():
        return Precision(torch.bfloat16, "the processor multiplies bfloat16 natively")
    return Precision(torch.float32, "the processor has no native bfloat16")


@checked()
def choose_device(name: str) -> torch.device:
    """Resolve `auto`, `cpu` or `cuda`. Raises UserError for a device that is not there."""
    # float32 means float32: recurrent layers on a GPU would take TF32, of 10 bits, and read a text differently in blocks
    # of different length.
    torch.backends.cudnn.rnn.fp32_precision = "ieee"  # type: ignore[attr-defined]
    if name == "auto":
        return torch.device("cuda" if torch.cuda.is_available() else "cpu")
    try:
        device = torch.device(name)
    except (RuntimeError, ValueError):
        raise UserError(f"unknown device {shown(name)}; use auto, cpu or cuda") from None
    if device.type not in ("cpu", "cuda") or (device.type == "cuda" and not torch.cuda.is_available()):
        raise UserError(f"device '{name}' is not available here; use auto or cpu")
    return device


def compute_dtype(tensor: Tensor) -> torch.dtype:
    """Return the dtype of matrix products with this tensor: autocast's if it is on, else the tensor's own."""
    kind = tensor.device.type
    autocast = torch.is_autocast_enabled(kind) and tensor.is_floating_point()
    return torch.get_autocast_dtype(kind) if autocast else tensor.dtype


def device_name(device: torch.device) -> str:
    """Return the device with its make: `cpu (AMD EPYC, 2 threads)`."""
    if device.type == "cuda":
        return f"cuda ({torch.cuda.get_device_name(device)})"
    threads = torch.get_num_threads()
    return f"cpu ({processor()}, {threads} {plural('thread', threads)})"


_TRIM_THRESHOLD, _TOP_PAD, _MMAP_MAX = -1, -2, -4


def keep_freed_memory() -> bool:
    """Keep freed memory in the process on Linux: a training step runs 1.2 to 1.9 times as fast. Return False elsewhere."""
    if not sys.platform.startswith("linux"):
        return False
    try:
        mallopt = ctypes.CDLL(None).mallopt
    except (OSError, AttributeError):
        return False
    return all([mallopt(_MMAP_MAX, 0), mallopt(_TRIM_THRESHOLD, 2**31 - 1), mallopt(_TOP_PAD, 64 << 20)])


def available(device: torch.device, proc: Path = Path("/proc"), groups: Path = Path("/sys/fs/cgroup")) -> int | None:
    """Return the bytes that can still be allocated on the device; None if unknown, as on a CPU without Linux."""
    if device.type == "cuda":
        # The system counts memory that PyTorch holds and does not use as taken.
        unused = torch.cuda.memory_reserved(device) - torch.cuda.memory_allocated(device)
        return torch.cuda.mem_get_info(device)[0] + unused
    if not sys.platform.startswith("linux"):
        return None
    left = [1024 * kibibytes for kibibytes in _fields(proc / "meminfo", "MemAvailable:")]
    return min([*left, *_left_in_groups(proc, groups), *_left_to_process(proc)], default=None)


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
