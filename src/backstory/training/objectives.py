"""What training minimises: the mean negative log-likelihood, with AR and TAR (Merity et al. 2018), and the gate's reward."""

from dataclasses import replace
from typing import Protocol

import torch
from torch import Tensor

from backstory.config import RewardConfig, RunConfig, UserError
from backstory.models import Blend, Prediction
from backstory.reading.policy import reward


class Objective(Protocol):
    """A loss to differentiate and figures to look at, from a prediction and its targets (B, T)."""

    figures: tuple[str, ...]
    """Names of the figures."""

    def __call__(self, prediction: Prediction, targets: Tensor) -> tuple[Tensor, dict[str, Tensor]]:
        """`nats`, the mean negative log-likelihood per token, is always among the figures (detached scalars).

        All are means per token, the same ones at every step, and reach metrics.jsonl under their names.
        """
        ...


class Likelihood:
    """-mean log p(target) + alpha mean(dropped^2) + beta mean((raw_t - raw_{t-1})^2), of the last layer."""

    figures: tuple[str, ...] = ("nats",)

    def __init__(self, activation_l2: float = 0.0, temporal_l2: float = 0.0) -> None:
        self.activation_l2 = activation_l2
        self.temporal_l2 = temporal_l2

    def __call__(self, prediction: Prediction, targets: Tensor) -> tuple[Tensor, dict[str, Tensor]]:
        loss, figures = self.likelihood(prediction, targets)
        activations = prediction.activations
        if activations is None and (self.activation_l2 or self.temporal_l2):
            raise ValueError("AR and TAR need a prediction that carries its activations")
        if activations is not None and self.activation_l2:
            loss = loss + self.activation_l2 * activations.last_dropped.float().square().mean()
        if activations is not None and self.temporal_l2 and targets.shape[1] > 1:
            raw = activations.last_raw.float()
            loss = loss + self.temporal_l2 * (raw[:, 1:] - raw[:, :-1]).square().mean()
        return loss, figures

    def likelihood(self, prediction: Prediction, targets: Tensor) -> tuple[Tensor, dict[str, Tensor]]:
        """The part of the loss that depends on the targets, and the figures."""
        loss = -prediction.log_prob(targets).mean()
        return loss, {"nats": loss.detach()}


class GatedLikelihood(Likelihood):
    """Of a blend: -log p~(target) at the training temperature, and -eta r log lambda at temperature 1 (eqs. 11 to 14)."""

    figures = ("nats", "nats_p", "nats_q", "lambda", "reward")

    def __init__(self, activation_l2: float, temporal_l2: float, reward: RewardConfig) -> None:
        super().__init__(activation_l2, temporal_l2)
        self.reward = reward

    def likelihood(self, prediction: Prediction, targets: Tensor) -> tuple[Tensor, dict[str, Tensor]]:
        assert isinstance(prediction, Blend)
        log_p, log_q = prediction.p.log_prob(targets), prediction.q.log_prob(targets)
        gate_q, gate_p = prediction.log_gates()
        loss = nats = -torch.logaddexp(gate_p + log_p, gate_q + log_q).mean()
        r, log_lambda = reward(log_p, log_q, self.reward), replace(prediction, temperature=1.0).log_gates()[0]
        if self.reward.weight:
            # A penalty is held where it would grow without bound, a reward is not: it is what could lift lambda again. Where
            # the buffer is empty there is no choice to reward.
            held = torch.where(r < 0, log_lambda.clamp(min=self.reward.floor), log_lambda)
            held = held.masked_fill(torch.isneginf(log_lambda), 0.0)
            loss = loss - self.reward.weight * (r * held).mean()
        told = {"nats": nats, "nats_p": -log_p.mean(), "nats_q": -log_q.mean()}
        told |= {"lambda": log_lambda.exp().mean(), "reward": r.mean()}
        return loss, {name: value.detach() for name, value in told.items()}


def build_objective(config: RunConfig) -> Likelihood:
    """The objective of a run. Raises UserError for a reward where there is no gate."""
    settings = config.training
    if config.model.buffer.kind == "none":
        if settings.reward.weight:
            raise UserError(
                "training.reward.weight rewards a gate, and the model has none; set model.buffer.kind, or the weight to 0"
            )
        return Likelihood(settings.activation_l2, settings.temporal_l2)
    return GatedLikelihood(settings.activation_l2, settings.temporal_l2, settings.reward)
