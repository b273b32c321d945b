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
from backstory.config.eval_options import folder_name
from backstory.data import Boundaries, WordScore, check_word_score, unknown_share
from backstory.evaluation import Block, read
from backstory.evaluation.opening import EvalSetup, Readers
from backstory.evaluation.token_scores import log_mass
from backstory.explanations import gains
from backstory.explanations.excerpts import excerpts
from backstory.explanations.gains import Scored
from backstory.explanations.passage_reading import word_score_of
from backstory.explanations.sources import (
    open_at,
    open_other,
    other_name,
    other_part,
    place_of,
    reading_options,
    source_name,
    text_part,
    title,
)
from backstory.models import Prediction
from backstory.readers import Reader
from backstory.readers.registry import Chosen, names_readers, parse_stack, stack_name
from backstory.reports.passage import MOST_WORDS
from backstory.runs.run import Run
from backstory.storage.provenance import write_result

TOKENS = 20_000
"""Tokens of a stretch, unless told otherwise."""
LONGEST_NAME = 180
"""Characters of a result's folder; a longer name ends in digits that tell it from others."""


@checked(at=0, tokens=1, context=0)
@dataclass(frozen=True)
class Stretch:
    """Which tokens are compared, and how much before them is read."""

    split: str | None = None
    """train, valid or test; None: test, unless a text is given."""
    at: int = 0
    """Token of the text at which the stretch begins."""
    tokens: int = TOKENS
    """Tokens of the stretch, fewer where the text ends."""
    context: int | None = None
    """Tokens before it that are read; None: all there are, as `evaluate` reads it."""
    text: Path | BinaryIO | None = None
    """A text of one's own in place of a split: a file by its path, or one open for bytes, which is read to its end."""


@checked(block=1, smooth=0, words=1)
@dataclass(frozen=True)
class Detail:
    """How finely a comparison is told."""

    block: int = 100
    """Tokens of a block."""
    smooth: int = 10
    """Blocks of the moving average that the picture shows beside the blocks; 0 for none."""
    passages: tuple[int, ...] = ()
    """Tokens of the text at which passages begin; none: they are chosen."""
    words: int = 100
    """Words of a passage."""


@dataclass(frozen=True)
class Contender:
    """One of the readers that are compared."""

    name: str
    run: Run
    reader: Reader
    layers: tuple[Chosen, ...]


@checked()
def compare_readers(
    folder: Path | str,
    stretch: Stretch | None = None,
    detail: Detail | None = None,
    *,
    reader: Readers = "static",
    against: Sequence[str] = ("static",),
    precision: str = "float32",
    device: str = "auto",
    data_dir: Path | None = None,
    corpus: str | None = None,
    word_score: WordScore = "corrected",
    out: Path | str | None = None,
    allow_unknown: bool = False,
    progress: Callable[[int, int], None] | None = None,
) -> dict[str, Any]:
    """Compare readers on a stretch of text and return the content of the result.json (docs/reports.md describes it).

    `against` are names of readers, or folders of runs over the same vocabulary; see `gains.pairs` for which is compared
    with which. Each reads the text once, scored before it learns; its scores are those of `evaluate --per-token`.
    `word_score` says how they become those of the words of a passage. The result is written to `out`, else to
    RUN/explain-reading with whatever is not usual added to the name. Raises UserError.
    """
    check_word_score(word_score)
    path, stretch, detail = Path(folder), stretch or Stretch(), detail or Detail()
    _check(stretch, detail)
    stacked, own_text = stack_name(parse_stack(reader)), stretch.text is not None
    # Against other runs alone it is the run that matters: they are all read the same way.
    called = stacked if any(map(names_readers, against)) or not against else path.resolve().name
    names = _names(called, against)
    options = reading_options(
        stretch.split,
        stretch.text,
        reader=reader,
        precision=precision,
        device=device,
        data_dir=data_dir,
        corpus=corpus,
        allow_unknown=allow_unknown,
    )
    opened = open_at(path, options, stretch.at)
    end = min(stretch.at + stretch.tokens, len(opened.split.ids))
    _check_passages(detail.passages, stretch.at, end)
    others = (open_other(other, path, opened, options) for other in against)
    made = [(opened.run, opened.reader, opened.layers), *others]
    contenders = [Contender(name, *parts) for name, parts in zip(names, made, strict=True)]
    called = _folder(opened, stretch, detail, stacked, against, word_score)
    destination = place_of(out, opened, called, "comparison")
    origin, began = {**opened.provenance(), "corpus": opened.dataset.describe()}, time.perf_counter()
    start = 0 if stretch.context is None else max(0, stretch.at - stretch.context)
    vocabulary = opened.dataset.vocabulary
    boundaries = vocabulary.boundaries if word_score == "corrected" else None
    scores = _read_all(contenders, opened, start, end, boundaries, progress)
    nats, log_begins = scores[0, :, stretch.at - start : -1], scores[1, :, stretch.at - start :]
    scored = Scored(nats, stretch.at, opened.split.documents, opened.split.titles, log_begins if boundaries else None)
    figures = {
        "comparison": "reading",
        "title": title(opened, own_text, stretch.at),
        "text": source_name(opened, own_text),
        "at": stretch.at,
        "context": stretch.at - start,
        "tokens": nats.shape[1],
        **unknown_share(vocabulary, opened.split, slice(stretch.at, end)).figures(),
        "unit": vocabulary.tokenizer.unit,
        "word_score": word_score_of(boundaries, vocabulary),
        "block": detail.block,
        "smooth": detail.smooth,
        "readers": [_told(c, mean) for c, mean in zip(contenders, nats.mean(1).tolist(), strict=True)],
        "comparisons": gains.comparisons(scored, names, detail.block),
        "documents": gains.documents(scored),
        "positions": gains.positions(scored),
        "passages": excerpts(scored, opened, names, detail.passages, detail.words),
    }
    origin["seconds"] = round(time.perf_counter() - began, 1)
    for contender in contenders:
        contender.run.check_unchanged(destination)
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
    contenders: Sequence[Contender],
    opened: EvalSetup,
    start: int,
    end: int,
    boundaries: Boundaries | None,
    progress: Callable[[int, int], None] | None,
) -> np.ndarray:
    """(2, R, tokens + 1): the readers one after the other, each on its own, as `token_nats` reads."""
    total, done = len(contenders) * (end - start), 0

    def advance(tokens: int) -> None:
        nonlocal done
        done = min(done + tokens, total)
        if progress is not None:
            progress(done, total)

    ids, first = opened.split.ids[start:], opened.dataset.vocabulary.start
    return np.stack([token_nats(c.reader, ids, first, end - start, advance, boundaries) for c in contenders], 1)


def _told(contender: Contender, nats: float) -> dict[str, Any]:
    """A reader as the result has it."""
    return {
        "name": contender.name,
        "layers": [layer.as_dict() for layer in contender.layers],
        **contender.run.identity(),
        "nats_per_token": nats,
        "perplexity": float(gains.perplexities(np.array(nats))),
    }


def _names(reader: str, against: Sequence[str]) -> list[str]:
    """What the readers are called. Raises UserError for fewer than two, and for one that is there twice."""
    if not against:
        raise UserError("one reader has nothing to be compared with; name another with --against")
    names = [reader, *map(other_name, against)]
    # Runs whose folders have one name are told apart by their paths.
    names = [given if names.count(name) > 1 else name for name, given in zip(names, [reader, *against], strict=True)]
    twice = next((name for i, name in enumerate(names) if name in names[:i]), None)
    if twice is not None:
        raise UserError(
            f"{twice} would be compared with itself; name two different readers with --reader and --against"
        )
    return names


def _check(stretch: Stretch, detail: Detail) -> None:
    if stretch.at < 0 or (stretch.context or 0) < 0 or stretch.tokens < 1:
        raise UserError("a stretch has 1 token or more, from token 0 or later on, after a context of 0 tokens or more")
    if detail.block < 1 or detail.smooth < 0:
        raise UserError("a block has 1 token or more, and a moving average 0 blocks or more")
    if not 0 < detail.words <= MOST_WORDS:
        raise UserError(f"a passage has 1 to {MOST_WORDS:,} words, not {detail.words:,}; choose fewer with --words")


def _check_passages(passages: Sequence[int], at: int, end: int) -> None:
    for place in passages:
        if not at <= place < end:
            raise UserError(f"--passage {place} is outside the stretch, which has tokens {at} to {end - 1}")


def _folder(
    opened: EvalSetup, stretch: Stretch, detail: Detail, reader: str, against: Sequence[str], word_score: WordScore
) -> str:
    """The result's folder in the run: whatever is not usual is in its name, so that no result takes another's place."""
    parts = (
        (text_part(opened, stretch.text is not None), "test"),
        (f"at{stretch.at}", "at0"),
        (f"tokens{stretch.tokens}", f"tokens{TOKENS}"),
        (f"context{stretch.context}", "contextNone"),
        (f"block{detail.block}", "block100"),
        (f"smooth{detail.smooth}", "smooth10"),
        (f"words{detail.words}", "words100"),
        (f"passage{'-'.join(map(str, detail.passages))}", "passage"),
        (opened.reader.precision.name, "float32"),
        (f"word-score-{word_score}", "word-score-corrected"),
        (reader, ""),
        (f"against-{'-'.join(map(other_part, against))}", "against-static"),
    )
    name = folder_name("explain", "reading", *(part for part, usual in parts if part != usual))
    digits = hashlib.sha256(name.encode()).hexdigest()[:8]
    return name if len(name) <= LONGEST_NAME else f"{name[:LONGEST_NAME]}-{digits}"
