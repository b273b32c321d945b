"""An ensemble: any reader mixed, by constant weights, with readers of other models over the same vocabulary.

P(w) = (1 - lambda) P_inner(w) + lambda / K sum_k P_k(w)
"""

import hashlib
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from torch import Tensor

from backstory.config.readers import EnsembleSettings
from backstory.config.strict import conforming
from backstory.models import LanguageModel, Prediction
from backstory.readers.base import Reader, joint_block, joint_capabilities
from backstory.readers.interpolating import InterpolatingReader, WeightScorer, interpolated
from backstory.readers.kind import BuildContext, ReaderKind
from backstory.runs.run import files_digest
from backstory.utils.arguments import checked
from backstory.utils.errors import UserError


class Members:
    """Source of the mean prediction of other models' readers. Each learns from the text as if it were alone."""

    def __init__(
        self,
        readers: Sequence[Reader],
        hashes: Mapping[str, str] | None = None,
        layers: Mapping[str, Sequence[Mapping[str, Any]]] | None = None,
    ) -> None:
        """`hashes` are the SHA-256 (hex) of the weights, and of all that the readers were prepared with, by name.

        `layers` are the readers of each run with their settings, as results record them.
        """
        self.readers, self.hashes, self.layers = tuple(readers), dict(hashes or {}), dict(layers or {})

    def __copy__(self) -> "Members":
        return Members([reader.fork() for reader in self.readers], self.hashes, self.layers)

    def start(self, batch_size: int) -> None:
        """Begin `batch_size` texts."""
        for reader in self.readers:
            reader.start(batch_size)

    def predict(self, tokens: Tensor) -> Prediction:
        """Return the mean prediction at each position of the block tokens (B, T)."""
        mean = self.readers[0].predict(tokens)
        for number, reader in enumerate(self.readers[1:], 2):
            mean = interpolated(mean, reader.predict(tokens), 1 / number, tokens)
        return mean

    def observe(self, targets: Tensor) -> None:
        """Take the targets (B, T) of the block as read."""
        for reader in self.readers:
            reader.observe(targets)

    def snapshot(self) -> list[Any]:
        """Return a copy of everything that reading has changed."""
        return [reader.snapshot() for reader in self.readers]

    def restore(self, snapshot: list[Any]) -> None:
        """Restore a snapshot, which stays usable."""
        for reader, of_reader in zip(self.readers, snapshot, strict=True):
            reader.restore(of_reader)


class EnsembleReader(InterpolatingReader):
    """Any reader with the mean prediction of other models mixed in."""

    @checked()
    def __init__(self, inner: Reader, settings: EnsembleSettings, members: Members) -> None:
        """Raises UserError for settings out of range, and for models of another vocabulary."""
        self.settings = conforming(settings, "the ensemble")
        if any(reader.model.vocabulary_size != inner.model.vocabulary_size for reader in members.readers):
            raise UserError("an ensemble needs models with one vocabulary; train them on the same corpus")
        self.hashes, weight = members.hashes, settings.share(len(members.readers))
        facts = {"weight": weight, "members": self.hashes, "member_readers": members.layers}
        super().__init__(inner, "ensemble", members, weight, facts)
        readers = (inner, *members.readers)
        self.block, self.capabilities = joint_block(readers), joint_capabilities(readers)
        self._models = [model for reader in readers for model in reader.models()]
        self.adapts = any(part.adapts for reader in members.readers for part in reader.stack())

    def models(self) -> list[LanguageModel]:
        return self._models

    def other_models(self) -> dict[str, str]:
        return self.inner.other_models() | self.hashes


Opener = Callable[[BuildContext, EnsembleSettings], Members]
"""Opens the other runs that the settings name."""


def ensemble_kind(open_members: Opener) -> ReaderKind:
    """Return the kind of reader; `open_members` raises UserError for a run that does not fit."""

    def scorer(context: BuildContext, values: Mapping[str, Sequence[Any]], tokens: int) -> WeightScorer:
        return WeightScorer(values, EnsembleSettings, lambda settings: open_members(context, settings))

    return ReaderKind(
        "ensemble",
        "the mean prediction of other runs on top, of the same vocabulary: ensemble:runs=RUN (or 'ensemble:runs=RUN;RUN')",
        lambda context, settings: EnsembleReader(context.wrapped(), settings, open_members(context, settings)),
        EnsembleSettings,
        wraps=True,
        identity=("reader", "runs"),
        written={"runs": lambda runs: members_digest(EnsembleSettings(runs).names())},
        grid_scorer=scorer,
    )


def members_digest(names: Sequence[str]) -> str:
    """Return a digest of the runs' weights, which does not depend on their paths and changes with retraining."""
    weights = [files_digest(name) or name for name in names]
    return hashlib.sha256("\n".join(weights).encode()).hexdigest()[:12]
