"""Choose the temperature of a tempered reader: one reading scores every candidate."""

from collections.abc import Callable, Sequence

import numpy as np
import torch
from torch import Tensor

from backstory.evaluation.reading_loop import read
from backstory.evaluation.token_scores import TABLE
from backstory.models import Prediction
from backstory.readers.base import Reader
from backstory.readers.blocks import Block

TEMPERATURES = tuple(n / 50 for n in range(45, 66))
"""Those that are tried: 0.9 to 1.3."""


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
