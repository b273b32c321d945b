"""Settings of the readers that adapt, and of what trains them."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

from backstory.config.strict import between

Rule = Literal["rms", "sgd", "nadam"]
Normalization = Literal["weights", "tensors"]


@dataclass(frozen=True)
class CacheSettings:
    """Settings of a neural cache; the defaults are the published ones of Penn Treebank."""

    window: int = between(500, 1)
    """Pairs that are remembered."""
    theta: float = between(1.0, 0.0)
    """How much likeness counts; 0: every pair counts the same (a unigram cache)."""
    weight: float = between(0.1, 0.0, 0.999)
    """Lambda, the cache's share of the mixture."""
    confidence: float = between(0.0, 0.0, 0.999)
    """The cache is left out where its likeliest pair has less mass than this, as it is flat there; 0: never."""


@dataclass(frozen=True)
class TemperedSettings:
    """How sure the prediction is."""

    temperature: float = between(1.0, 0.01, 100.0)
    """T of p^(1/T): above 1 less sure than the reader inside, below 1 more."""


@dataclass(frozen=True)
class DynamicSettings:
    """How the weights move."""

    rule: Rule = "rms"
    """rms (steps divided by the root mean square of training gradients), sgd, or nadam."""
    rate: float = between(1e-4, 0.0, 1e30, above=True)
    """eta, the size of a step."""
    decay: float = between(1e-3, 0.0, 0.999999)
    """lambda in [0, 1): the share of the displacement that is taken back at a step; with rms times D = RMS / mean RMS."""
    epsilon: float = between(1e-4, 0.0, above=True)
    """eps: what is added to the RMS (to the root of the second moment, with nadam)."""
    segment: int = between(5, 1)
    """Tokens between two steps."""
    moving: str = "all"
    """Which weights move: all, last:N (layers), output, or low-rank:R."""
    clip: float = between(0.0, 0.0)
    """The largest norm of a gradient; 0: any."""
    beta1: float = between(0.0, 0.0, 0.999)
    """Of nadam: how much of the mean gradient is kept."""
    normalization: Normalization = "weights"
    """Mean RMS in D, with rms: weights, over all weights (Krause et al. 2018), or tensors, the mean of each tensor's mean
    (their code)."""


_EARLIER: dict[type, dict[str, Any]] = {DynamicSettings: {"normalization": "weights"}}
"""Values that were the only ones before their settings came."""


def completed(kind: type, saved: Mapping[str, Any]) -> dict[str, Any]:
    """Return a reader's saved settings with those that its file is too old to have, as they were when it was written."""
    return {**saved, **{key: value for key, value in _EARLIER.get(kind, {}).items() if key not in saved}}


@dataclass(frozen=True)
class LearnedSettings:
    """Which meta-learner."""

    network: str = "three-level"
    """Its name, as `backstory reader train` saved it."""
    rate: float = between(1.0, 0.0, above=True)
    """What all its steps are multiplied by, to be tuned on a text about as long as what will be read."""
    decay: float = between(1.0, 0.0)
    """What the share is multiplied by that is taken back."""


@dataclass(frozen=True)
class GateSettings:
    """What g is made of."""

    hidden: int = between(8, 1, 1024)
    """Hidden units (ReLU)."""
    per_tensor: bool = True
    """A learned vector of each of the model's tensors is added to the hidden units."""
    fisher: bool = True
    """Whether the Fisher information of a weight is among the features."""
    tied: bool = True
    """f + z = 1; without it z has an output of its own."""


@dataclass(frozen=True)
class MetaTraining:
    """How the meta-learner is trained."""

    steps: int = between(200, 1)
    """K: updates of the weights that are unrolled for one update of the meta-learner. A step pays off long after it is
    taken, so the more the better: with 40 the meta-learner learns to be hasty."""
    every: int = between(20, 1)
    """Updates of the weights between two of the meta-learner."""
    stream: int = between(72_000, 100)
    """Tokens that are read from theta_0 on before it starts anew elsewhere; best as long as what will be read."""
    streams: int = between(1, 1)
    """How many such streams are read, from random places of the text."""
    sample: int = between(40, 1)
    """Every so many-th weight is followed."""
    learning_rate: float = between(0.01, 0.0, above=True)
    """Of Adam; it falls to 0 along a half cosine."""
    clip: float = between(1.0, 0.0, above=True)
    """The largest norm of the meta-learner's gradient."""
    seed: int = between(1, 0)
    """Of its first weights, the places of the streams, and the subsets."""
