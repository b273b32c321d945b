"""Devices: which one, in which precision its matrix products run, and how much memory it has free."""

import ctypes
import sys
from collections.abc import Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager, nullcontext
from dataclasses import dataclass
from typing import TypeVar

import torch
from torch import Tensor

from backstory.storage.provenance import processor
from backstory.utils.arguments import checked
from backstory.utils.errors import UserError, check_name, plural, shown
from backstory.utils.free_memory import available_memory

T = TypeVar("T")


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


@contextmanager
def unaffected() -> Iterator[None]:
    """Run the block outside of its caller's autocast, `no_grad`, `inference_mode` and default device.

    The first three change what is computed. With `torch.set_default_device("cuda")`, tensors that belong on the CPU would
    be on the GPU.
    """
    with ExitStack() as stack:
        if torch.get_default_device().type != "cpu":
            stack.enter_context(torch.device("cpu"))
        stack.enter_context(torch.inference_mode(False))
        stack.enter_context(torch.enable_grad())
        for kind in ("cpu", "cuda"):
            if torch.is_autocast_enabled(kind):
                stack.enter_context(torch.autocast(kind, enabled=False))
        yield


def each_unaffected(items: Iterator[T], threads: int) -> Iterator[T]:
    """Yield items that are computed lazily, each `unaffected` by its consumer and with so many threads."""
    while True:
        with unaffected(), restored_threads():
            torch.set_num_threads(threads)
            try:
                item = next(items)
            except StopIteration:
                return
        yield item


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


def exact_float32() -> None:
    """Make float32 products exact in this process from now on, whatever PyTorch settings it used before.

    By default recurrent and convolutional layers on a GPU take TF32, of 10 bits, and read a text differently in blocks of
    different length. Other models of the process are exact then too, and may be slower on a GPU; it may choose again after
    reading.
    """
    # PyTorch's older setting first: if it disagrees with the others, its getter raises an error.
    torch.backends.cudnn.allow_tf32 = False
    torch.backends.cudnn.conv.fp32_precision = torch.backends.cudnn.rnn.fp32_precision = "ieee"  # type: ignore[attr-defined]
    torch.set_float32_matmul_precision("highest")


@checked()
def choose_device(name: str) -> torch.device:
    """Resolve `auto`, `cpu`, `cuda` or `cuda:N`, which becomes CUDA's current device.

    Float32 is exact from then on (`exact_float32`). Raises UserError for a device that is not there.
    """
    exact_float32()
    if name == "auto":
        return torch.device("cuda" if torch.cuda.is_available() else "cpu")
    try:
        device = torch.device(name)
    except (RuntimeError, ValueError):
        raise UserError(f"unknown device {shown(name)}; use auto, cpu or cuda") from None
    if device.type not in ("cpu", "cuda") or (device.type == "cuda" and not torch.cuda.is_available()):
        raise UserError(f"device '{name}' is not available here; use auto or cpu")
    if device.type == "cuda" and device.index is not None:
        _use_gpu(device)
    return device


def _use_gpu(device: torch.device) -> None:
    """Make a GPU the current one, for what is allocated without a device. Raises UserError for one that is not there."""
    count = torch.cuda.device_count()
    if not 0 <= device.index < count:
        there = "cuda:0" if count == 1 else f"cuda:0 to cuda:{count - 1}"
        raise UserError(f"device '{device}' is not available here; use {there}")
    torch.cuda.set_device(device)


def compute_dtype(tensor: Tensor) -> torch.dtype:
    """Return the dtype of matrix products with this tensor: autocast's if it is on, else the tensor's own."""
    kind = tensor.device.type
    autocast = torch.is_autocast_enabled(kind) and tensor.is_floating_point()
    return torch.get_autocast_dtype(kind) if autocast else tensor.dtype


@contextmanager
def restored_threads() -> Iterator[None]:
    """Restore this process's number of threads after the block."""
    before = torch.get_num_threads()
    try:
        yield
    finally:
        torch.set_num_threads(before)


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


def available(device: torch.device) -> int | None:
    """Return the bytes that can still be allocated on the device; None if unknown, as on a CPU without Linux."""
    if device.type == "cuda":
        # The system counts PyTorch's unused cached memory as taken.
        unused = torch.cuda.memory_reserved(device) - torch.cuda.memory_allocated(device)
        return torch.cuda.mem_get_info(device)[0] + unused
    return available_memory()
