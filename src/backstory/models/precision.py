"""Which precision matrix products run in: chosen once, with the reason, and applied through torch's autocast."""

from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass

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

    @property
    def name(self) -> str:
        return str(self.dtype).removeprefix("torch.")

    def context(self, device: torch.device) -> AbstractContextManager:
        """The autocast context in which a model runs."""
        if self.dtype == torch.float32:
            return nullcontext()
        return torch.autocast(device.type, self.dtype)


@checked()
def choose_precision(wanted: str, device: torch.device) -> Precision:
    """Resolve `auto`, `float32` or `bfloat16` for a device. Raises UserError for another."""
    check_name(wanted, ("auto", "float32", "bfloat16"), "precision")
    if wanted != "auto":
        return Precision(getattr(torch, wanted), "it was asked for")
    if device.type == "cuda":
        if torch.cuda.is_bf16_supported(including_emulation=False):
            return Precision(torch.bfloat16, "the GPU multiplies bfloat16 natively")
        return Precision(torch.float32, "the GPU has no native bfloat16")
    if torch.cpu._is_avx512_bf16_supported() or torch.cpu._is_amx_tile_supported():
        return Precision(torch.bfloat16, "the processor multiplies bfloat16 natively")
    return Precision(torch.float32, "the processor has no native bfloat16")


@checked()
def choose_device(wanted: str) -> torch.device:
    """Resolve `auto`, `cpu` or `cuda`. Raises UserError for a device that is not there."""
    # float32 means float32: recurrent layers on a GPU would take TF32, of 10 bits, and read a text differently in blocks
    # of different length.
    torch.backends.cudnn.rnn.fp32_precision = "ieee"  # type: ignore[attr-defined]
    if wanted == "auto":
        return torch.device("cuda" if torch.cuda.is_available() else "cpu")
    try:
        device = torch.device(wanted)
    except (RuntimeError, ValueError):
        raise UserError(f"unknown device {shown(wanted)}; use auto, cpu or cuda") from None
    if device.type not in ("cpu", "cuda") or (device.type == "cuda" and not torch.cuda.is_available()):
        raise UserError(f"device '{wanted}' is not available here; use auto or cpu")
    return device


def compute_dtype(tensor: Tensor) -> torch.dtype:
    """The dtype of matrix products with this tensor: autocast's where it is on, else the tensor's own."""
    kind = tensor.device.type
    return (
        torch.get_autocast_dtype(kind)
        if torch.is_autocast_enabled(kind) and tensor.is_floating_point()
        else tensor.dtype
    )


def device_name(device: torch.device) -> str:
    """The device with its make: `cpu (AMD EPYC, 2 threads)`."""
    if device.type == "cuda":
        return f"cuda ({torch.cuda.get_device_name(device)})"
    threads = torch.get_num_threads()
    return f"cpu ({processor()}, {threads} {plural('thread', threads)})"
