"""Optimizers of torch without the hooks of `torch.compile`, whose import takes a process more than a second."""

import inspect
from typing import TypeVar, cast

import torch
from torch.optim import Optimizer

OptimizerT = TypeVar("OptimizerT", bound=Optimizer)


def eager(kind: type[OptimizerT]) -> type[OptimizerT]:
    """Return an optimizer's class whose methods do not import the compiler; it takes the same steps.

    The hooks matter only inside a compiled function. One of them also turned gradients off for `step`, as is done here.
    """
    hooked = ("add_param_group", "load_state_dict", "state_dict", "zero_grad")
    methods = {name: inspect.unwrap(getattr(kind, name)) for name in hooked}
    methods["step"] = torch.no_grad()(inspect.unwrap(kind.step))
    return cast(type[OptimizerT], type(kind.__name__, (kind,), methods))
