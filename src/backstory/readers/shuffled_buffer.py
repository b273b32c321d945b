"""A control of the span buffer: every text reads with the buffer of another, so that nothing it gains is memory of its own."""

from dataclasses import replace

from torch import Tensor

from backstory.models import ComposedModel, LanguageModel, Precision, Prediction
from backstory.models.auxiliary import GatedState
from backstory.models.span_buffer import span_buffer_of
from backstory.readers.base import StaticReader, evaluating
from backstory.readers.kind import ReaderKind
from backstory.utils.arguments import checked
from backstory.utils.errors import UserError


class ShuffledBuffer(StaticReader):
    """The model as trained, with the spans of text b - 1 in the place of those of text b (the last text's for the first).

    The audit reports that texts depend on each other, as they do here: this reader is a control, and its figures are no score.
    """

    name = "shuffled-buffer"
    model: ComposedModel

    @checked()
    def __init__(self, model: LanguageModel, precision: Precision | None = None) -> None:
        """Raises UserError for a model that has no buffer."""
        if not isinstance(model, ComposedModel) or span_buffer_of(model) is None:
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
            prediction, self._next = shuffled_prediction(self.model, tokens, self._state)
        return prediction


def shuffled_prediction(model: ComposedModel, tokens: Tensor, state: GatedState) -> tuple[Prediction, GatedState]:
    """Return the prediction for tokens (B, T) with the buffers rolled across the batch, and the model's usual next state."""
    buffer, gated = span_buffer_of(model), model.gated
    assert buffer is not None and gated is not None
    p, core = model.head_prediction(tokens, state.core)
    assert p.activations is not None
    hidden = p.activations.head_raw
    memory, after = buffer.recall(hidden, tokens, model.embedding.weight, state.auxiliary)
    prediction = gated.interpolate(p, model.head, buffer.attend(hidden, memory.rolled(), after))
    return prediction, GatedState(core, after)


KIND = ReaderKind(
    "shuffled-buffer",
    "a control for a span buffer: every row reads with the buffer of another row (needs several rows)",
    lambda context, settings: ShuffledBuffer(context.run.model, context.precision),
    control=True,
)
