"""Optimizers, the average of the weights, and the non-monotonic trigger of NT-ASGD (Merity et al. 2018, algorithm 1)."""

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn

from backstory.config import TrainingConfig
from backstory.models import LanguageModel
from backstory.models.eager_optimizer import eager
from backstory.utils.errors import UserError

Group = dict[str, Any]
"""Parameters (`params`), their learning rate as a share of the model's (`scale`), epochs before they learn (`after`), and
their `weight_decay` if it is not the training's."""


KINDS: dict[str, Any] = {
    "sgd": torch.optim.SGD,
    "adam": torch.optim.Adam,
    "adamw": torch.optim.AdamW,
    "nadam": torch.optim.NAdam,
}


def build_optimizer(
    parameters: Iterable[nn.Parameter] | Iterable[Group], config: TrainingConfig
) -> torch.optim.Optimizer:
    """Return torch's SGD, Adam, AdamW or NAdam, in the form that updates all tensors in the fewest passes.

    Raises UserError for AdamW where a part of the model has an `l2` of its own, a term of the loss, which AdamW has not.
    """
    groups: Any = list(parameters)
    rate, decay = config.learning_rate, config.weight_decay
    if config.optimizer == "adamw" and any(isinstance(group, dict) and group.get("weight_decay") for group in groups):
        raise UserError(
            "training.optimizer adamw decays weights outside the loss, so it cannot have the l2 of a part of the model; "
            "set that to None and use training.weight_decay, or take adam"
        )
    form = {"foreach": True} if config.optimizer == "nadam" else {"fused": True}
    return eager(KINDS[config.optimizer])(groups, lr=rate, weight_decay=decay, **form)


def parameter_groups(model: LanguageModel) -> list[Group]:
    """Return the model's parameters: those with settings of their own in its `param_groups`, all others in the first group.

    lambda |w|^2 in the loss is 2 lambda w in the gradient, to which torch adds `weight_decay` times w.
    """
    groups: list[Group] = []
    for group in model.param_groups():
        decay = {} if group.l2 is None else {"weight_decay": 2 * group.l2}
        rate = {} if group.rate == 1 and not group.after else {"scale": group.rate, "after": group.after}
        if group.weights and (decay or rate):
            groups.append({"params": group.weights, **decay, **rate})
    grouped = {id(p) for group in groups for p in group["params"]}
    return [{"params": [p for p in model.parameters() if id(p) not in grouped]}, *groups]


def saved_state(optimizer: torch.optim.Optimizer, parameter: Tensor) -> dict[str, Tensor]:
    """Return a template of the optimizer's state for a parameter.

    Its tensors have the right names, shapes and dtypes; their values mean nothing.
    """
    if isinstance(optimizer, torch.optim.SGD):
        return {}
    counts = {"step"} | ({"mu_product"} if isinstance(optimizer, torch.optim.NAdam) else set())
    return dict.fromkeys(sorted(counts), torch.zeros(())) | dict.fromkeys(("exp_avg", "exp_avg_sq"), parameter)


@torch.no_grad()
def optimizer_state(optimizer: torch.optim.Optimizer, parameter: Tensor) -> dict[str, Tensor]:
    """Return the optimizer's state of a parameter, by name.

    An optimizer makes its state with the first gradient. Before that this is its initial state: zeros, and ones for the
    product of NAdam's momenta. So a checkpoint holds all of it after any number of steps.
    """
    if state := optimizer.state.get(parameter):
        return {name: torch.as_tensor(value) for name, value in state.items() if value is not None}
    return {
        name: torch.ones_like(value) if name == "mu_product" else torch.zeros_like(value)
        for name, value in saved_state(optimizer, parameter).items()
    }


class WeightAverage:
    """The running mean of the parameters since it was made: mean_n = mean_{n-1} + (theta_n - mean_{n-1}) / n."""

    def __init__(self, parameters: Iterable[nn.Parameter]) -> None:
        self._parameters = list(parameters)
        self.means = [torch.zeros_like(p) for p in self._parameters]
        self.count = 0

    @torch.no_grad()
    def update(self) -> None:
        """Add the present parameters to the mean."""
        self.count += 1
        torch._foreach_lerp_(self.means, [p.detach() for p in self._parameters], 1 / self.count)

    @contextmanager
    def applied(self) -> Iterator[None]:
        """Replace the model's weights by the mean within the block, if there is one."""
        if not self.count:
            yield
            return
        weights = [p.detach().clone() for p in self._parameters]
        self._write(self.means)
        try:
            yield
        finally:
            self._write(weights)

    @torch.no_grad()
    def _write(self, values: list[Tensor]) -> None:
        for parameter, value in zip(self._parameters, values, strict=True):
            parameter.copy_(value)


def non_monotonic(history: list[float], value: float, n: int) -> bool:
    """Return True if `value` is worse than the best of all but the last n values before it."""
    return len(history) > n and value > min(history[:-n])
