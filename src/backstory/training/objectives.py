"""What training minimises: the mean negative log-likelihood, with AR and TAR (Merity et al. 2018)."""

from typing import Protocol

from torch import Tensor

from backstory.models import MixtureOfSoftmaxes, Prediction, Softmax


class Objective(Protocol):
    """A loss to differentiate and figures to look at, from a prediction and its targets (B, T)."""

    figures: tuple[str, ...]
    """Names of the figures."""

    def __call__(self, prediction: Prediction, targets: Tensor) -> tuple[Tensor, dict[str, Tensor]]:
        """`nats`, the mean negative log-likelihood per token, is always among the figures (detached scalars).

        All are means per token, the same ones at every step, and reach metrics.jsonl under their names.
        """
        ...


def likelihood(prediction: Prediction, targets: Tensor, epsilon: float) -> tuple[Tensor, Tensor]:
    """log p of the targets, and what is trained in its place: the same, or with their logits shifted. Each (B, T).

    Raises ValueError for a prediction that has no logits of its own to shift.
    """
    if not epsilon:
        log_prob = prediction.log_prob(targets)
        return log_prob, log_prob
    if not isinstance(prediction, Softmax | MixtureOfSoftmaxes):
        raise ValueError(f"adversarial training needs a softmax or a mixture of them, not {type(prediction).__name__}")
    return prediction.shifted_log_prob(targets, epsilon)


class Likelihood:
    """-mean log p(target) + alpha mean(dropped^2) + beta mean((raw_t - raw_{t-1})^2), of the last layer.

    With `adversarial` above 0 the loss takes the target's probability under the worst shift of its output weights inside
    a ball of that radius, relative to them (Wang, Gong and Liu 2019); the figures stay those of the prediction.
    """

    figures: tuple[str, ...] = ("nats",)

    def __init__(self, activation_l2: float = 0.0, temporal_l2: float = 0.0, adversarial: float = 0.0) -> None:
        self.activation_l2 = activation_l2
        self.temporal_l2 = temporal_l2
        self.adversarial = adversarial

    def __call__(self, prediction: Prediction, targets: Tensor) -> tuple[Tensor, dict[str, Tensor]]:
        log_prob, trained = likelihood(prediction, targets, self.adversarial)
        loss, figures = -trained.mean(), {"nats": -log_prob.detach().mean()}
        activations = prediction.activations
        if activations is None and (self.activation_l2 or self.temporal_l2):
            raise ValueError("AR and TAR need a prediction that carries its activations")
        if activations is not None and self.activation_l2:
            loss = loss + self.activation_l2 * activations.last_dropped.float().square().mean()
        if activations is not None and self.temporal_l2 and targets.shape[1] > 1:
            raw = activations.last_raw.float()
            loss = loss + self.temporal_l2 * (raw[:, 1:] - raw[:, :-1]).square().mean()
        return loss, figures
