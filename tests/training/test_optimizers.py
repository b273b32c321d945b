"""NT-ASGD against a loop over its algorithm, the average of the weights, and the trigger."""

import math
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from runs import with_settings
from torch import Tensor, nn

from backstory.config import (
    AuxiliarySoftmaxConfig,
    DualConfig,
    EmbeddingConfig,
    GateConfig,
    LSTMConfig,
    ModelConfig,
    MogrifierConfig,
    NoBufferConfig,
    RunConfig,
    SoftmaxConfig,
    TrainingConfig,
    TransformerConfig,
    from_dict,
)
from backstory.models import build_model
from backstory.training.optimizers import WeightAverage, build_optimizer, non_monotonic, parameter_groups
from backstory.utils.errors import UserError

CURVATURE = torch.tensor([1.0, 3.0, 0.5], dtype=torch.float64)
RATE, DECAY, TRIGGER = 0.3, 0.01, 5
HISTORY = [9.0, 7.0, 6.0, 5.0, 5.5, 5.2, 5.1, 5.05, 5.3, 4.9, 5.6, 5.0]
"""Validation after each epoch of four steps: worse than the best of all but the last five at the eleventh."""


def noises() -> list[Tensor]:
    torch.manual_seed(0)
    return [torch.randn(3, dtype=torch.float64) for _ in range(4 * len(HISTORY))]


def naive() -> tuple[list[float], list[float], int]:
    """Algorithm 1 of Merity et al.: the last iterate, the mean of the iterates since the trigger, and its epoch."""
    theta, iterates, logs, triggered = [1.0, -2.0, 4.0], [], [], 0
    for epoch, value in enumerate(HISTORY):
        for noise in noises()[4 * epoch : 4 * epoch + 4]:
            gradient = [c.item() * x + n.item() + DECAY * x for c, x, n in zip(CURVATURE, theta, noise, strict=True)]
            theta = [x - RATE * g for x, g in zip(theta, gradient, strict=True)]
            if triggered:
                iterates.append(theta)
        if not triggered and epoch > TRIGGER and value > min(logs[l] for l in range(epoch - TRIGGER)):  # noqa: E741
            triggered = epoch
        logs.append(value)
    return theta, [sum(column) / len(iterates) for column in zip(*iterates, strict=True)], triggered


def test_nt_asgd_is_its_algorithm() -> None:
    theta = nn.Parameter(torch.tensor([1.0, -2.0, 4.0], dtype=torch.float64))
    optimizer = build_optimizer([theta], TrainingConfig(learning_rate=RATE, weight_decay=DECAY))
    average, history, triggered = None, [], 0
    for epoch, value in enumerate(HISTORY):
        for noise in noises()[4 * epoch : 4 * epoch + 4]:
            optimizer.zero_grad()
            (0.5 * CURVATURE * theta**2 + noise * theta).sum().backward()
            optimizer.step()
            if average is not None:
                average.update()
        if average is None and non_monotonic(history, value, TRIGGER):
            average, triggered = WeightAverage([theta]), epoch
        history.append(value)
    last, mean, expected = naive()
    assert average is not None and triggered == expected == 10
    assert theta.tolist() == pytest.approx(last, rel=1e-12)
    with average.applied():
        assert theta.tolist() == pytest.approx(mean, rel=1e-12)


@given(st.lists(st.integers(0, 20).map(float), max_size=15), st.integers(0, 20).map(float), st.integers(1, 6))
def test_the_trigger_is_the_best_of_all_but_the_last_n(history: list[float], value: float, n: int) -> None:
    best = math.inf
    for place, earlier in enumerate(history):
        if place < len(history) - n:
            best = min(best, earlier)
    assert non_monotonic(history, value, n) == (value > best)


def test_an_average_is_the_mean_of_what_it_was_given() -> None:
    torch.manual_seed(0)
    parameters = [nn.Parameter(torch.zeros(3, 2)), nn.Parameter(torch.zeros(4))]
    average, given_values = WeightAverage(parameters), []
    for _ in range(50):
        with torch.no_grad():
            for parameter in parameters:
                parameter.normal_()
        given_values.append([p.detach().clone() for p in parameters])
        average.update()
    for mean, column in zip(average.means, zip(*given_values, strict=True), strict=True):
        torch.testing.assert_close(mean, torch.stack(column).mean(0))
    assert average.count == 50


def test_the_first_value_is_the_average_exactly() -> None:
    parameter = nn.Parameter(torch.tensor([1e30, -1e-30, 0.1]))
    average = WeightAverage([parameter])
    average.update()
    assert torch.equal(average.means[0], parameter)


def test_applying_an_average_swaps_and_brings_back_every_bit() -> None:
    parameter = nn.Parameter(torch.tensor([0.1, -0.0, float("nan"), 1e-42]))
    average = WeightAverage([parameter])
    average.update()
    with torch.no_grad():
        parameter.mul_(3)
    before = parameter.detach().clone().view(torch.int32)
    with pytest.raises(ZeroDivisionError), average.applied():
        assert parameter[0] == 0.1
        raise ZeroDivisionError
    assert torch.equal(parameter.detach().view(torch.int32), before)
    assert parameter.requires_grad


def test_an_empty_average_leaves_the_weights() -> None:
    parameter = nn.Parameter(torch.ones(2))
    with WeightAverage([parameter]).applied():
        assert parameter.tolist() == [1.0, 1.0]


KINDS = {"sgd": torch.optim.SGD, "adam": torch.optim.Adam, "adamw": torch.optim.AdamW, "nadam": torch.optim.NAdam}


@pytest.mark.parametrize("name", KINDS)
def test_the_optimizer_is_the_one_asked_for_and_takes_the_steps_of_torch_to_the_bit(name: str) -> None:
    torch.manual_seed(0)
    start = torch.randn(5)
    ours, theirs = nn.Parameter(start.clone()), nn.Parameter(start.clone())
    settings = TrainingConfig(optimizer=name, learning_rate=0.1, weight_decay=0.01)  # type: ignore[arg-type]
    form: dict[str, Any] = {"foreach": True} if name == "nadam" else {"fused": True}
    made, reference = build_optimizer([ours], settings), KINDS[name]([theirs], lr=0.1, weight_decay=0.01, **form)
    assert type(made).__bases__ == (KINDS[name],)
    for _ in range(20):
        for optimizer, weight in ((made, ours), (reference, theirs)):
            optimizer.zero_grad()
            (weight**4).sum().backward()
            optimizer.step()
            optimizer.load_state_dict(optimizer.state_dict())
        assert torch.equal(ours, theirs)
    assert not torch.equal(ours, start) and str(made.state_dict()) == str(reference.state_dict())


def test_adam_is_its_equations() -> None:
    parameter = nn.Parameter(torch.tensor([1.0, -2.0], dtype=torch.float64))
    made = build_optimizer([parameter], TrainingConfig(optimizer="adam", learning_rate=0.1, weight_decay=0.05))
    x, m, v = parameter.detach().clone(), torch.zeros(2, dtype=torch.float64), torch.zeros(2, dtype=torch.float64)
    for t in range(1, 6):
        gradient = x**3 + 0.05 * x
        m, v = 0.9 * m + 0.1 * gradient, 0.999 * v + 0.001 * gradient**2
        x = x - 0.1 * (m / (1 - 0.9**t)) / ((v / (1 - 0.999**t)).sqrt() + 1e-8)
        made.zero_grad()
        (parameter**4 / 4).sum().backward()
        made.step()
    torch.testing.assert_close(parameter.detach(), x, rtol=1e-12, atol=0)


L2 = {"embedding.l2": 1e-5, "core.input_l2": 2e-5, "core.recurrent_l2": 3e-5, "core.round_l2": 4e-5, "dual.l2": 5e-5}


def small(tied: bool = True, gate: GateConfig | None = None, **l2: float | None) -> ModelConfig:
    """A Dual Mogrifier, with a gate if one is given, and with these L2 of its parts."""
    core = MogrifierConfig(layers=2, hidden=5, rounds=2, rank=2)
    buffer = NoBufferConfig() if gate is None else AuxiliarySoftmaxConfig(gate=gate)
    return with_settings(ModelConfig(EmbeddingConfig(4), core, SoftmaxConfig(tied=tied), buffer, dual=DualConfig()), l2)


def decays(config: ModelConfig) -> dict[str, float]:
    """The weight decay with which the optimizer updates each parameter, of 0.5 for the others."""
    model, settings = build_model(config, 7), TrainingConfig(weight_decay=0.5)
    names = {id(p): name for name, p in model.named_parameters()}
    groups = build_optimizer(parameter_groups(model), settings).param_groups
    listed = [(names[id(p)], group["weight_decay"]) for group in groups for p in group["params"]]
    assert len(listed) == len(names) == len(dict(listed))
    return dict(listed)


def test_without_l2_of_parts_there_is_one_group_in_the_models_order() -> None:
    model = build_model(small(), 7)
    (group,) = parameter_groups(model)
    assert group.keys() == {"params"}
    assert all(one is other for one, other in zip(group["params"], model.parameters(), strict=True))


@pytest.mark.parametrize("tied", [True, False])
def test_every_part_has_the_l2_that_is_set_for_it(tied: bool) -> None:
    """The loss's lambda |w|^2 has the gradient 2 lambda w."""
    parts = {"embedding": 2e-5, "weight_ih": 4e-5, "weight_hh": 6e-5, "rounds": 8e-5, "dual": 10e-5, "head": 2e-5}
    found = decays(small(tied, **L2))
    for name, decay in found.items():
        words = name.split(".")
        expected = next((value for part, value in parts.items() if part in words), 0.5)
        assert decay == pytest.approx(0.5 if words[-1] == "bias" else expected), name
    assert ("head.weight" in found) != tied


@pytest.mark.parametrize("name", L2)
def test_one_l2_leaves_the_others_to_the_weight_decay(name: str) -> None:
    found = decays(small(**{name: 0.0}))
    assert set(found.values()) == {0.0, 0.5}


@pytest.mark.parametrize("kind", [TransformerConfig, LSTMConfig])
def test_an_l2_of_what_is_not_there_is_no_setting(kind: type) -> None:
    name = "input_l2" if kind is TransformerConfig else "round_l2"
    with pytest.raises(UserError, match=f"unknown key 'model.core.{name}'"):
        from_dict(RunConfig, {"model": {"core": {"kind": kind().kind, name: 1e-5}}}, "mine")


def test_a_gate_with_its_own_rate_stands_beside_parts_with_their_own_l2() -> None:
    config = small(gate=GateConfig(rate=0.1, after=2), **{"dual.l2": 0.1})
    model = build_model(config, 7)
    rest, dual, policy = parameter_groups(model)
    assert dual["weight_decay"] == 0.2 and (policy["scale"], policy["after"]) == (0.1, 2)
    assert policy["params"] == list(model.gated.policy.parameters())  # type: ignore[union-attr]
    assert sum(len(group["params"]) for group in (rest, dual, policy)) == len(list(model.parameters()))


@pytest.mark.parametrize("optimizer", ["sgd", "adam", "nadam"])
def test_an_l2_is_the_penalty_in_the_loss(optimizer: Any) -> None:
    """Steps with the penalty left to the optimizer, and with its gradient taken from the loss."""
    found = []
    for penalty in (0.3, None):
        torch.manual_seed(0)
        config = small(**{"dual.l2": penalty})
        model = build_model(config, 7).double()
        settings = TrainingConfig(optimizer=optimizer, learning_rate=0.01, weight_decay=0.0)
        made = build_optimizer(parameter_groups(model), settings)
        assert model.dual is not None and model.dual.weight_de is not None
        for _ in range(3):
            made.zero_grad()
            loss = torch.stack([p.sin().sum() for p in model.parameters()]).sum()
            if penalty is None:
                loss = loss + 0.3 * (model.dual.weight_de.square().sum() + model.dual.weight_dh.square().sum())
            loss.backward()
            made.step()
        found.append([p.detach() for p in model.parameters()])
    torch.testing.assert_close(*found, rtol=0, atol=1e-12)


def test_adamw_has_no_l2_of_parts_but_a_decay_of_its_own() -> None:
    torch.manual_seed(0)
    plain = build_model(ModelConfig(core=LSTMConfig(layers=1)), 9)
    settings = TrainingConfig(optimizer="adamw", learning_rate=0.1, weight_decay=0.5)
    optimizer = build_optimizer(parameter_groups(plain), settings)
    before = [p.detach().clone() for p in plain.parameters()]
    for p in plain.parameters():
        p.grad = torch.zeros_like(p)
    optimizer.step()
    for old, new in zip(before, plain.parameters(), strict=True):
        torch.testing.assert_close(new.detach(), old * (1 - 0.1 * 0.5))  # decayed beside the gradient, here zero
    part = build_model(ModelConfig(core=LSTMConfig(layers=1), embedding=EmbeddingConfig(l2=0.1)), 9)
    with pytest.raises(UserError, match="adamw decays weights outside the loss"):
        build_optimizer(parameter_groups(part), settings)
