"""Settings of the adaptive readers and of their training."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

from backstory.config.strict import between

Rule = Literal["rms", "sgd", "nadam"]
Normalization = Literal["weights", "tensors"]

TUNED_TOKENS = 20_000
"""Tokens of a split that readers are tuned on by default; the meta-learner is trained on those after them."""


@dataclass(frozen=True)
class CacheSettings:
    """Settings of a neural cache; the defaults are those of AWD-LSTM's code for Penn Treebank."""

    window: int = between(500, 1)
    """Pairs of state and word in the cache."""
    theta: float = between(1.0, 0.0, 1e6)
    """Sharpness of the similarity; 0: every pair counts the same (a unigram cache)."""
    weight: float = between(0.1, 0.0, 0.999)
    """Lambda, the cache's share of the mixture."""
    confidence: float = between(0.0, 0.0, 0.999)
    """The cache is left out where its most probable pair has less mass than this; 0: never."""


@dataclass(frozen=True)
class TemperedSettings:
    """Settings of the temperature of a prediction."""

    temperature: float = between(1.0, 0.01, 100.0)
    """T of p^(1/T): above 1 the prediction is flatter than that of the inner reader, below 1 sharper."""


@dataclass(frozen=True)
class NgramSettings:
    """Settings of n-grams counted in the training text, with modified Kneser-Ney smoothing."""

    order: int = between(5, 1, 12)
    """Length of the longest n-grams: a word and the order - 1 words before it."""
    across_lines: bool = True
    """Let contexts reach across the token that begins a text (the end of a line, with words)."""
    online: bool = False
    """Go on counting while reading."""
    weight: float = between(0.2, 0.0, 1.0)
    """Lambda, the n-grams' share of the mixture; 1: they alone."""


@dataclass(frozen=True)
class PPMSettings:
    """Settings of prediction by partial matching."""

    order: int = between(4, 0, 24)
    """Length of the longest contexts."""
    escape: Literal["c", "d"] = "d"
    """Share left for shorter contexts: method c (the number of different words), or d (a discount of every count)."""
    discount: float = between(0.5, 0.001, 0.999)
    """With method d: the discount of every count; 0.5 is the published value."""
    exclusion: bool = False
    """Restrict shorter contexts to words that no longer context has seen; otherwise contexts are interpolated."""
    weight: float = between(0.1, 0.0, 1.0)
    """Lambda, the share of the mixture; 1: PPM alone."""

    def ignored_settings(self) -> dict[str, str]:
        """Return the settings that have no effect, and why."""
        return {"discount": "with escape=c; choose escape=d"} if self.escape == "c" else {}


@dataclass(frozen=True)
class EnsembleSettings:
    """Settings of an ensemble of models."""

    runs: str = ""
    """The other runs, over the same vocabulary, with a semicolon between two."""
    reader: str = "static"
    """The reader that each of them reads with, static, dynamic or learned, with the settings tuned for that run."""
    weight: float | None = between(None, 0.0, 1.0)
    """Lambda, the share of the other runs together; none: the same share for every model."""

    def names(self) -> list[str]:
        """Return the other runs, as typed."""
        return [name.strip() for name in self.runs.split(";") if name.strip()]

    def share(self, members: int) -> float:
        """Return the share of this number of other models together."""
        return members / (members + 1) if self.weight is None else self.weight


@dataclass(frozen=True)
class MixtureSettings:
    """Settings of a mixture of readers with weights learned while reading."""

    share: float = between(0.002, 1e-6, 1.0)
    """Share of the weights that is redistributed equally after every token, so that they can follow changes."""
    rate: float = between(1.0, 0.001, 10.0)
    """Power of the likelihoods that multiply the weights; 1: Bayes' rule."""
    domain: Literal["linear", "logistic"] = "linear"
    """linear: a weighted sum; logistic: a weighted product of this sum and the predictions in it."""
    step: float = between(0.002, 0.0, 1.0)
    """With logistic: size of a step of the product's weights down the gradient of the code length."""
    context: Literal["none", "entropy", "length"] = "none"
    """With logistic: the product has a set of weights for every range of the sum's entropy, or every
    length of the known context."""
    lengths: bool = False
    """With logistic: include a counting reader once for every length of its contexts."""
    weights: Literal["bayes", "gate"] = "bayes"
    """bayes: by how well each reader has predicted; gate: the readers' fixed weights, changed by how sure each is."""
    gate_rate: float = between(0.3, 0.0, 100.0)
    """With the gate: size of its steps."""

    def ignored_settings(self) -> dict[str, str]:
        """Return the settings that have no effect, and why."""
        ignored: dict[str, str] = {"gate_rate": "with weights=bayes; choose weights=gate"}
        if self.weights == "gate":
            ignored = dict.fromkeys(("share", "rate"), "with weights=gate; choose weights=bayes")
        if self.domain == "linear":
            ignored |= dict.fromkeys(("step", "context", "lengths"), "with domain=linear; choose domain=logistic")
        return ignored


@dataclass(frozen=True)
class DynamicSettings:
    """Settings of dynamic evaluation."""

    rule: Rule = "rms"
    """rms (steps divided by the root mean square of training gradients), sgd, or nadam."""
    rate: float = between(1e-4, 0.0, 1e30, above=True)
    """eta, the size of a step."""
    decay: float = between(1e-3, 0.0, 0.999999)
    """lambda in [0, 1): share of the displacement taken back at a step; with rms times D = RMS / mean RMS."""
    epsilon: float = between(1e-4, 0.0, above=True)
    """eps, added to the RMS (with nadam, to the root of the second moment)."""
    segment: int = between(5, 1)
    """Tokens between two steps."""
    moving: str = "all"
    """Weights that move: all, last:N (layers), output, or low-rank:R."""
    clip: float = between(0.0, 0.0)
    """Largest norm of a gradient; 0: no clipping."""
    beta1: float = between(0.0, 0.0, 0.999)
    """With nadam: decay of the mean gradient."""
    normalization: Normalization = "weights"
    """Mean RMS in D, with rms: weights, over all weights (Krause et al. 2018), or tensors, the mean of each tensor's mean
    (their code)."""

    def ignored_settings(self) -> dict[str, str]:
        """Return the settings that have no effect, and why."""
        return {} if self.rule == "nadam" else {"beta1": f"with rule={self.rule}; choose rule=nadam"}


_EARLIER: dict[type, dict[str, Any]] = {DynamicSettings: {"normalization": "weights"}}
"""Values in use before their setting existed."""


def completed(kind: type, saved: Mapping[str, Any]) -> dict[str, Any]:
    """Return a reader's saved settings, with the values in use at the time for settings that its file is too old to have."""
    return {**saved, **{key: value for key, value in _EARLIER.get(kind, {}).items() if key not in saved}}


@dataclass(frozen=True)
class LearnedSettings:
    """Settings of a reader with a meta-learner."""

    network: str = "three-level"
    """Name of the meta-learner, as `backstory reader train` saved it."""
    rate: float = between(1.0, 0.0, above=True)
    """Factor of all its steps; tune it on a text about as long as the one to read."""
    decay: float = between(1.0, 0.0)
    """Factor of the share that is taken back."""


@dataclass(frozen=True)
class GateSettings:
    """Settings of the gate network g."""

    hidden: int = between(8, 1, 1024)
    """Hidden units (ReLU)."""
    per_tensor: bool = True
    """Add a learned vector for each tensor of the model to the hidden units."""
    fisher: bool = True
    """Use the Fisher information of a weight as a feature."""
    tied: bool = True
    """f + z = 1; otherwise z has an output of its own."""


@dataclass(frozen=True)
class MetaTraining:
    """Settings of the training of a meta-learner."""

    steps: int = between(200, 1)
    """K: updates of the weights unrolled for one update of the meta-learner. A step pays off long after it is taken: in trials
    with one model, 40 made the meta-learner myopic, and 400 gained nothing over 200."""
    every: int = between(20, 1)
    """Updates of the weights between two of the meta-learner."""
    stream: int = between(72_000, 100)
    """Tokens of a training stream, which starts from the trained weights; best about as long as the text to evaluate."""
    streams: int = between(1, 1)
    """Streams, from random places of the text."""
    sample: int = between(40, 1)
    """Follow every n-th weight."""
    learning_rate: float = between(0.01, 0.0, above=True)
    """Learning rate of Adam; it falls to 0 along a half cosine."""
    clip: float = between(1.0, 0.0, above=True)
    """Largest norm of the meta-learner's gradient."""
    seed: int = between(1, 0)
    """Seed of the first weights, the places of the streams, and the subsets."""
