"""Read a stretch of text with several readers and tell what each gains on the others, along it and word by word.

The figure of "A language model with dynamic weights": gain per block along a sequence of articles, and passages.
"""

import hashlib
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np
import torch
from torch import Tensor

from backstory.config import UserError
from backstory.config.arguments import checked
from backstory.config.options import CompareOptions, folder_name
from backstory.data import Boundaries, unknown_share
from backstory.evaluation import Block, read
from backstory.evaluation.opening import EvalSetup
from backstory.evaluation.token_scores import log_mass
from backstory.explanations import gains
from backstory.explanations.explanation import Progress
from backstory.explanations.gains import ScoredText
from backstory.explanations.passage_reading import word_score_of
from backstory.explanations.sources import ExplainedText, other_folder_part, other_name
from backstory.models import Prediction
from backstory.readers import Reader
from backstory.readers.registry import ConfiguredLayer, names_readers, parse_stack, stack_name
from backstory.results.result_file import write_result
from backstory.runs.run import Run

LONGEST_NAME = 180
"""Characters of a result's folder; a longer name ends in digits that tell it from others."""


@dataclass(frozen=True)
class OpenedReader:
    """One of the readers that are compared."""

    name: str
    run: Run
    reader: Reader
    layers: tuple[ConfiguredLayer, ...]

    def as_dict(self, nats: float) -> dict[str, Any]:
        """Return the reader with its mean nats per token, as results record it."""
        return {
            "name": self.name,
            "layers": [layer.as_dict() for layer in self.layers],
            **self.run.identity(),
            "nats_per_token": nats,
            "perplexity": float(gains.perplexities(np.array(nats))),
        }


@checked()
def compare_readers(
    run: Path | str,
    options: CompareOptions | None = None,
    *,
    text: Path | BinaryIO | None = None,
    progress: Progress | None = None,
) -> dict[str, Any]:
    """Compare readers on a stretch of text and return the content of the result.json (docs/reports.md describes it).

    `gains.pairs` says which reader is compared with which. Each reads the text once, scored before it learns; its scores are
    those of `evaluate --per-token`. `text` is a text of one's own in place of a split: a file by its path, or one open for
    bytes. The result is written to `options.out`, else to RUN/explain-reading with whatever is not usual added to the name.
    Raises UserError.
    """
    options = (options or CompareOptions()).checked()
    at, against = options.at, options.against or ("static",)
    reader = stack_name(parse_stack(options.reader or "static"))
    # Against other runs alone it is the run that matters: they are all read the same way.
    first = reader if any(map(names_readers, against)) else Path(run).resolve().name
    names = _names(first, against)
    source = ExplainedText.open(run, reader, options, text)
    opened = source.opened
    vocabulary, end = opened.dataset.vocabulary, min(at + options.tokens, len(opened.split.ids))
    for token in options.passage:
        if not at <= token < end:
            raise UserError(f"--passage {token} is outside the stretch, which has tokens {at} to {end - 1}")
    opened_readers = [(opened.run, opened.reader, opened.layers), *map(source.open_other, against)]
    readers = [OpenedReader(name, *one) for name, one in zip(names, opened_readers, strict=True)]
    folder = folder_name("explain", "reading", *options.name_parts(
        source.folder_part, reader, opened.reader.precision.name, [other_folder_part(one) for one in against]
    ))  # fmt: skip
    if len(folder) > LONGEST_NAME:
        folder = f"{folder[:LONGEST_NAME]}-{hashlib.sha256(folder.encode()).hexdigest()[:8]}"
    destination = source.destination(folder, "comparison")
    origin, began = {**opened.provenance(), "corpus": opened.dataset.describe()}, time.perf_counter()
    start = 0 if options.context is None else max(0, at - options.context)
    boundaries = vocabulary.boundaries if options.word_score == "corrected" else None
    scores = _read_all(readers, opened, start, end, boundaries, progress)
    nats, log_begins = scores[0, :, at - start : -1], scores[1, :, at - start :]
    scored = ScoredText(nats, at, opened.split.documents, opened.split.titles, log_begins if boundaries else None)
    figures = {
        "comparison": "reading",
        "title": source.title_from(at),
        "text": source.name,
        "at": at,
        "context": at - start,
        "tokens": nats.shape[1],
        **unknown_share(vocabulary, opened.split, slice(at, end)).figures(),
        "unit": vocabulary.tokenizer.unit,
        "word_score": word_score_of(boundaries, vocabulary),
        "block": options.block,
        "smooth": options.smooth,
        "readers": [one.as_dict(mean) for one, mean in zip(readers, nats.mean(1).tolist(), strict=True)],
        "comparisons": gains.comparisons(scored, names, options.block),
        "documents": gains.documents(scored),
        "positions": gains.positions(scored),
        "passages": gains.excerpts(scored, opened, names, options.passage, options.words),
    }
    origin["seconds"] = round(time.perf_counter() - began, 1)
    for one in readers:
        one.run.check_unchanged(destination)
    return write_result(destination, "comparison", opened.run.name, figures, origin)


def token_nats(
    reader: Reader,
    ids: np.ndarray,
    first: int,
    tokens: int,
    progress: Callable[[int], None] | None = None,
    boundaries: Boundaries | None = None,
) -> np.ndarray:
    """Read ids once in one row: (2, tokens + 1), float64 of what was scored.

    Row 0: minus the log-probability of each of the first `tokens`. Row 1, with `boundaries`: log of the mass of the tokens that
    begin a word, before each of them and after the last, 0 where every token does or the ids end. The reader's last block is
    read whole where the ids go on, as rounding may depend on its length.
    """
    more = boundaries is not None
    end = min(len(ids), -(-(tokens + more) // reader.block) * reader.block)
    found, device = np.zeros((2, max(end, tokens + 1))), next(reader.model.parameters()).device
    closed = np.ones(end, bool)
    if boundaries is not None:
        closed[1:] = boundaries.closed[ids[: end - 1]]
    members = torch.from_numpy(np.empty(0, np.int64) if boundaries is None else boundaries.beginning).to(device)
    done = 0

    def each(block: Block, prediction: Prediction, log_prob: Tensor) -> None:
        nonlocal done
        steps = log_prob.shape[1]
        found[0, done : done + steps] = -log_prob[0].double().cpu().numpy()
        (times,) = np.nonzero(~closed[done : done + steps])
        if len(times):
            at = torch.from_numpy(times).to(device)
            with reader.precision.context(device):
                mass = log_mass(prediction, torch.zeros_like(at), at, members, reader.model.vocabulary_size)
            found[1, done + times] = mass.cpu().numpy()
        done += steps
        if progress is not None:
            progress(steps)

    read(reader, ids[:end], first, each=each)
    return found[:, : tokens + 1]


def _read_all(
    readers: Sequence[OpenedReader],
    opened: EvalSetup,
    start: int,
    end: int,
    boundaries: Boundaries | None,
    progress: Progress | None,
) -> np.ndarray:
    """Read a text with each of R readers in turn, as `token_nats` reads: (2, R, tokens + 1)."""
    total, done = len(readers) * (end - start), 0

    def advance(tokens: int) -> None:
        nonlocal done
        done = min(done + tokens, total)
        if progress is not None:
            progress(done, total)

    ids, first = opened.split.ids[start:], opened.dataset.vocabulary.start
    return np.stack([token_nats(c.reader, ids, first, end - start, advance, boundaries) for c in readers], 1)


def _names(reader: str, against: Sequence[str]) -> list[str]:
    """Return the readers' names in the result. Raises UserError for one that is there twice."""
    names = [reader, *map(other_name, against)]
    # Runs whose folders have one name are told apart by their paths.
    names = [path if names.count(name) > 1 else name for name, path in zip(names, [reader, *against], strict=True)]
    twice = next((name for i, name in enumerate(names) if name in names[:i]), None)
    if twice is not None:
        raise UserError(
            f"{twice} would be compared with itself; name two different readers with --reader and --against"
        )
    return names
