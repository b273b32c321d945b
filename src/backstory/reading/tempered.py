"""A softmax temperature over any reader: its prediction to the power 1 / T, normalised again, and the T that suits a text."""

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from backstory.config.arguments import checked
from backstory.config.readers import TemperedSettings
from backstory.config.strict import conforming
from backstory.models import Prediction, Tempered
from backstory.reading.reader import Reader
from backstory.reading.stream import Block, read
from backstory.reading.tokens import TABLE

TEMPERATURES = tuple(n / 50 for n in range(45, 66))
"""Those that are tried: 0.9 to 1.3."""


class TemperedReader(Reader):
    """Any reader with a temperature on what it predicts; what it learns, it learns from its own prediction."""

    inner: Reader

    @checked()
    def __init__(self, inner: Reader, settings: TemperedSettings) -> None:
        """Raises UserError for a temperature out of range."""
        self.inner, self.settings = inner, conforming(settings, "the temperature")
        self.name = "tempered" if inner.name == "static" else f"{inner.name}+tempered"
        self.model, self.precision, self.block = inner.model, inner.precision, inner.block
        self.capabilities = inner.capabilities

    def start(self, batch_size: int) -> None:
        self.inner.start(batch_size)

    def predict(self, tokens: Tensor) -> Tempered:
        prediction = self.inner.predict(tokens)
        return Tempered(prediction.activations, prediction, self.settings.temperature)

    def observe(self, targets: Tensor) -> None:
        self.inner.observe(targets)

    def snapshot(self) -> Any:
        return self.inner.snapshot()

    def restore(self, snapshot: Any) -> None:
        self.inner.restore(snapshot)


def nats_by_temperature(
    inner: Reader,
    ids: np.ndarray,
    first: int,
    temperatures: Sequence[float] = TEMPERATURES,
    progress: Callable[[int, int], None] | None = None,
) -> list[float]:
    """Nats per token of a stream (N,) at every temperature, from one reading of it in one row with the inner reader.

    `first` is fed before the first token; `progress` is told (tokens read, tokens in all).
    """
    device = next(inner.model.parameters()).device
    totals, done = torch.zeros(len(temperatures), dtype=torch.float64, device=device), 0
    size = max(1, TABLE // inner.model.vocabulary_size)

    def each(block: Block, prediction: Prediction, log_prob: Tensor) -> None:
        nonlocal done
        times = torch.arange(block.targets.shape[1], device=device)
        for piece in times.split(size):
            with inner.precision.context(device):
                table = prediction.select(torch.zeros_like(piece), piece).log_probs().squeeze(1)
            own = table.gather(1, block.targets[0, piece, None]).squeeze(1)
            for place, temperature in enumerate(temperatures):
                totals[place] -= (own / temperature - torch.logsumexp(table / temperature, 1)).double().sum()
        done += block.targets.shape[1]
        if progress is not None:
            progress(done, len(ids))

    read(inner, ids, first, each=each)
    return (totals / len(ids)).tolist()
