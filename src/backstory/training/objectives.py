"""Training objective: the mean negative log-likelihood, with AR and TAR (Merity et al. 2018), and the gate's reward."""

from dataclasses import replace
from typing import Any, Protocol

import torch
from torch import Tensor

from backstory.config import NoBufferConfig, RewardConfig, RunConfig
from backstory.evaluation.metrics.gate_statistics import LEAST, reward
from backstory.models import Interpolation, MixtureOfSoftmaxes, Prediction, Softmax
from backstory.models.sampled_softmax import sampled_softmax
from backstory.utils.arguments import checked, described, diagnosed


class Objective(Protocol):
    """A loss to differentiate and figures to look at, from a prediction and its targets (B, T)."""

    figures: tuple[str, ...]
    """Names of the figures."""

    def __call__(
        self, prediction: Prediction, targets: Tensor, answer_mask: Tensor | None = None
    ) -> tuple[Tensor, dict[str, Tensor]]:
        """`nats`, the mean negative log-likelihood per token, is always among the figures (detached scalars).

        All are means per token, the same ones at every step, and reach metrics.jsonl under their names. With an
        `answer_mask` (B, T) all targets but answers count 0 in every mean, so that an answer weighs the same in every
        segment; the share of answers is the figure ANSWER_SHARE.
        """
        ...


ANSWER_SHARE = "answer_share"
"""Name of the figure: the share of targets that are answers, if only answers are trained on."""


def mean(values: Tensor, answer_mask: Tensor | None) -> Tensor:
    """Return the mean over (B, T), in which all but answers count 0."""
    return values.mean() if answer_mask is None else values.masked_fill(~answer_mask, 0.0).mean()


def likelihood(
    prediction: Prediction, targets: Tensor, epsilon: float, sampled: tuple[int, int] = (0, 0)
) -> tuple[Tensor, Tensor]:
    """Return log p of the targets and the log p to train on, with the targets' logits shifted if epsilon > 0; each (B, T).

    Both are of a sampled softmax if words are drawn: `sampled` holds their number, and that of the frequent words.
    Raises ValueError for a prediction that has no logits of its own to shift or to sample.
    """
    if sampled[0]:
        if not isinstance(prediction, Softmax | MixtureOfSoftmaxes):
            raise ValueError(f"a sampled softmax needs a softmax or a mixture of them, not {type(prediction).__name__}")
        drawn, frequent = sampled
        prediction, targets = sampled_softmax(prediction, targets, frequent, drawn)
    if not epsilon:
        log_prob = prediction.log_prob(targets)
        return log_prob, log_prob
    if not isinstance(prediction, Softmax | MixtureOfSoftmaxes):
        raise ValueError(f"adversarial training needs a softmax or a mixture of them, not {type(prediction).__name__}")
    return prediction.shifted_log_prob(targets, epsilon)


def _check(objective: object, prediction: Any = None, targets: Any = None, answer_mask: Any = None) -> None:
    """Raise TypeError or ValueError for arguments that have no loss."""
    if not isinstance(prediction, Prediction):
        raise TypeError(f"prediction must be a Prediction, not {described(prediction)}")
    prediction.log_prob(targets)
    if answer_mask is not None and not (isinstance(answer_mask, Tensor) and answer_mask.dtype == torch.bool):
        raise TypeError(f"answer_mask must be a tensor of True and False, not {described(answer_mask)}")
    if answer_mask is not None and answer_mask.shape != targets.shape:
        raise ValueError(f"answer_mask must be of shape {tuple(targets.shape)}, not {tuple(answer_mask.shape)}")


@checked(activation_l2=0, temporal_l2=0, adversarial=0, auxiliary=0)
class Likelihood:
    """-mean log p(target) + alpha mean(dropped^2) + beta mean((raw_t - raw_{t-1})^2), of the last layer.

    `auxiliary` weighs the mean negative log-likelihood of each inner level that predicts as well (Bai et al. 2019).

    With `adversarial` above 0 the loss takes the target's probability under the worst shift of its output weights inside
    a ball of that radius, relative to them (Wang, Gong and Liu 2019); the figures stay those of the prediction. With `sampled`
    words both are of a sampled softmax, an estimate.
    """

    figures: tuple[str, ...] = ("nats",)
    sampled: tuple[int, int] = (0, 0)
    """Words of a sampled softmax: those drawn at each step (0: all words take part) and the frequent ones."""

    def __init__(
        self, activation_l2: float = 0.0, temporal_l2: float = 0.0, adversarial: float = 0.0, auxiliary: float = 0.0
    ) -> None:
        self.activation_l2 = activation_l2
        self.temporal_l2 = temporal_l2
        self.adversarial = adversarial
        self.auxiliary = auxiliary

    @diagnosed(_check)
    def __call__(
        self, prediction: Prediction, targets: Tensor, answer_mask: Tensor | None = None
    ) -> tuple[Tensor, dict[str, Tensor]]:
        loss, figures = self.of_targets(prediction, targets, answer_mask)
        if answer_mask is not None:
            figures[ANSWER_SHARE] = answer_mask.float().mean()
        activations = prediction.activations
        # AR and TAR take the activations of every position: where nothing is answered the model reads what answers need.
        if activations is None and (self.activation_l2 or self.temporal_l2):
            raise ValueError("AR and TAR need a prediction that carries its activations")
        if activations is not None and self.activation_l2:
            loss = loss + self.activation_l2 * activations.last_dropped.float().square().mean()
        if activations is not None and self.temporal_l2 and targets.shape[1] > 1:
            raw = activations.last_raw.float()
            loss = loss + self.temporal_l2 * (raw[:, 1:] - raw[:, :-1]).square().mean()
        if activations is not None and self.auxiliary:
            for level in activations.inner_predictions:
                loss = loss - self.auxiliary * mean(likelihood(level, targets, 0.0, self.sampled)[1], answer_mask)
        return loss, figures

    def of_targets(
        self, prediction: Prediction, targets: Tensor, answer_mask: Tensor | None
    ) -> tuple[Tensor, dict[str, Tensor]]:
        """Return the part of the loss that depends on the targets, and the figures."""
        log_prob, trained = likelihood(prediction, targets, self.adversarial, self.sampled)
        return -mean(trained, answer_mask), {"nats": -mean(log_prob.detach(), answer_mask)}


class GatedLikelihood(Likelihood):
    """-log p~(target) of an interpolation at the training temperature, -eta r log lambda at temperature 1 (eqs. 11 to 14).

    Adversarial training shifts p, in the likelihood alone.
    """

    figures = ("nats", "nats_p", "nats_q", "lambda", "reward")

    def __init__(
        self,
        activation_l2: float,
        temporal_l2: float,
        adversarial: float,
        reward: RewardConfig,
        auxiliary: float = 0.0,
    ) -> None:
        super().__init__(activation_l2, temporal_l2, adversarial, auxiliary)
        self.reward = reward

    def of_targets(
        self, prediction: Prediction, targets: Tensor, answer_mask: Tensor | None
    ) -> tuple[Tensor, dict[str, Tensor]]:
        assert isinstance(prediction, Interpolation)
        log_p, trained = likelihood(prediction.p, targets, self.adversarial, self.sampled)
        log_q, (gate_q, gate_p) = prediction.q.log_prob(targets), prediction.log_gates()
        loss = -mean(torch.logaddexp(gate_p + trained, gate_q + log_q), answer_mask)
        nats = -mean(torch.logaddexp(gate_p + log_p, gate_q + log_q), answer_mask)
        r, log_lambda = reward(log_p, log_q, self.reward), replace(prediction, temperature=1.0).log_gates()[0]
        if self.reward.weight:
            # A penalty is bounded below; a reward is not, as only it could lift lambda again. An empty buffer leaves no
            # choice to reward.
            bounded = torch.where(r < 0, log_lambda.clamp(min=self.reward.floor), log_lambda)
            bounded = bounded.masked_fill(torch.isneginf(log_lambda), 0.0)
            loss = loss - self.reward.weight * mean(r * bounded, answer_mask)
        figures = {
            "nats": nats,
            "nats_p": -mean(log_p, answer_mask),
            "nats_q": -mean(log_q.clamp(min=LEAST), answer_mask),
        }
        figures |= {"lambda": mean(log_lambda.exp(), answer_mask), "reward": mean(r, answer_mask)}
        return loss, {name: value.detach() for name, value in figures.items()}


def build_objective(config: RunConfig, adversarial: float, auxiliary: float = 0.0) -> Likelihood:
    """Return the objective of a run, with a radius for adversarial training and the core's weight of an auxiliary loss."""
    settings = config.training
    l2, buffer = (settings.activation_l2, settings.temporal_l2), config.model.buffer
    if isinstance(buffer, NoBufferConfig):
        objective = Likelihood(*l2, adversarial, auxiliary)
    else:
        objective = GatedLikelihood(*l2, adversarial, buffer.gate.reward, auxiliary)
    objective.sampled = (config.model.head.sampled, config.model.head.frequent)
    if settings.answer_loss_only:
        objective.figures = (*objective.figures, ANSWER_SHARE)
    return objective
