"""Weights that move while a text is read: theta = theta_0 + delta of chosen parameters, in a copy of the model."""

import copy
import itertools
import re
from abc import abstractmethod
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple, Protocol

import torch
from torch import Tensor, nn
from torch.nn.utils import parametrize

from backstory.models import LanguageModel
from backstory.models.devices import exact_float32
from backstory.models.kernels.factored_gradients import AnyGradient, FactoredGradient, FactoredGradients
from backstory.utils.errors import UserError

CHUNK = 1 << 16
"""Weights that are moved at once on the CPU: their gradient and displacement stay in the core's own cache."""


class Piece(NamedTuple):
    """A parameter or a part of it, of n numbers."""

    tensor: int
    """Number of the parameter among those that move."""
    region: slice
    """Its slice of all weights that move."""
    delta: Tensor
    """theta - theta_0, in the dtype of the weights, at least float32."""
    static: Tensor
    """theta_0"""
    moved: Tensor
    """theta, as the model reads with it."""


class Update(Protocol):
    """Update of a piece of the weights by the gradient of a segment's loss."""

    @abstractmethod
    def __call__(self, piece: Piece, grad: Tensor) -> None:
        """Change `delta` in place; the gradient (n,) is in its dtype."""

    def at_once(self, piece: Piece, grad: AnyGradient) -> bool:
        """Update a parameter or a piece of it, and the weights in use, by a compiled pass; return False if none can."""
        return False


class MovingWeights:
    """A copy of a model, some parameters of which move; the rest, and theta_0, are the loaded model's own memory.

    `moving` says which move: `all`; `last:N`, the last N layers and all that comes after them; `output`, the output layer
    (with the embedding, where that is tied to it); `low-rank:R`, B of W + B A for every matrix W, with A (R, inputs) random
    orthonormal rows that stay, and B = 0 at first. Raises UserError.
    """

    def __init__(self, model: LanguageModel, moving: str = "all") -> None:
        exact_float32()
        self._loaded, self._moving = model, moving
        source = _add_low_rank(model, rank_of(moving)) if moving.startswith("low-rank") else model
        self.names = moving_names(source, moving)
        parameters = dict(source.named_parameters())
        self.static = [parameters[name].detach() for name in self.names]
        memo = {id(p): nn.Parameter(p.detach(), requires_grad=False) for p in parameters.values()}
        self.moved = [nn.Parameter(p.clone()) for p in self.static]
        memo |= {id(parameters[name]): p for name, p in zip(self.names, self.moved, strict=True)}
        self.model: LanguageModel = copy.deepcopy(source, memo).eval()
        # Whatever torch's default type is: the model may be of another.
        wide = torch.promote_types(self.static[0].dtype, torch.float32)
        edges = [0, *itertools.accumulate(map(torch.numel, self.static))]
        self.regions = [slice(*pair) for pair in itertools.pairwise(edges)]
        """The slice of each parameter in the flat vectors."""
        self.delta = torch.zeros(edges[-1], dtype=wide, device=self.static[0].device)
        self._parameters = [
            Piece(index, region, self.delta[region].view_as(static), static, moved.data)
            for index, (region, static, moved) in enumerate(zip(self.regions, self.static, self.moved, strict=True))
        ]
        self._parts = [list(self._cut(parameter)) for parameter in self._parameters]
        self._gradient = torch.empty(self.largest, dtype=wide, device=self.delta.device)

    def __deepcopy__(self, memo: dict[int, Any]) -> "MovingWeights":
        """Copy what moves, where it has moved to; the rest stays the loaded model's own memory."""
        other = memo[id(self)] = MovingWeights(copy.deepcopy(self._loaded, memo), self._moving)
        other.set(self.delta)
        return other

    def __len__(self) -> int:
        return len(self.delta)

    @property
    def memory(self) -> int:
        """Bytes that the moving weights take beside the model: themselves, their displacement and a gradient."""
        return sum(2 * p.numel() * p.element_size() for p in self.moved) + self.delta.nbytes + self._gradient.nbytes

    @property
    def largest(self) -> int:
        """Size of the largest piece that an update goes through."""
        return max(len(part.delta) for parts in self._parts for part in parts)

    @torch.no_grad()
    def set(self, delta: Tensor | None = None) -> None:
        """Move the weights to theta_0 + delta (N,), to theta_0 without one."""
        if delta is None:
            self.delta.zero_()
        else:
            self.delta.copy_(delta)
        for parameter in self._parameters:
            torch.add(parameter.static, parameter.delta, out=parameter.moved)

    def gradients(self, loss: Tensor, factors: FactoredGradients | None = None) -> list[AnyGradient]:
        """Return the gradient of each moving parameter; None if the loss does not depend on it.

        `factors` collects those that the backward pass leaves in factors.
        """
        gradients: list[AnyGradient] = []
        for moved, grad in zip(self.moved, torch.autograd.grad(loss, self.moved, allow_unused=True), strict=True):
            factored = None if factors is None else factors.of(moved)
            if factored is not None:
                factored.rest = grad
            gradients.append(grad if factored is None else factored)
        return gradients

    def factors(self) -> FactoredGradients:
        """Return a collector of the gradients of the moving matrices, for one forward and backward pass."""
        return FactoredGradients(p for p in self.moved if p.dim() == 2 and p.dtype == self.delta.dtype)

    @torch.no_grad()
    def update(self, gradients: Sequence[AnyGradient], rule: Update) -> None:
        """Displace every weight by the rule, in one pass over memory."""
        for parameter, parts, grad in zip(self._parameters, self._parts, gradients, strict=True):
            if rule.at_once(parameter, grad):
                continue
            for part, g in zip(parts, self._pieces(parameter.static, parts, grad), strict=True):
                if not rule.at_once(part, g):
                    rule(part, g)
                    torch.add(part.static, part.delta, out=part.moved)

    def _pieces(self, static: Tensor, parts: Sequence[Piece], grad: AnyGradient) -> Iterator[Tensor]:
        """Yield the gradient of each piece of a parameter; it is valid until the next."""
        if not isinstance(grad, FactoredGradient):
            whole = torch.zeros_like(static, dtype=self.delta.dtype) if grad is None else grad
            for piece in whole.reshape(-1).split(len(parts[0].delta)):
                yield piece.to(self.delta.dtype)
            return
        first, columns = 0, static.shape[1]
        for part in parts:
            piece = self._gradient[: len(part.delta)].view(-1, columns)
            grad.write(first, piece)
            first += len(piece)
            yield piece.view(-1)

    @staticmethod
    def _cut(whole: Piece) -> Iterator[Piece]:
        """Yield views of a parameter's memory, cut into pieces of whole rows that an update goes through one by one."""
        columns = max(whole.static.shape[-1], 1) if whole.static.dim() == 2 else 1
        size = max(CHUNK // columns, 1) * columns if whole.delta.device.type == "cpu" else whole.delta.numel()
        starts = range(whole.region.start, whole.region.stop, size)
        flat = (whole.delta.view(-1), whole.static.reshape(-1), whole.moved.view(-1))
        for start, delta, static, moved in zip(starts, *(t.split(size) for t in flat), strict=True):
            yield Piece(whole.tensor, slice(start, start + len(delta)), delta, static, moved)


def rank_of(moving: str) -> int:
    """Return R of `low-rank:R`. Raises UserError."""
    match = re.fullmatch(r"low-rank:([1-9]\d{0,5})", moving)
    if not match:
        raise UserError(f"'{moving}' is not understood; low-rank adapters are written low-rank:4, with their rank")
    return int(match[1])


def moving_names(model: LanguageModel, moving: str) -> list[str]:
    """Return the names of the parameters that move, in the model's order, tied ones once. Raises UserError."""
    names = [name for name, _ in model.named_parameters()]
    if moving == "all":
        return names
    if moving.startswith("low-rank:"):
        return [name for name in names if name.endswith(".low_rank")]
    if moving == "output":
        output = {id(p) for p in _output(model).parameters(recurse=False)}
        return [name for name, p in model.named_parameters() if id(p) in output]
    if match := re.fullmatch(r"last:([1-9]\d{0,5})", moving):
        return _last(model, int(match[1]))
    raise UserError(f"'{moving}' is not a choice of weights; use all, last:N (layers), output or low-rank:R")


def _output(model: nn.Module) -> nn.Module:
    head = getattr(model, "head", None)
    if not isinstance(head, nn.Module):
        raise UserError(
            f"cannot adapt the output layer: backstory does not recognise it in {type(model).__name__}; "
            "choose moving=all, last:N or low-rank:R"
        )
    return head


def _last(model: LanguageModel, count: int) -> list[str]:
    """Return the parameters of the last `count` layers of the model, and those that come after the layers."""
    layers, parameters = model.layer_stack(), list(model.named_parameters())
    if not layers:
        raise UserError(f"backstory finds no list of layers in {type(model).__name__}; choose moving=all or low-rank:R")
    if count > len(layers):
        raise UserError(f"this model has {len(layers)} layers, so last:{count} is too many")
    inside, last = ({id(p) for layer in some for p in layer.parameters()} for some in (layers, layers[-count:]))
    end = max(i for i, (_, p) in enumerate(parameters) if id(p) in inside)
    return [name for i, (name, p) in enumerate(parameters) if id(p) in last or i > end]


class LowRank(nn.Module):
    """A low-rank adapter (after Hu et al. 2022), W (m, n) -> W + B A: B (m, r) is learned, A (r, n) stays."""

    rows: Tensor

    def __init__(self, weight: Tensor, rank: int, generator: torch.Generator) -> None:
        super().__init__()
        rank = min(rank, *weight.shape)
        rows = torch.linalg.qr(torch.randn(weight.shape[1], rank, generator=generator, dtype=torch.float32))[0].t()
        self.register_buffer("rows", rows.to(weight), persistent=False)
        self.low_rank = nn.Parameter(weight.new_zeros(weight.shape[0], rank))

    def forward(self, weight: Tensor) -> Tensor:
        # The sum keeps the dtype of the weight: autocast would round W itself, also where B is 0.
        with torch.autocast(weight.device.type, enabled=False):
            return torch.addmm(weight, self.low_rank, self.rows)


def _add_low_rank(model: LanguageModel, rank: int) -> LanguageModel:
    """Return a copy of the model that shares its weights, with an adapter for each matrix; the adapters are deterministic."""
    shared = {id(p): p for p in model.parameters()}
    copied, generator = copy.deepcopy(model, dict(shared)), torch.Generator().manual_seed(0)
    adapters: dict[int, LowRank] = {}  # tied matrices share one
    for module in list(copied.modules()):
        for name, parameter in list(module.named_parameters(recurse=False)):
            if parameter.dim() == 2:
                adapter = adapters.get(id(parameter)) or LowRank(parameter, rank, generator)
                adapters[id(parameter)] = adapter
                parametrize.register_parametrization(module, name, adapter, unsafe=True)
    return copied
