"""A second prediction beside the head's, and the gate between them: the span-based neural buffer, and its control."""

from backstory.models.buffer.gated import Gated, GatedState, Second, SecondSoftmax
from backstory.models.buffer.span_buffer import SpanBuffer

__all__ = ["Gated", "GatedState", "Second", "SecondSoftmax", "SpanBuffer"]
