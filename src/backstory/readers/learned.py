"""A language model with dynamic weights: dynamic evaluation whose gates a meta-learner sets, weight by weight (eqs. 2, 3)."""

import re
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Self

import torch
from torch import Tensor

from backstory.config import UserError, from_dict, pasted, to_dict
from backstory.config.readers import DynamicSettings, GateSettings, LearnedSettings, completed
from backstory.models import LanguageModel, Precision
from backstory.readers.dynamic import DynamicEvaluation, RootMeanSquare
from backstory.readers.gradient_statistics import Statistics
from backstory.readers.kind import BuildContext, ReaderKind, saved_in
from backstory.readers.meta_network import FADING, Features, GatedUpdate, GateNetwork
from backstory.runs.run import check_tensors, load_weights, saved_dtype
from backstory.runs.run import weights as parameters
from backstory.storage.checkpoint import DamagedCheckpoint, read_checkpoint, write_checkpoint
from backstory.storage.documents import has_fields

NAME = "gates"


@dataclass(frozen=True)
class Learned:
    """A trained meta-learner: the network, and the dynamic evaluation that its gates multiply."""

    network: GateNetwork
    base: DynamicSettings
    spread: tuple[float, float]
    """Mean and deviation of the log gradient, by which that feature is standardised."""
    how: dict[str, Any]
    """Record of its training."""


class LearnedReader(DynamicEvaluation):
    """Dynamic evaluation with gates set by the meta-learner."""

    name = "learned"

    def __init__(
        self,
        model: LanguageModel,
        learned: Learned,
        statistics: Statistics,
        precision: Precision | None = None,
        scales: LearnedSettings | None = None,
    ) -> None:
        """Raises UserError where the statistics are not of these weights."""
        super().__init__(model, learned.base, statistics, precision)
        assert isinstance(self.rule, RootMeanSquare)
        if learned.network.settings.per_tensor and len(learned.network.bias) != len(self.weights.names):
            raise UserError("the meta-learner was trained for other weights of the model; train it again")
        self.learned, self.scales, base = learned, scales or LearnedSettings(), self.rule
        learned.network.to(self.weights.delta.device, self.weights.delta.dtype)
        rms = statistics.rms(self.weights)
        fisher = statistics.fisher(self.weights) if learned.network.settings.fisher else None
        features = Features(base, rms, fisher, learned.spread)
        scaled = replace(
            learned.base,
            rate=learned.base.rate * self.scales.rate,
            decay=learned.base.decay * self.scales.decay,
        )
        self.rule = self._root_mean_square(scaled, statistics)
        self.gated = GatedUpdate(self.rule, learned.network, features, self.weights)
        self._mean: Tensor | None = None
        """Running mean of the segments' losses."""

    def facts(self) -> dict[str, Any]:
        features, static = self.gated.features, self.gated.static
        held = (
            features.still,
            features.gradient_scale,
            features.displacement_scale,
            self.gated.memory,
            *([] if static is None else [static]),
        )
        found = super().facts()
        base = to_dict(self.learned.base)
        return found | {
            "bytes": found["bytes"] + sum(v.nbytes for v in held),
            "base": base,
            "trained": self.learned.how,
        }

    def prepared(self) -> list[str]:
        return [*super().prepared(), learned_name(self.scales.network)]

    def start(self, batch_size: int) -> None:
        super().start(batch_size)
        self._mean = None

    @torch.no_grad()
    def learn(self, loss: Tensor, gradients: list[Tensor | None]) -> None:
        self.gated.loss = self.relative(loss.to(self.weights.delta.dtype))
        self.weights.update(gradients, self.gated)

    def relative(self, loss: Tensor) -> Tensor:
        """A segment's loss over the running mean of those before it, within [-2, 1]; it is then taken into the mean."""
        mean = loss if self._mean is None else self._mean
        self._mean = mean + FADING * (loss - mean)
        return (loss - mean).clamp(-2.0, 1.0)

    def snapshot(self) -> dict[str, Any]:
        return super().snapshot() | {"mean": None if self._mean is None else self._mean.clone()}

    def restore(self, snapshot: dict[str, Any]) -> None:
        if snapshot["mean"] is not None and snapshot["mean"].dim():
            raise ValueError("the mean of the losses is not one number")
        super().restore(snapshot)
        self._mean = None if snapshot["mean"] is None else snapshot["mean"].clone()

    def fork(self) -> Self:
        assert self.statistics is not None
        other = type(self)(self.model, self.learned, self.statistics, self.precision, self.scales)
        other.restore(self.snapshot())
        return other


def learned_name(name: str) -> str:
    """Return the folder of a meta-learner. Raises UserError for a name that is not allowed."""
    if not re.fullmatch(r"[A-Za-z0-9][A-Za-z0-9-]{0,63}", name):
        raise UserError(f"a meta-learner's name is made of letters, digits and hyphens, not '{name}'")
    return f"{NAME}-{name}"


def save_learned(folder: Path, name: str, weights: str, learned: Learned) -> Path:
    """Write a meta-learner for a model with this hash of its weights into a folder of readers' files. Raises OSError."""
    folder.mkdir(parents=True, exist_ok=True)
    document = {
        "weights": weights,
        "base": to_dict(learned.base),
        "gates": to_dict(learned.network.settings),
        "spread": list(learned.spread),
        "how": learned.how,
    }
    return write_checkpoint(folder, learned_name(name), {NAME: parameters(learned.network)}, {NAME: document})


def load_learned(folder: Path, name: str, weights: str, run: Path) -> Learned:
    """Load a meta-learner from a folder of readers' files.

    Raises UserError if there is none of this name, or it is for other `weights` (their hash).
    """
    path, again = folder / learned_name(name), f"train it with `backstory reader train {pasted(run)}`"
    if not path.exists():
        there = sorted(p.name.removeprefix(f"{NAME}-") for p in folder.glob(f"{NAME}-*"))
        known = f"; there {'is' if len(there) == 1 else 'are'} {', '.join(there)}" if there else f"; {again}"
        raise UserError(f"{run} has no meta-learner called '{name}'{known}")
    try:
        found = read_checkpoint(path)
    except DamagedCheckpoint as error:
        raise UserError(f"{error}; {again}") from None
    document: Any = found.documents.get(NAME)
    tensors = found.tensors.get(NAME)
    hints = {
        "weights": str,
        "base": dict[str, Any],
        "gates": dict[str, Any],
        "spread": list[float],
        "how": dict[str, Any],
    }
    if tensors is None or not has_fields(document, hints) or len(document["spread"]) != 2:
        raise UserError(f"{path} holds no meta-learner of this version; {again}")
    if document["weights"] != weights:
        raise UserError(f"{path} was trained for other weights than {run} has now; {again}")
    try:
        base = from_dict(DynamicSettings, completed(DynamicSettings, document["base"]), str(path))
        gates = from_dict(GateSettings, document["gates"], str(path))
        if base.rule != "rms" or document["spread"][1] <= 0:
            raise ValueError("no meta-learner was ever trained so")
        size = [*tensors["bias"].shape, 1][0] if "bias" in tensors else 1
        network = GateNetwork(gates, size).to(saved_dtype(tensors))
        check_tensors(tensors, parameters(network), "gates")
    except (UserError, ValueError) as error:
        raise UserError(f"{path} is damaged: {error}; {again}") from None
    load_weights(network, tensors)
    network.requires_grad_(False)
    return Learned(
        network,
        base,
        (document["spread"][0], document["spread"][1]),
        document["how"],
    )


def _build(context: BuildContext, settings: LearnedSettings) -> LearnedReader:
    run = context.run
    run.check_as_trained("meta-learners are")
    learned = load_learned(saved_in(run), settings.network, run.weights_hash, run.folder)
    statistics = context.statistics(learned.base.moving)
    return LearnedReader(run.model, learned, statistics, context.precision, settings)


KIND = ReaderKind(
    "learned",
    "a language model with dynamic weights: dynamic evaluation with gates that a meta-learner sets",
    _build,
    LearnedSettings,
    adapts_weights=True,
    identity=("network",),
    steps=lambda settings: {"rate": 1.4, **({"decay": 1.8} if settings.decay else {})},
)
