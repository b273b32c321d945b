"""A softmax temperature over any reader: its prediction to the power 1 / T, normalised again."""

from typing import Any

from torch import Tensor

from backstory.config.arguments import checked
from backstory.config.readers import TemperedSettings
from backstory.config.strict import conforming
from backstory.models import Tempered
from backstory.readers.base import Reader


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
