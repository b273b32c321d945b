"""The likelihood with AR and TAR against loops over their definitions."""

from dataclasses import replace

import pytest
import torch
from torch import Tensor

from backstory.config import ModelConfig, RewardConfig, RunConfig, TrainingConfig, TrellisConfig
from backstory.evaluation.metrics.gate_statistics import reward
from backstory.models import Activations, Interpolation, Softmax, outline
from backstory.training import Likelihood
from backstory.training.objectives import GatedLikelihood, build_objective, likelihood
from backstory.utils.errors import UserError

BATCH, TIME, UNITS, TYPES = 2, 4, 3, 5


def prediction(time: int = TIME) -> tuple[Softmax, Tensor]:
    torch.manual_seed(0)
    raw, dropped = (torch.randn(BATCH, time, UNITS, dtype=torch.float64).requires_grad_() for _ in range(2))
    first = torch.randn(BATCH, time, 7, dtype=torch.float64)
    weight = torch.randn(TYPES, UNITS, dtype=torch.float64)
    made = Softmax(Activations(first, (first, raw), dropped, dropped, raw), dropped, weight, None)
    return made, torch.randint(TYPES, (BATCH, time))


def naive(made: Softmax, targets: Tensor, alpha: float, beta: float) -> Tensor:
    assert made.activations is not None
    raw, dropped = made.activations.last_raw, made.activations.last_dropped
    likelihood, ar, tar, time = torch.zeros(()), torch.zeros(()), torch.zeros(()), targets.shape[1]
    for b in range(BATCH):
        for t in range(time):
            logits = [(row * dropped[b, t]).sum() for row in made.weight]
            total = sum(logit.exp() for logit in logits)
            likelihood = likelihood - (logits[targets[b, t]].exp() / total).log()
            for unit in range(UNITS):
                ar = ar + dropped[b, t, unit] ** 2
                if t:
                    tar = tar + (raw[b, t, unit] - raw[b, t - 1, unit]) ** 2
    loss = likelihood / (BATCH * time) + alpha * ar / (BATCH * time * UNITS)
    return loss + beta * tar / (BATCH * (time - 1) * UNITS) if time > 1 else loss


@pytest.mark.parametrize("time", [1, TIME])
@pytest.mark.parametrize(("alpha", "beta"), [(0.0, 0.0), (2.0, 0.0), (0.0, 1.0), (2.0, 1.0)])
def test_loss_and_gradients_are_the_definition(alpha: float, beta: float, time: int) -> None:
    made, targets = prediction(time)
    assert made.activations is not None
    loss, _ = Likelihood(alpha, beta)(made, targets)
    # The regularizers are computed in float32, as they are in training.
    tolerance = 1e-12 if alpha == beta == 0 else 1e-6
    torch.testing.assert_close(loss, naive(made, targets, alpha, beta), rtol=0, atol=tolerance, check_dtype=False)
    leaves = [made.activations.last_raw, made.activations.last_dropped]
    expected = naive(made, targets, alpha, beta)
    for mine, reference in zip(gradients(loss, leaves), gradients(expected, leaves), strict=True):
        torch.testing.assert_close(mine, reference, rtol=0, atol=tolerance)


def gradients(loss: Tensor, leaves: list[Tensor]) -> tuple[Tensor, ...]:
    return torch.autograd.grad(loss, leaves, allow_unused=True, materialize_grads=True)


def test_the_figures_are_the_likelihood_alone() -> None:
    made, targets = prediction()
    _, figures = Likelihood(2.0, 1.0)(made, targets)
    torch.testing.assert_close(figures["nats"], -made.log_prob(targets).mean())
    assert not figures["nats"].requires_grad


def test_regularizers_need_activations() -> None:
    made, targets = prediction()
    bare = Softmax(None, made.hidden, made.weight, None)
    with pytest.raises(ValueError, match="activations"):
        Likelihood(1.0)(bare, targets)
    with pytest.raises(ValueError, match="activations"):
        Likelihood(0.0, 1.0)(bare, targets)
    assert torch.equal(Likelihood()(bare, targets)[0], Likelihood()(made, targets)[0])


def test_adversarial_training_shifts_what_is_trained_and_not_the_figures() -> None:
    made, targets = prediction()
    plain, figures = Likelihood(2.0, 1.0)(made, targets)
    loss, told = Likelihood(2.0, 1.0, 0.3)(made, targets)
    true, lowered = made.shifted_log_prob(targets, 0.3)
    assert told.keys() == figures.keys() and torch.equal(told["nats"], figures["nats"])
    assert not told["nats"].requires_grad
    torch.testing.assert_close(loss - plain, (true - lowered).mean(), rtol=0, atol=1e-6)
    assert loss > plain


def test_without_a_radius_nothing_is_computed_twice() -> None:
    made, targets = prediction()
    log_prob, trained = likelihood(made, targets, 0.0)
    assert log_prob is trained and torch.equal(trained, made.log_prob(targets))


def test_a_prediction_without_logits_of_its_own_cannot_be_shifted() -> None:
    made, targets = prediction()
    blend = Interpolation(None, made, made, torch.zeros(BATCH, TIME, 2))
    Likelihood()(blend, targets)
    with pytest.raises(ValueError, match="needs a softmax or a mixture of them, not Interpolation"):
        Likelihood(adversarial=0.1)(blend, targets)


# --- of a blend ---


def blended(gate: list[float] | None = None) -> tuple[Interpolation, Tensor]:
    p, targets = prediction()
    q = Softmax(None, torch.randn(BATCH, TIME, UNITS, dtype=torch.float64).requires_grad_(), p.weight, None)
    logits = torch.randn(BATCH, TIME, 2, dtype=torch.float64)
    if gate is not None:
        logits[...] = torch.tensor(gate, dtype=torch.float64)
    return Interpolation(p.activations, p, q, logits.requires_grad_(), 10.0), targets


def naive_gated(made: Interpolation, targets: Tensor, settings: RewardConfig) -> Tensor:
    """Equations 11 to 14, token by token, with the reward as a number."""
    loss = torch.zeros(())
    for b in range(BATCH):
        for t in range(TIME):
            p, q = (part.log_probs()[b, t, targets[b, t]].exp() for part in (made.p, made.q))
            sharp, blunt = (torch.softmax(made.gate_logits[b, t] / temperature, 0)[0] for temperature in (1.0, 10.0))
            z = min((q.item() / (p.item() + 1e-10)) ** settings.power, settings.ceiling) - settings.baseline
            r = z if z >= 0 else settings.slope * z
            log_lambda = sharp.log()
            if r < 0 and log_lambda < settings.floor:
                log_lambda = log_lambda.new_tensor(settings.floor)
            loss = loss - (blunt * q + (1 - blunt) * p).log() - settings.weight * r * log_lambda
    return loss / (BATCH * TIME)


@pytest.mark.parametrize(
    ("settings", "gate"),
    [
        (RewardConfig(), None),
        (RewardConfig(weight=0.1), None),
        (RewardConfig(weight=0.1, power=2.0, ceiling=3.0, baseline=0.5, slope=0.2), None),
        (RewardConfig(weight=0.1, floor=-4.0), [-3.0, 3.0]),  # log lambda -6: penalties are held, rewards are not
    ],
)
def test_the_gated_loss_and_its_gradients_are_the_equations(settings: RewardConfig, gate: list[float] | None) -> None:
    made, targets = blended(gate)
    loss, figures = GatedLikelihood(0.0, 0.0, 0.0, settings)(made, targets)
    expected = naive_gated(made, targets, settings)
    torch.testing.assert_close(loss, expected, rtol=0, atol=1e-10, check_dtype=False)
    assert made.activations is not None and isinstance(made.q, Softmax)
    leaves = [made.activations.last_dropped, made.q.hidden, made.gate_logits]
    for mine, reference in zip(gradients(loss, leaves), gradients(expected, leaves), strict=True):
        assert reference.abs().max() > 0
        torch.testing.assert_close(mine, reference, rtol=0, atol=1e-10)
    assert set(figures) == set(GatedLikelihood.figures)


def test_adversarial_training_of_a_blend_is_of_p_alone() -> None:
    made, targets = blended()
    assert isinstance(made.p, Softmax)
    loss, figures = GatedLikelihood(0.0, 0.0, 0.3, RewardConfig(weight=0.1))(made, targets)
    plain, told = GatedLikelihood(0.0, 0.0, 0.0, RewardConfig(weight=0.1))(made, targets)
    assert all(torch.equal(figures[name], told[name]) for name in figures)
    gate_q, gate_p = made.log_gates()
    lowered = torch.logaddexp(gate_p + made.p.shifted_log_prob(targets, 0.3)[1], gate_q + made.q.log_prob(targets))
    torch.testing.assert_close(loss - plain, (made.log_prob(targets) - lowered).mean())
    assert loss > plain


def test_the_reward_is_within_its_bounds_and_the_figure_of_the_paper() -> None:
    log_q = torch.log(torch.tensor([1.0, 1.2, 1.585, 100.0, 0.5, 1e-6], dtype=torch.float64))
    found = reward(torch.zeros(6, dtype=torch.float64), log_q, RewardConfig())
    expected = torch.tensor([0.0, 1.2**5 - 1, 9.0, 9.0, 3 * (0.5**5 - 1), -3.0], dtype=torch.float64)
    torch.testing.assert_close(found, expected, rtol=0, atol=3e-3)


def test_nothing_is_rewarded_where_the_buffer_is_empty() -> None:
    made, targets = blended()
    with torch.no_grad():
        made.gate_logits[:, 0, 0] = -torch.inf
    loss, figures = GatedLikelihood(0.0, 0.0, 0.0, RewardConfig(weight=0.1))(made, targets)
    gradient = gradients(loss, [made.gate_logits])[0]
    assert loss.isfinite() and all(value.isfinite() for value in figures.values())
    assert gradient.isfinite().all() and (gradient[:, 0] == 0).all() and (gradient[:, 1:] != 0).all()


# --- what is asked alone ---


def masked(made: Softmax, targets: Tensor, asked: Tensor) -> Tensor:
    """The sum over the targets that are asked, by all there are."""
    total = torch.zeros((), dtype=torch.float64)
    for b in range(BATCH):
        for t in range(targets.shape[1]):
            if asked[b, t]:
                total = total - made.log_probs()[b, t, targets[b, t]]
    return total / targets.numel()


def test_only_what_is_asked_is_trained_on() -> None:
    made, targets = prediction()
    asked = torch.tensor([[True, False, False, True], [False, False, False, True]])
    loss, figures = Likelihood()(made, targets, asked)
    expected = masked(made, targets, asked)
    torch.testing.assert_close(loss, expected, rtol=0, atol=1e-12)
    (mine,), (reference,) = gradients(loss, [made.hidden]), gradients(expected, [made.hidden])
    torch.testing.assert_close(mine, reference, rtol=0, atol=1e-12)
    assert (mine[~asked] == 0).all() and (mine[asked] != 0).any()
    assert figures["nats"].item() == pytest.approx(loss.item()) and figures["answer_share"].item() == pytest.approx(
        3 / 8
    )
    nothing, figures = Likelihood()(made, targets, torch.zeros_like(asked))
    assert nothing.item() == figures["nats"].item() == figures["answer_share"].item() == 0
    everything, _ = Likelihood()(made, targets, torch.ones_like(asked))
    torch.testing.assert_close(everything, Likelihood()(made, targets)[0])


def test_activations_are_regularised_where_nothing_is_asked_too() -> None:
    made, targets = prediction()
    assert made.activations is not None
    for asked in (torch.zeros(BATCH, TIME, dtype=torch.bool), torch.rand(BATCH, TIME) < 0.5):
        bare, _ = Likelihood()(made, targets, asked)
        loss, _ = Likelihood(2.0, 1.0)(made, targets, asked)
        of_all = Likelihood(2.0, 1.0)(made, targets)[0] - Likelihood()(made, targets)[0]
        torch.testing.assert_close(loss - bare, of_all, rtol=0, atol=1e-6, check_dtype=False)
        assert of_all > 0


def test_a_blend_too_is_trained_on_what_is_asked() -> None:
    torch.manual_seed(1)
    parts = [Softmax(None, torch.randn(BATCH, TIME, UNITS), torch.randn(TYPES, UNITS), None) for _ in range(2)]
    blend = Interpolation(None, *parts, torch.randn(BATCH, TIME, 2), 1.0)
    targets, asked = torch.randint(TYPES, (BATCH, TIME)), torch.rand(BATCH, TIME) < 0.5
    objective = GatedLikelihood(0.0, 0.0, 0.0, RewardConfig(weight=0.1))
    loss, figures = objective(blend, targets, asked)
    rows, times = torch.where(asked)
    alone, of_these = objective(blend.select(rows, times), targets[rows, times, None])
    share = asked.float().mean()
    torch.testing.assert_close(loss, alone * share)
    for name, value in of_these.items():
        torch.testing.assert_close(figures[name], value * share)


def test_the_figures_of_a_run_on_what_is_asked() -> None:
    config = RunConfig(training=TrainingConfig(answer_loss_only=True))
    assert build_objective(config, 0.0).figures == ("nats", "answer_share")
    assert build_objective(RunConfig(), 0.0).figures == ("nats",)


def test_an_auxiliary_loss_is_that_of_every_inner_level() -> None:
    (made, targets), level = prediction(), torch.randn(BATCH, TIME, UNITS, dtype=torch.float64)
    inner = tuple(replace(made, hidden=level * scale, activations=None) for scale in (1.0, 0.5))
    assert made.activations is not None
    whole = replace(made, activations=replace(made.activations, inner_predictions=inner))
    own = naive(made, targets, 0.0, 0.0)
    expected = own - 0.3 * sum(one.log_prob(targets).mean() for one in inner)
    found, figures = Likelihood(auxiliary=0.3)(whole, targets)
    torch.testing.assert_close(found, expected, rtol=0, atol=1e-10)
    torch.testing.assert_close(figures["nats"], own.detach(), rtol=0, atol=1e-10)
    torch.testing.assert_close(Likelihood()(whole, targets)[0], own, rtol=0, atol=1e-10)


@pytest.mark.parametrize("auxiliary", [None, 80])
def test_an_auxiliary_loss_needs_inner_levels_that_predict(auxiliary: int | None) -> None:
    core = TrellisConfig(auxiliary=auxiliary, auxiliary_weight=0.3)
    with pytest.raises(
        UserError, match=r"none of this model's predicts; set model\.core\.auxiliary below its levels, or"
    ):
        outline(ModelConfig(core=core), TYPES)
