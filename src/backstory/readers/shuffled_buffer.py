"""A control of the span buffer: every row reads with another row's, so that nothing it gains is memory of its own text."""

from dataclasses import replace

from torch import Tensor

from backstory.config import UserError
from backstory.config.arguments import checked
from backstory.models import ComposedModel, LanguageModel, Precision, Prediction
from backstory.readers.base import StaticReader, evaluating
from backstory.readers.kind import ReaderKind


class ShuffledBuffer(StaticReader):
    """The model as trained, with spans of the row before (of the last, for the first row).

    The audit finds that rows depend on each other, as they do here: what this reads is a control, and no score.
    """

    name = "shuffled-buffer"

    @checked()
    def __init__(self, model: LanguageModel, precision: Precision | None = None) -> None:
        """Raises UserError for a model that has no buffer."""
        if not isinstance(model, ComposedModel) or model.span_buffer is None:
            raise UserError(
                "the reader shuffled-buffer is a control of a span buffer, and the model has none; train one with "
                "--model.buffer.kind span-buffer"
            )
        super().__init__(model, precision)
        self.capabilities = replace(self.capabilities, independent_rows=False)

    def start(self, batch_size: int) -> None:
        if batch_size < 2:
            raise UserError(
                "the reader shuffled-buffer gives each row the buffer of another, so it needs several; use --batch-size 10 "
                "of `backstory evaluate`"
            )
        super().start(batch_size)

    def predict(self, tokens: Tensor) -> Prediction:
        with evaluating(self.model), self.precision.context(tokens.device):
            prediction, self._next = self.model(tokens, self._state, foreign=True)
        return prediction


KIND = ReaderKind(
    "shuffled-buffer",
    "a control: a span buffer's model, every row with the buffer of another row (several rows)",
    lambda context, settings: ShuffledBuffer(context.run.model, context.precision),
)
