"""Read the lines of a text, each by itself from the model's start state, and write a table of their scores."""

import csv
import math
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import numpy as np
import torch

from backstory.data import Split, Vocabulary, lossless
from backstory.data.encoding import TextLines
from backstory.evaluation.audit import Audit, usual_places
from backstory.evaluation.metrics.per_token import rounded, text_file
from backstory.evaluation.reading_loop import Observer, ScoredBlock, StreamReading
from backstory.readers.base import Block, Reader, line_batches
from backstory.utils.errors import UserError
from backstory.utils.scores import perplexity

COLUMNS = ("line", "tokens", "nats", "perplexity", "text")
"""The fields of the table (docs/reading.md)."""
ENDINGS = (".tsv", ".tsv.gz")


class LineReading(StreamReading):
    """One pass of a reader over the documents of a split, which are lines. The reader restarts at each line.

    Up to `batch_size` lines of similar length are read side by side; with one, lines are read in their order. Raises
    UserError for a reader whose rows depend on each other, and for several rows with a reader whose weights move.
    """

    def __init__(
        self, reader: Reader, split: Split, first: int, *, batch_size: int = 1, observer: Observer | None = None
    ) -> None:
        if not reader.capabilities.independent_rows:
            raise UserError(f"the reader {reader.name} does not read a line by itself; choose another for --each-line")
        super().__init__(reader, split.ids, first, batch_size=batch_size, observer=observer, reset=False)
        self.spans = np.array(list(split.spans()))
        self.batches = line_batches(self.lengths, batch_size)
        self.line_nats = np.zeros(len(self.spans))
        """Nats of each line that was read."""
        self._lines = self.batches[0]

    @property
    def lengths(self) -> np.ndarray:
        """Tokens of each line (lines,)."""
        return self.spans[:, 1] - self.spans[:, 0]

    def total_blocks(self) -> int:
        """Return the number of blocks that `remaining` yields."""
        return sum(math.ceil(self.lengths[lines].max() / self.block) for lines in self.batches)

    def remaining(self) -> Iterator[Block]:
        """Yield the blocks of all lines; the reader starts anew where lines begin."""
        device, index = next(self.reader.model.parameters()).device, 0
        for lines in self.batches:
            self._lines = lines
            self.reader.start(len(self._lines))
            tokens, targets, scored = self._rows()
            for start in range(0, targets.shape[1], self.block):
                columns = slice(start, start + self.block)
                rows = (np.ascontiguousarray(array[:, columns]) for array in (tokens, targets, scored))
                inputs, after, inside = (torch.from_numpy(array).to(device) for array in rows)
                yield Block(inputs, after, inside, index)
                index += 1

    def _rows(self) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Return the inputs, targets and places to score (B, T) of the lines of a batch, padded at their ends."""
        lengths = self.lengths[self._lines]
        scored = np.arange(lengths.max()) < lengths[:, None]
        targets = np.full(scored.shape, self.first, np.int64)
        targets[scored] = np.concatenate([self.ids[slice(*self.spans[line])] for line in self._lines])
        tokens = np.concatenate([np.full((len(lengths), 1), self.first, np.int64), targets[:, :-1]], 1)
        return tokens, targets, scored

    def score(self, block: Block) -> ScoredBlock:
        scored = super().score(block)
        nats = torch.where(block.scored, -scored.log_prob.double(), 0.0)
        self.line_nats[self._lines] += nats.sum(1).cpu().numpy()
        return scored


def line_audit(reading: LineReading, places: int | None, seed: int | None) -> Audit:
    """Return the audit of a reading of lines; by default of as many blocks as are usual for blocks of their mean length."""
    blocks = reading.total_blocks()
    mean = max(1, int(np.mean([reading.lengths[lines].max() for lines in reading.batches])))
    return Audit(blocks, places or usual_places(min(reading.block, mean), reading.batch_size), seed)


def counted_words(split: Split, vocabulary: Vocabulary) -> Split:
    """Return the split with line ends not counted as words if tokens hold all of the text, as they are not tokens then."""
    return replace(split, words=split.words - len(split.documents)) if lossless(vocabulary, split) else split


@contextmanager
def written_lines(path: Path, split: Split, lines: TextLines, reading: LineReading) -> Iterator[None]:
    """Write a row for each line: its number, tokens, nats in all, perplexity per token, and text. Text is quoted.

    The file is put in place when the block ends without error.
    """
    with text_file(path) as file:
        file.write("\t".join(COLUMNS) + "\n")
        writer = csv.writer(file, "excel-tab", lineterminator="\n", quoting=csv.QUOTE_NONNUMERIC)
        for number, tokens, nats in zip(
            split.titles, reading.lengths.tolist(), reading.line_nats.tolist(), strict=True
        ):
            text = lines.texts[int(number)].encode("utf-8", "surrogateescape").decode("utf-8", "replace")
            writer.writerow((int(number), tokens, rounded(nats), rounded(perplexity(nats / tokens)), text))
        yield
