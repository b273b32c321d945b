"""What training minimises: the mean negative log-likelihood, with AR and TAR (Merity et al. 2018)."""

from typing import Protocol

from torch import Tensor

from backstory.models import Prediction


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
        loss = -prediction.log_prob(targets).mean()
        figures = {"nats": loss.detach()}
        activations = prediction.activations
        if activations is None and (self.activation_l2 or self.temporal_l2):
            raise ValueError("AR and TAR need a prediction that carries its activations")
        if activations is not None and self.activation_l2:
            loss = loss + self.activation_l2 * activations.last_dropped.float().square().mean()
        if activations is not None and self.temporal_l2 and targets.shape[1] > 1:
            raw = activations.last_raw.float()
            loss = loss + self.temporal_l2 * (raw[:, 1:] - raw[:, :-1]).square().mean()
        return loss, figures
