"""A softmax temperature over any reader: its prediction to the power 1 / T, normalised again."""

from collections.abc import Sequence

import torch
from torch import Tensor

from backstory.config.readers import TemperedSettings
from backstory.config.strict import conforming
from backstory.models import Prediction, Tempered
from backstory.models.positions import all_positions
from backstory.readers.base import Block, Reader, WrappingReader
from backstory.readers.kind import ReaderKind
from backstory.utils.arguments import checked

TEMPERATURES = tuple(n / 50 for n in range(45, 66))
"""The temperatures that are tried: 0.9 to 1.3."""


class TemperedReader(WrappingReader):
    """Any reader with a temperature on what it predicts; what it learns, it learns from its own prediction."""

    @checked()
    def __init__(self, inner: Reader, settings: TemperedSettings) -> None:
        """Raises UserError for a temperature out of range."""
        super().__init__(inner, "tempered")
        self.settings = conforming(settings, "the temperature")

    def predict(self, tokens: Tensor) -> Tempered:
        prediction = self.inner.predict(tokens)
        return Tempered(prediction.activations, prediction, self.settings.temperature)


class TemperatureScorer:
    """Scores every temperature from one reading with the reader that is tempered."""

    def __init__(self, inner: Reader, temperatures: Sequence[float], tokens: int) -> None:
        """Raises UserError for a temperature out of range."""
        self.points = [conforming(TemperedSettings(temperature), "the grid") for temperature in temperatures]
        self.inner, self.tokens = inner, tokens
        device = next(inner.model.parameters()).device
        self.totals = torch.zeros(len(self.points), dtype=torch.float64, device=device)

    def update(self, block: Block, prediction: Prediction, log_prob: Tensor) -> None:
        with self.inner.precision.context(block.targets.device):
            for rows, times, table in prediction.tables(*all_positions(block.targets)):
                own = table.gather(1, block.targets[rows, times, None]).squeeze(1)
                for i, point in enumerate(self.points):
                    scores = own / point.temperature - torch.logsumexp(table / point.temperature, 1)
                    self.totals[i] -= scores.double().sum()

    def scores(self) -> list[tuple[TemperedSettings, float]]:
        return list(zip(self.points, (self.totals / self.tokens).tolist(), strict=True))


KIND = ReaderKind(
    "tempered",
    "a softmax temperature on top: predictions to the power 1 / T, renormalised",
    lambda context, settings: TemperedReader(context.wrapped(), settings),
    TemperedSettings,
    wraps=True,
    grid_scorer=lambda context, grid, tokens: TemperatureScorer(
        context.wrapped(), grid.get("temperature", TEMPERATURES), tokens
    ),
)
