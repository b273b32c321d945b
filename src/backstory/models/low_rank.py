"""Low-rank adapters: every matrix W becomes W + B A, with random orthonormal rows A and B = 0 (after Hu et al. 2022)."""

import copy
from typing import TypeVar

import torch
from torch import Tensor, nn
from torch.nn.utils import parametrize

M = TypeVar("M", bound=nn.Module)


class LowRank(nn.Module):
    """W (m, n) -> W + B A with B (m, r), which is learned, and A (r, n), which stays."""

    rows: Tensor

    def __init__(self, weight: Tensor, rank: int, generator: torch.Generator) -> None:
        super().__init__()
        rank = min(rank, *weight.shape)
        rows = torch.linalg.qr(torch.randn(weight.shape[1], rank, generator=generator, dtype=torch.float32))[0].t()
        self.register_buffer("rows", rows.to(weight), persistent=False)
        self.low_rank = nn.Parameter(weight.new_zeros(weight.shape[0], rank))

    def forward(self, weight: Tensor) -> Tensor:
        return torch.addmm(weight, self.low_rank, self.rows)


def add_low_rank(model: M, rank: int) -> M:
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
