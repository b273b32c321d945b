"""Passes over float32 weights for a few positions of a text, from `compiled.c`, which a C compiler compiles once per machine.

They serve dynamic evaluation, in which a segment of a few tokens costs as much as reading and writing all weights. Without a
compiler torch's operations compute the same, to about 1e-6.
"""

import ctypes
import functools
import hashlib
import os
import platform
import shutil
import subprocess
import warnings
from pathlib import Path
from typing import NamedTuple

import torch
from torch import Tensor

from backstory.models.kernels.factored_gradients import AnyGradient, FactoredGradient
from backstory.storage import disk_cache
from backstory.storage.atomic import atomic_file
from backstory.utils.errors import UserError

VARIABLE = "BACKSTORY_COMPILED"
"""Environment variable; 0 turns the compiled passes off."""
FEW_ROWS = 8
"""Positions up to which products over them are faster than the library's."""
BOUND = 3.0
"""Features of `gated_displace` lie within plus and minus this, and so does log of what a gate is multiplied by."""
FLAGS = ("-O3", "-march=native", "-ffp-contract=fast", "-shared", "-fPIC", f"-DBOUND={BOUND}f")
THREADS = "-fopenmp"
"""Flag for several threads, which not every compiler has."""
NAME = "kernels.so"
NUMBER, POINTER, REAL = ctypes.c_long, ctypes.c_void_p, ctypes.c_float
ARGUMENTS = {
    "add_dots": [NUMBER] * 3 + [POINTER] * 3,
    "rows_of": [NUMBER] * 3 + [POINTER] * 4,
    "lstm_forward": [NUMBER] * 3 + [POINTER] * 6,
    "lstm_backward": [NUMBER] * 3 + [POINTER] * 9,
    "displace_matrix": [NUMBER] * 3 + [POINTER] * 2 + [NUMBER] + [POINTER] * 7 + [REAL] * 3,
    "gated_displace": [NUMBER] + [POINTER] * 7 + [NUMBER] * 2 + [POINTER] * 4 + [REAL] * 8,
    "cumulate_shares": [NUMBER] * 2 + [POINTER] * 3,
    "set_threads": [NUMBER],
}


@functools.cache
def library() -> ctypes.CDLL | None:
    """Return the compiled passes; None where they cannot be compiled."""
    compiler = next((path for name in ("cc", "gcc", "clang") if (path := shutil.which(name))), None)
    if compiler is None or os.environ.get(VARIABLE) == "0":
        return None
    source = Path(__file__).with_name("compiled.c")
    key = hashlib.sha256("\n".join([source.read_text(), *FLAGS, _processor()]).encode()).hexdigest()[:16]
    try:
        with warnings.catch_warnings(action="ignore"):  # of a cache that cannot be written: the passes are optional
            entry = disk_cache.fetch(f"kernels-{key}", functools.partial(_compile, compiler, source))
        passes = ctypes.CDLL(str(entry / NAME))
        for name, types in ARGUMENTS.items():
            function = getattr(passes, name)
            function.argtypes, function.restype = types, None
    except (OSError, AttributeError, subprocess.SubprocessError, UserError):
        return None
    return passes


def _compile(compiler: str, source: Path, folder: Path) -> None:
    """Compile the source into a folder, whole or not at all, as another process may load it. Raises SubprocessError."""
    with atomic_file(folder / NAME) as built:
        command = [compiler, *FLAGS, str(source), "-o", built.name, "-lm"]
        if subprocess.run([*command, THREADS], capture_output=True, timeout=60).returncode:
            subprocess.run(command, check=True, capture_output=True, timeout=60)


def _processor() -> str:
    """Return what the compiled code depends on: it must not run on another processor that shares the folder."""
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
        return next(line for line in lines if line.startswith(("flags", "Features")))
    except (OSError, StopIteration):
        return f"{platform.machine()} {platform.processor()} {platform.node()}"


def takes(*tensors: Tensor) -> bool:
    """Return True if the passes can be used for these tensors."""
    # Check the tensors first: `library()` compiles the passes, which a GPU never needs.
    fits = all([t.dtype == torch.float32 and t.device.type == "cpu" and t.is_contiguous() for t in tensors])
    return fits and library() is not None


def _call(name: str, *arguments: Tensor | float | None) -> None:
    passes = library()
    assert passes is not None
    passes.set_threads(torch.get_num_threads())
    getattr(passes, name)(*[a.data_ptr() if isinstance(a, Tensor) else a for a in arguments])


def linear(x: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
    """Return x weight^T + bias (K, m), of x (K, n), weight (m, n) and bias (m,)."""
    y = x.new_zeros(len(x), len(weight)) if bias is None else bias.repeat(len(x), 1)
    _call("add_dots", *weight.shape, len(x), weight, x, y)
    return y


def matmul(x: Tensor, weight: Tensor) -> Tensor:
    """Return x weight (K, n), of x (K, m) and weight (m, n)."""
    y = x.new_empty(len(x), weight.shape[1])
    _call("rows_of", *weight.shape, len(x), weight, x, y, torch.empty_like(y))
    return y


def lstm_forward(
    inputs: Tensor, weight: Tensor, hidden: Tensor, values: Tensor, squashed: Tensor, gates: Tensor
) -> None:
    """Fill hidden and values (T + 1, B, H) after their first, squashed (T, B, H) and gates (T, B, 4, H) of an LSTM layer.

    inputs (T, B, 4H) is the input's share of the gates, and is changed; weight (4H, H) is the recurrent one.
    """
    _call("lstm_forward", *squashed.shape, weight, inputs, hidden, values, squashed, gates)


def lstm_backward(
    weight: Tensor, values: Tensor, squashed: Tensor, gates: Tensor, d_output: Tensor, d_h: Tensor, d_c: Tensor
) -> Tensor:
    """Return the gradient of the gates' pre-activations (T, B, 4, H), and change d_h and d_c (B, H) to those of h_0 and c_0."""
    d_gates, part = torch.empty_like(gates), torch.empty_like(d_h)
    _call("lstm_backward", *squashed.shape, weight, values, squashed, gates, d_output, d_h, d_c, d_gates, part)
    return d_gates


def cumulate_shares(probabilities: Tensor, scale: Tensor) -> Tensor:
    """Return the sums (B, V + 1) int64 of floor(scale p) + 1, from 0, of p (B, V) and scale (B, 1)."""
    rows, types = probabilities.shape
    shares = torch.empty(rows, types + 1, dtype=torch.int64)
    _call("cumulate_shares", rows, types, probabilities, scale, shares)
    return shares


class Step(NamedTuple):
    """delta <- (1 - min(1, decay RMS)) delta - rate g / (RMS + epsilon)."""

    rate: float
    epsilon: float
    decay: float


def displace(gradient: AnyGradient, step: Step, *, rms: Tensor, static: Tensor, delta: Tensor, moved: Tensor) -> None:
    """Take a step with a parameter (m, n), or (n,), in one pass over memory, and set moved to static + delta.

    A gradient in factors is never written out.
    """
    factored = isinstance(gradient, FactoredGradient)
    left, right, numbers, rows = gradient.factors() if factored else (None,) * 4
    rest = gradient.rest if factored else gradient
    if rest is not None:
        rest = rest.to(torch.float32).contiguous()
    ranks, extra = 0 if right is None else right.shape[0], 0 if numbers is None else numbers.shape[0]
    shape = moved.shape if moved.dim() == 2 else (1, moved.numel())
    memory = rms, static, delta, moved
    _call("displace_matrix", *shape, ranks, left, right, extra, numbers, rows, rest, *memory, *step)


class GatedWeights(NamedTuple):
    """n weights for a step whose gates a network sets."""

    gradient: Tensor
    rms: Tensor
    log_rms: Tensor
    """Standardised and bounded, as the network sees it."""
    log_fisher: Tensor
    static: Tensor
    delta: Tensor
    moved: Tensor


class FeatureScales(NamedTuple):
    """Scales of the features of a network that sets gates."""

    low: float
    high: float
    """Bounds of |gradient| / (RMS + epsilon), before its logarithm is taken."""
    mean: float
    deviation: float
    """Of that logarithm."""
    displacement: float
    """|delta| is divided by this times RMS / (RMS + epsilon)."""


def gated_displace(
    weights: GatedWeights, network: tuple[Tensor, Tensor, Tensor, Tensor], scales: FeatureScales, step: Step
) -> None:
    """Take a step with n weights whose gates a network multiplies, in one pass over memory, and set moved to static + delta.

    `network` is its input matrix (hidden, 6), biases (hidden,), output matrix (2 or 3, hidden) and biases (2 or 3,).
    """
    sizes = network[0].shape[0], network[2].shape[0]
    _call("gated_displace", weights.delta.numel(), *weights, *sizes, *network, *scales, *step)
