"""Trainings with recorded steps: as CUDA graphs on a GPU, elsewhere as an imitation.

An imitated graph keeps the operations that are run while it is captured, with the tensors that they read and write, and runs
them again on the same tensors. As on a GPU, numbers that Python has fetched do not change from replay to replay, and to wait
for one while a graph is captured is an error.
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from typing import Any

import pytest
import torch
from runs import ADVERSARIAL, with_model, with_settings, with_training
from torch import Tensor
from torch.utils import _pytree as pytree
from torch.utils._python_dispatch import TorchDispatchMode

from backstory.config import (
    AuxiliarySoftmaxConfig,
    DNCConfig,
    DualConfig,
    GateConfig,
    LSTMConfig,
    MixtureConfig,
    MogrifierConfig,
    NTMConfig,
    RewardConfig,
    RunConfig,
    SpanBufferConfig,
    TransformerConfig,
    TrellisConfig,
)
from backstory.models.kernels import compiled, linear_log_prob
from backstory.training import loop
from backstory.training.gradients import Recorded

Change = Callable[[RunConfig], RunConfig]

VARIANTS: dict[str, Change] = {
    "float32": lambda c: c,
    "bfloat16": lambda c: with_training(c, precision="bfloat16"),
    "averaged": lambda c: with_training(c, averaging="always"),
    "adam, mixture": lambda c: with_model(
        with_training(c, optimizer="adam", learning_rate=0.01, averaging="none"), head=MixtureConfig(experts=3)
    ),
    "span buffer": lambda c: with_model(
        c, buffer=SpanBufferConfig(size=12, span=4, gate=GateConfig(reward=RewardConfig(weight=0.01)))
    ),
    "span buffer, grid": lambda c: with_model(
        c, buffer=SpanBufferConfig(size=12, span=4, alignment="fixed", attention="bilinear")
    ),
    "span buffer, following words": lambda c: with_model(
        c, buffer=SpanBufferConfig(size=12, vectors="words", values="following", attention="linear")
    ),
    "pointer": lambda c: with_model(
        c, buffer=SpanBufferConfig(size=12, vectors="words", values="following", prediction="pointer", sentinel=True)
    ),
    "second softmax": lambda c: with_model(c, buffer=AuxiliarySoftmaxConfig()),
    "adversarial, fine-tuned": lambda c: with_settings(with_training(c, epochs=1, finetune_epochs=1), ADVERSARIAL),
    # Units of the published sizes take other kernels than tiny ones.
    "wide": lambda c: with_model(c, core=LSTMConfig(layers=2, hidden=1152)),
}

MEMORY: dict[str, Any] = {"layers": (8,), "slots": 7, "width": 4, "heads": 2}
OTHER_CORES: dict[str, Change] = {
    "nadam, dual": lambda c: with_model(
        with_training(c, optimizer="nadam", learning_rate=0.01, averaging="none"), dual=DualConfig()
    ),
    "mogrifier": lambda c: with_model(c, core=MogrifierConfig(layers=2, hidden=8, rank=3)),
    "transformer": lambda c: with_model(c, core=TransformerConfig(layers=2, heads=2, hidden=8, window=12)),
    "transformer, begins anew": lambda c: with_model(
        c, core=TransformerConfig(layers=2, heads=2, hidden=8, window=16, chunked=True, positions="sinusoidal")
    ),
    "trellis": lambda c: with_model(c, core=TrellisConfig(levels=4, hidden=8, auxiliary=2)),
    "ntm": lambda c: with_model(c, core=NTMConfig(**MEMORY)),
    "ntm, localized": lambda c: with_model(c, core=NTMConfig(**MEMORY, addressing="localized:3")),
    "dnc": lambda c: with_model(c, core=DNCConfig(**MEMORY)),
}

WAITS = {"_local_scalar_dense", "equal", "is_nonzero", "masked_select", "nonzero", "unique_dim", "_unique2"}
"""Operations whose result, or its size, Python waits for."""
GRADIENT_WAITS = {"prod", "cumprod"}
"""Operations whose gradient counts the zeros first, and waits for their number; with operations watched, it does not."""
RESHAPES = {"as_strided_", "detach_", "squeeze_", "t_", "transpose_", "unsqueeze_"}
"""Operations that change a tensor's shape in place: once is enough."""


def imitate_graphs(patch: pytest.MonkeyPatch) -> None:
    """Let trainings on the CPU record their steps as those on a GPU do."""
    fork = torch.random.fork_rng
    patch.setattr(torch.random, "fork_rng", lambda devices: fork([d for d in devices if d.type != "cpu"]))
    for name, imitation in {
        "CUDAGraph": Graph,
        "Stream": lambda device: Stream(),
        "current_stream": lambda device: Stream(),
        "graph": capturing,
        "graph_pool_handle": lambda: None,
        "stream": lambda stream: nullcontext(),
    }.items():
        patch.setattr(torch.cuda, name, imitation)
    patch.setattr(linear_log_prob, "_refuse_negative", lambda targets, types: None)  # as while a step is captured
    patch.setattr(compiled, "library", lambda: None)  # its passes are no operations of torch
    patch.setattr(loop, "build_gradient", lambda eager, device, config: Recorded(eager))


class Stream:
    """Imitates `torch.cuda.Stream`."""

    def wait_stream(self, other: Any) -> None: ...


class Graph:
    """Imitates `torch.cuda.CUDAGraph`."""

    def __init__(self) -> None:
        self.operations: list[tuple[Any, Any, Any, list[Tensor]]] = []

    def replay(self) -> None:
        # oneDNN leaves what its backward pass needs in the mode with gradients alone.
        with torch._C._AutoDispatchBelowAutograd(), torch.enable_grad():
            for function, arguments, options, outputs in self.operations:
                for old, new in zip(outputs, _tensors(function(*arguments, **options)), strict=True):
                    if old.data_ptr() != new.data_ptr():  # else a view, or written in place
                        old.copy_(new)


class Capture(TorchDispatchMode):
    """Keeps operations in a graph. They are run as well, for their shapes; what they overwrite is put back at the end."""

    def __init__(self, graph: Graph) -> None:
        super().__init__()
        self.graph = graph
        self.overwritten: list[tuple[Tensor, Tensor]] = []

    def __torch_dispatch__(
        self, function: Any, types: Any, args: tuple = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        name, options = function.overloadpacket.__name__, kwargs or {}
        if name in WAITS or (name == "index" and any(i is not None and i.dtype == torch.bool for i in args[1])):
            raise RuntimeError(f"operation not permitted when stream is capturing: {name}")
        if name in GRADIENT_WAITS and args[0].requires_grad:
            raise RuntimeError(f"operation not permitted when stream is capturing: gradient of {name}")
        for number, argument in enumerate(function._schema.arguments):
            if argument.alias_info is not None and argument.alias_info.is_write:
                written = args[number] if number < len(args) else options.get(argument.name)
                self.overwritten += [(tensor.detach(), tensor.clone()) for tensor in _tensors(written)]
        inputs = pytree.tree_map_only(Tensor, Tensor.detach, (args, options))  # of the shape that they have now
        result = function(*args, **options)
        if name not in RESHAPES:
            self.graph.operations.append((function, *inputs, [tensor.detach() for tensor in _tensors(result)]))
        return result

    @torch.no_grad()
    def put_back(self) -> None:
        for tensor, before in reversed(self.overwritten):
            tensor.copy_(before)


@contextmanager
def capturing(graph: Graph, **options: Any) -> Iterator[None]:
    """Imitates `torch.cuda.graph`, which leaves tensors and generators as they were."""
    capture = Capture(graph)
    with torch.random.fork_rng([]):
        with capture:
            yield
        capture.put_back()


def _tensors(tree: Any) -> list[Tensor]:
    return [leaf for leaf in pytree.tree_leaves(tree) if isinstance(leaf, Tensor)]
