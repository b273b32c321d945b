"""A plain training step as in the public reference code, the baseline of `training.py`."""

from itertools import pairwise
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn


class PlainModel(nn.Module):
    """nn.LSTM layers in float32, masks from bernoulli, weight drop that replaces the weight, and full log-softmax."""

    def __init__(self, types: int, embedding: int, sizes: list[int], experts: int, drops: dict[str, float]) -> None:
        super().__init__()
        self.embedding = nn.Embedding(types, embedding)
        self.lstms: Any = nn.ModuleList(nn.LSTM(a, b) for a, b in pairwise(sizes))
        self.raw: Any = nn.ParameterList()
        for lstm in self.lstms:
            self.raw.append(nn.Parameter(lstm.weight_hh_l0.data.clone()))
            del lstm._parameters["weight_hh_l0"]
        self.experts, self.drops = experts, drops
        if experts:
            self.latent, self.prior = (
                nn.Linear(sizes[-1], experts * embedding),
                nn.Linear(sizes[-1], experts, bias=False),
            )
        self.decoder = nn.Linear(embedding, types)
        self.decoder.weight = self.embedding.weight

    def forward(self, tokens: Tensor, targets: Tensor, state: list) -> tuple[Tensor, list]:
        """Tokens and targets (time, batch) -> loss with AR and TAR, and the state."""
        mask = self.embedding.weight.new_empty(self.embedding.weight.shape[0], 1).bernoulli_(1 - self.drops["word"])
        x = F.embedding(tokens, mask * self.embedding.weight / (1 - self.drops["word"]))
        x = self._locked(x, self.drops["input"])
        new = []
        for index, (lstm, raw) in enumerate(zip(self.lstms, self.raw, strict=True)):
            if index:
                x = self._locked(x, self.drops["layer"])
            lstm.weight_hh_l0 = F.dropout(raw, self.drops["weight"])
            lstm._flat_weights = [getattr(lstm, name) for name in lstm._flat_weights_names]
            x, carried = lstm(x, state[index])
            new.append(tuple(c.detach() for c in carried))
        dropped = self._locked(x, self.drops["output"])
        loss = F.nll_loss(self._log_probs(dropped).flatten(0, 1), targets.flatten())
        loss = loss + 2 * dropped.pow(2).mean() + (x[1:] - x[:-1]).pow(2).mean()
        return loss, new

    def _log_probs(self, hidden: Tensor) -> Tensor:
        if not self.experts:
            return F.log_softmax(self.decoder(hidden), -1)
        latent = self._locked(torch.tanh(self.latent(hidden)), self.drops["latent"])
        prior = F.softmax(self.prior(hidden), -1)
        each = F.softmax(self.decoder(latent.unflatten(-1, (self.experts, -1))), -1)
        return ((each * prior[..., None]).sum(2) + 1e-8).log()

    @staticmethod
    def _locked(x: Tensor, probability: float) -> Tensor:
        mask = x.new_empty(1, *x.shape[1:]).bernoulli_(1 - probability) / (1 - probability)
        return x * mask.expand_as(x)


def unfused_sgd(parameters: list[nn.Parameter], rate: float, decay: float) -> None:
    """Update one tensor after another, as torch's SGD did when the reference was written."""
    with torch.no_grad():
        for p in parameters:
            if p.grad is not None:
                p.add_(p.grad.add(p, alpha=decay), alpha=-rate)
