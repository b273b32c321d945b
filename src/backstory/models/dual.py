"""The dual connection (eqs. 4 to 7 of its paper): d_t = ReLU(W_de e_t + W_dh h_t + b_d) between any core and any head.

e_t is the word's vector as the core is given it, before `input_dropout` of the core, and h_t the core's output after its own
`output_dropout`. What follows reads d_t in the place of h_t: the head, a span buffer and its gate, a cache. AR and TAR stay
with the core's output, which the paper's "activation L2" is of.
"""

import torch
from torch import Tensor, nn

from backstory.config import DualConfig
from backstory.models.contract import ParamGroup
from backstory.models.dropout import locked_dropout


class Dual(nn.Module):
    """A layer of D units over a word's vector, of size E, and the core's output, of size H."""

    weight_de: nn.Parameter | None

    def __init__(self, config: DualConfig, embedding: int, hidden: int, size: int) -> None:
        super().__init__()
        self.config = config
        inputs = hidden + (embedding if config.direct else 0)
        bound = (6 / (inputs + size)) ** 0.5
        direct = nn.Parameter(torch.empty(size, embedding).uniform_(-bound, bound)) if config.direct else None
        self.register_parameter("weight_de", direct)
        self.weight_dh = nn.Parameter(torch.empty(size, hidden).uniform_(-bound, bound))
        self.bias = nn.Parameter(torch.zeros(size))

    def param_groups(self) -> list[ParamGroup]:
        return [ParamGroup([p for p in self.parameters() if p.dim() == 2], self.config.l2)]

    def forward(self, embedded: Tensor, hidden: Tensor) -> tuple[Tensor, Tensor]:
        """Of e (B, T, E) and h (B, T, H): d (B, T, D) before the output's dropout and after it."""
        config = self.config
        summed = nn.functional.linear(self._dropped(hidden), self.weight_dh, self.bias)
        if self.weight_de is not None:
            summed = summed + nn.functional.linear(self._dropped(embedded), self.weight_de)
        found = torch.relu(summed)
        return found, locked_dropout(found, config.output_dropout, self.training)

    def _dropped(self, x: Tensor) -> Tensor:
        return locked_dropout(x, self.config.input_dropout, self.training)
