"""Dynamic evaluation (Krause et al. 2018): after every segment the weights take a step down the gradient of its loss.

theta <- theta + lambda D (theta_0 - theta) - eta g / (RMS + eps), elementwise, kept as delta = theta - theta_0.
"""

from collections.abc import Sequence
from functools import cached_property
from typing import Any, NamedTuple, Self

import torch
from torch import Tensor
from torch.nn.utils.parametrize import cached

from backstory.config.readers import DynamicSettings
from backstory.config.strict import conforming
from backstory.models import LanguageModel, Precision, Prediction, State, clone, detach
from backstory.models.kernels import compiled
from backstory.models.kernels.factored_gradients import AnyGradient, FactoredGradients, factoring, whole
from backstory.readers.base import Reader, ReaderCapabilities
from backstory.readers.gradient_statistics import Statistics, statistics_name
from backstory.readers.kind import BuildContext, ReaderKind
from backstory.readers.moving_weights import MovingWeights, Piece, Update
from backstory.utils.arguments import checked
from backstory.utils.errors import UserError

MOST_FACTORED = 32
"""Batch size times steps of a segment up to which gradients are left in factors: multiplying these out for more positions takes
longer than to read and write the gradients."""


def search_factors(settings: DynamicSettings) -> dict[str, float]:
    """Return the factor of each setting that matters to the rule in a search that steps up and down."""
    factors = {"rate": 2.0, "decay": 3.0}
    if settings.rule == "rms":
        factors["epsilon"] = 2.0
    return factors | ({"clip": 2.0} if settings.clip else {})


class Rule(Update):
    """An update with a `begin` for each segment, and with moments from one segment to the next; this one has none."""

    def begin(self) -> None:
        """Begin the step of a segment, of which the pieces follow."""

    def reset(self) -> None:
        """Forget the segments before."""

    def snapshot(self) -> dict[str, Any]:
        return {}

    def restore(self, snapshot: dict[str, Any]) -> None:
        """Restore a snapshot."""


class RootMeanSquare(Rule):
    """delta <- (1 - min(1, lambda D)) delta - eta g / (RMS + eps), with D = RMS / mean(RMS).

    The mean is over all weights, or that of each tensor's mean (`normalization`).
    """

    def __init__(self, settings: DynamicSettings, rms: Tensor, tensors: Sequence[slice] = (slice(None),)) -> None:
        """`rms` (N,): root mean square of the gradients in training; `tensors`: where each parameter lies in it."""
        self.settings = settings
        parts = [rms] if settings.normalization == "weights" else [rms[tensor] for tensor in tensors]
        mean = max(sum(part.double().mean().item() for part in parts) / len(parts), 1e-30)
        self.rms, self.step = rms, compiled.Step(settings.rate, settings.epsilon, settings.decay / mean)

    @cached_property
    def decay(self) -> Tensor:
        """r (N,): min(1, lambda D)."""
        return (self.rms * self.step.decay).clamp_(max=1.0)

    @cached_property
    def rate(self) -> Tensor:
        """i (N,): eta / (RMS + eps)."""
        return self.step.rate / (self.rms + self.step.epsilon)

    def at_once(self, piece: Piece, grad: AnyGradient) -> bool:
        _, region, delta, static, moved = piece
        if not compiled.takes(self.rms, delta, static, moved):
            return False
        compiled.displace(grad, self.step, rms=self.rms[region], static=static, delta=delta, moved=moved)
        return True

    def __call__(self, piece: Piece, grad: Tensor) -> None:
        displace(piece.delta, grad, self.decay[piece.region], self.rate[piece.region])


def displace(delta: Tensor, grad: Tensor, decay: Tensor, rate: Tensor) -> None:
    """In place: delta <- (1 - decay) delta - rate grad."""
    delta.addcmul_(delta, decay, value=-1).addcmul_(grad, rate, value=-1)


class Descent(Rule):
    """delta <- (1 - lambda) delta - eta g."""

    def __init__(self, settings: DynamicSettings) -> None:
        self.rate, self.decay = settings.rate, settings.decay

    def __call__(self, piece: Piece, grad: Tensor) -> None:
        piece.delta.mul_(1 - self.decay).add_(grad, alpha=-self.rate)


class Nadam(Rule):
    """A step of NAdam (Dozat 2016) on delta, after delta <- (1 - lambda) delta.

    m <- beta1 m + (1 - beta1) g, n <- beta2 n + (1 - beta2) g^2, and with mu_t = beta1 (1 - 0.96^(t / 250) / 2) and M_t the
    product of mu_1 to mu_t: delta <- delta - eta (mu_(t+1) m / (1 - M_(t+1)) + (1 - mu_t) g / (1 - M_t)) / (sqrt(n') + eps),
    where n' = n / (1 - beta2^t).
    """

    SECOND = 0.999
    """beta2."""

    def __init__(self, settings: DynamicSettings, weights: MovingWeights) -> None:
        self.settings = settings
        self.mean, self.square = torch.zeros_like(weights.delta), torch.zeros_like(weights.delta)
        """m and n, (N,)."""
        self.reset()

    def begin(self) -> None:
        self.steps += 1
        now, then = (self.settings.beta1 * (1 - 0.5 * 0.96 ** (t / 250)) for t in (self.steps, self.steps + 1))
        self.product *= now
        self._of_gradient = -self.settings.rate * (1 - now) / (1 - self.product)
        self._of_mean = -self.settings.rate * then / (1 - self.product * then)
        self._correction = 1 - self.SECOND**self.steps

    def __call__(self, piece: Piece, grad: Tensor) -> None:
        mean, square = self.mean[piece.region], self.square[piece.region]
        mean.lerp_(grad, 1 - self.settings.beta1)
        square.mul_(self.SECOND).addcmul_(grad, grad, value=1 - self.SECOND)
        root = square.div(self._correction).sqrt_().add_(self.settings.epsilon)
        piece.delta.mul_(1 - self.settings.decay)
        piece.delta.addcdiv_(grad, root, value=self._of_gradient).addcdiv_(mean, root, value=self._of_mean)

    def snapshot(self) -> dict[str, Any]:
        return {"mean": self.mean.clone(), "square": self.square.clone(), "steps": self.steps, "product": self.product}

    def reset(self) -> None:
        self.mean.zero_()
        self.square.zero_()
        self.steps, self.product = 0, 1.0

    def restore(self, snapshot: dict[str, Any]) -> None:
        self.mean.copy_(snapshot["mean"])
        self.square.copy_(snapshot["square"])
        self.steps, self.product = snapshot["steps"], snapshot["product"]


class PredictedBlock(NamedTuple):
    """Tokens with their prediction, and what collects the factors of its gradients."""

    tokens: Tensor
    prediction: Prediction
    factors: FactoredGradients | None


class DynamicEvaluation(Reader):
    """Takes a step after every `segment` tokens, on their mean loss, once they are scored; the loaded model stays.

    A block shorter than a segment waits for the next; a longer one is one segment. The hidden state goes on as older weights
    left it.
    """

    name = "dynamic"

    @checked()
    def __init__(
        self,
        model: LanguageModel,
        settings: DynamicSettings,
        statistics: Statistics | None = None,
        precision: Precision | None = None,
    ) -> None:
        """Raises UserError where the rule needs statistics that are not given, or they are another model's."""
        settings = conforming(settings, "the reader")
        self.model, self.settings, self.statistics = model, settings, statistics
        self.precision = precision or Precision(torch.float32, "the default for reading")
        self.capabilities = ReaderCapabilities(block_invariant=False, adapts_weights=True, collects_blocks=True)
        self.block = settings.segment
        self.weights = MovingWeights(model, settings.moving)
        self.rule = self._rule()
        self._state: State = None
        """After all tokens observed."""
        self._next: State = None
        self._begun: State = None
        """Before the tokens that wait for a step."""
        self._waiting: list[tuple[Tensor, Tensor]] = []
        """Tokens and targets observed since the last step."""
        self._block: PredictedBlock | None = None

    def _rule(self) -> Rule:
        if self.settings.rule == "sgd":
            return Descent(self.settings)
        if self.settings.rule == "nadam":
            return Nadam(self.settings, self.weights)
        if self.statistics is None:
            raise UserError("the rule rms needs statistics; collect them once with `backstory reader statistics RUN`")
        return RootMeanSquare(self.settings, self.statistics.rms(self.weights), self.weights.regions)

    def facts(self) -> dict[str, Any]:
        """`moving`, how many weights move; `bytes`, what is held for that beside the model; the text of the statistics."""
        weights, vectors = self.weights, [v for v in vars(self.rule).values() if isinstance(v, Tensor)]
        if self.statistics is None:
            return {"moving": len(weights), "bytes": weights.memory + sum(v.nbytes for v in vectors)}
        vectors += [*self.statistics.mean_square.values(), *self.statistics.information.values()]
        known = self.statistics.collected
        return {
            "moving": len(weights),
            "bytes": weights.memory + sum(v.nbytes for v in vectors),
            "statistics": {"text": known.text, "tokens": known.tokens},
        }

    def prepared(self) -> list[str]:
        return [] if self.statistics is None else [statistics_name(self.statistics.collected.moving)]

    def start(self, batch_size: int) -> None:
        self.weights.set()
        self.rule.reset()
        self._state = self._next = self._begun = self.model.start(batch_size)
        self._waiting, self._block = [], None

    def predict(self, tokens: Tensor) -> Prediction:
        # The graph of a block that is a whole segment serves the step as well.
        with torch.set_grad_enabled(self._whole(tokens)):
            self._block, self._next = self._forward(tokens, self._state)
        return self._block.prediction

    def _forward(self, tokens: Tensor, state: State) -> tuple["PredictedBlock", State]:
        factors = self._factors(tokens)
        with self.precision.context(tokens.device), cached(), factoring(factors):
            prediction, after = self.weights.model(tokens, state)
        return PredictedBlock(tokens, prediction, factors), after

    def _factors(self, tokens: Tensor) -> FactoredGradients | None:
        """Return a collector for a segment whose gradients are left in factors."""
        return self.weights.factors() if tokens.device.type == "cpu" and tokens.numel() <= MOST_FACTORED else None

    def _whole(self, tokens: Tensor) -> bool:
        """Return True if a block is a segment by itself."""
        return not self._waiting and tokens.shape[1] >= self.settings.segment

    def observe(self, targets: Tensor) -> None:
        if self._block is None:  # nothing was predicted since the last time
            return
        block, self._block = self._block, None
        known = block if self._whole(block.tokens) else None
        self._waiting.append((block.tokens, targets))
        if sum(t.shape[1] for t, _ in self._waiting) >= self.settings.segment:
            self._step(known)
            self._waiting, self._begun = [], detach(self._next)
        self._state = self._next = detach(self._next)

    def _step(self, known: "PredictedBlock | None") -> None:
        """Move the weights by the gradient of the tokens that wait; `known` is their prediction with its graph, if any."""
        tokens, targets = (torch.cat(parts, 1) for parts in zip(*self._waiting, strict=True))
        with torch.enable_grad():
            segment = self._forward(tokens, self._begun)[0] if known is None else known
            with self.precision.context(tokens.device), factoring(segment.factors):
                loss = -segment.prediction.log_prob(targets).mean()
        self.learn(loss.detach(), self.weights.gradients(loss, segment.factors))

    def learn(self, loss: Tensor, gradients: list[AnyGradient]) -> None:
        """Move the weights by the gradients of a segment's mean loss."""
        if self.settings.clip:
            whole_gradients = [whole(g) for g in gradients]
            norm = torch.nn.utils.get_total_norm([g for g in whole_gradients if g is not None])
            scale = (self.settings.clip / (norm + 1e-6)).clamp(max=1.0)
            # Not in place: two parameters that are added have the same gradient, in the same memory.
            gradients = [None if g is None else g * scale for g in whole_gradients]
        self.rule.begin()
        self.weights.update(gradients, self.rule)

    def snapshot(self) -> dict[str, Any]:
        return {
            "state": clone(self._state),
            "begun": clone(self._begun),
            "waiting": clone(self._waiting),
            "delta": self.weights.delta.clone(),
            "moments": self.rule.snapshot(),
        }

    def restore(self, snapshot: dict[str, Any]) -> None:
        self.weights.set(snapshot["delta"])
        self.rule.restore(snapshot["moments"])
        self._state = self._next = clone(snapshot["state"])
        self._begun, self._waiting, self._block = clone(snapshot["begun"]), clone(snapshot["waiting"]), None

    def fork(self) -> Self:
        other = type(self)(self.model, self.settings, self.statistics, self.precision)
        other.restore(self.snapshot())
        return other


def _build(context: BuildContext, settings: DynamicSettings) -> Reader:
    statistics = context.statistics(settings.moving) if settings.rule == "rms" else None
    return DynamicEvaluation(context.run.model, settings, statistics, context.precision)


def _needs(settings: DynamicSettings) -> dict[str, str]:
    if settings.rule != "rms":
        return {}
    name = statistics_name(settings.moving)
    return {name: "statistics" if name == statistics_name("all") else f"statistics --moving {settings.moving}"}


KIND = ReaderKind(
    "dynamic",
    "dynamic evaluation: after every segment the weights take a step down the gradient of its loss",
    _build,
    DynamicSettings,
    adapts_weights=True,
    needs=_needs,
    identity=("rule", "moving", "normalization"),
    steps=search_factors,
)
