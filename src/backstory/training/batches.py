"""The batches of an epoch: contiguous rows of the text, rotated if the settings say so, cut into segments."""

from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from backstory.config import RunConfig
from backstory.data import Dataset, piece, rotations, rows, segment_bounds


@dataclass(frozen=True)
class EpochBatches:
    """One rank's rows of an epoch. They follow from the seed and the epoch alone, so that resuming repeats them."""

    rows: np.ndarray
    """Token ids (B, length); the length is the same in every epoch."""
    answer_mask: np.ndarray | None
    """Mask of the answer tokens (B, length); None if the loss is that of all tokens."""
    starts: np.ndarray | None
    """Column at which each row begins, (B,); None without a partial shuffle."""
    bounds: list[tuple[int, int]]
    """Segments as half-open ranges of input positions; their targets are one position later."""

    @classmethod
    def load(cls, config: RunConfig, dataset: Dataset, epoch: int, share: slice) -> "EpochBatches":
        """Return the rows `share` of an epoch's batch. Raises UserError if the text is too short for the batch size."""
        settings, ids = config.training, dataset.epoch(epoch)
        text = rows(ids, settings.batch_size)
        answer_mask = rows(dataset.answer_mask(ids), settings.batch_size)[share] if settings.answer_loss_only else None
        rng = np.random.default_rng([config.seed, epoch])
        bounds = segment_bounds(
            text.shape[1],
            settings.segment,
            settings.segment_deviation,
            settings.minimum_segment,
            settings.short_probability,
            rng,
        )
        starts = rotations(text, rng)[share] if settings.partial_shuffle else None
        return cls(text[share], answer_mask, starts, bounds)

    def segment(self, first: int, last: int, device: torch.device) -> tuple[Tensor, Tensor | None]:
        """Return inputs `first` to `last` (exclusive) and the target after them, (B, T + 1), and the targets' answer mask."""
        text = torch.from_numpy(piece(self.rows, first, last + 1, self.starts)).to(device)
        if self.answer_mask is None:
            return text, None
        mask = torch.from_numpy(piece(self.answer_mask, first + 1, last + 1, self.starts) > 0)
        return text, mask.to(device)
