"""Scorers: from (context, target) pairs to log p(target | context), whatever the model; of tokens, and of words of pieces."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, fields, is_dataclass
from typing import Any, NoReturn, Protocol, runtime_checkable

import numpy as np
import torch
from torch import Tensor

from backstory.data import Boundaries
from backstory.evaluation.token_scores import log_mass
from backstory.models import Prediction
from backstory.readers import Reader
from backstory.utils.arguments import checked, described, diagnosed, with_article
from backstory.utils.errors import UserError

STEPS = 64
"""Time steps of a batch of contexts that are run at once."""
STEP = 50
"""Context lengths are rounded up to multiples of this when the memory of a batch is measured."""
MOST_ROWS = 1024
"""Largest batch: a larger one is no faster."""
NOTHING = -1
"""The target where none is scored."""


class Scorer(Protocol):
    """Any causal model that scores one target after each of many contexts."""

    def score(
        self, contexts: Sequence[np.ndarray], targets: np.ndarray, progress: Callable[[int], None] | None = None
    ) -> np.ndarray:
        """Return log p(targets[i] | contexts[i]) in nats, (N,) float64; contexts may differ in length, none is empty.

        `progress` receives the number of tokens read since its last call.
        """
        ...


@dataclass(frozen=True, eq=False)
class Prefixes:
    """P prefixes of texts with the target after each: texts that share their beginning are read once."""

    texts: Sequence[np.ndarray]
    of: np.ndarray
    """(P,) number of the text of each prefix, ascending."""
    lengths: np.ndarray
    """(P,) number of tokens of each prefix, at least one."""
    targets: np.ndarray
    """(P,) token to score after it, or `NOTHING`."""
    with_mass: np.ndarray
    """(P,) True where the mass of `members` is computed after it."""
    members: np.ndarray
    """(M,) tokens."""


@runtime_checkable
class PrefixScorer(Protocol):
    """Scorer that scores after several prefixes of a text at once, and gives the mass of a set of tokens there."""

    def score(
        self, contexts: Sequence[np.ndarray], targets: np.ndarray, progress: Callable[[int], None] | None = None
    ) -> np.ndarray: ...

    def score_prefixes(
        self, prefixes: Prefixes, progress: Callable[[int], None] | None = None
    ) -> tuple[np.ndarray, np.ndarray]:
        """Return log p of the targets and log of the members' mass, each (P,) float64 in nats; 0 where there is none."""
        ...


def refuse_adapting(reader: str) -> NoReturn:
    """Raise UserError: a reader that learns as it reads cannot score contexts side by side."""
    raise UserError(
        f"the reader {reader} learns as it reads, and contexts are read side by side; examine with another, such as static or "
        "cache"
    )


def _check_pairs(scorer: "ReaderScorer", contexts: Any = None, targets: Any = None, progress: Any = None) -> None:
    """Raise TypeError or ValueError unless these are contexts of ids and a target for each."""
    listed = isinstance(contexts, Sequence) or (isinstance(contexts, np.ndarray) and contexts.ndim == 2)
    if not listed or not all(isinstance(c, np.ndarray) and c.ndim == 1 and c.dtype.kind in "iu" for c in contexts):
        raise TypeError("contexts must be a sequence of arrays of ids (n,)")
    if not isinstance(targets, np.ndarray) or targets.shape != (len(contexts),) or targets.dtype.kind not in "iu":
        raise TypeError(f"targets must be an array of {len(contexts)} ids, one for each context")
    if progress is not None and not callable(progress):
        raise TypeError(f"progress must be a function, not {described(progress)}")
    if len(targets) and targets.max() >= scorer.reader.model.vocabulary_size:
        raise ValueError(f"targets must be ids below {scorer.reader.model.vocabulary_size}, not {targets.max()}")


class ReaderScorer:
    """Scorer that reads every context from an empty state, so that the reader remembers nothing but the context.

    Contexts of similar length run side by side, as many as fit the memory budget. The output layer runs only on the last
    position of each.
    """

    @checked(memory=1)
    def __init__(self, reader: Reader, memory: int = 1 << 30) -> None:
        """`memory` is the budget of a batch, in bytes. The reader forgets what it has read before.

        Raises UserError for a reader whose weights move or whose rows depend on each other: contexts read side by side would
        influence one another.
        """
        if reader.capabilities.adapts_weights:
            refuse_adapting(reader.name)
        if not reader.capabilities.independent_rows:
            raise UserError(
                f"the reader {reader.name} reads rows that depend on each other, and contexts are read side by side; examine "
                "with another, such as static or cache"
            )
        self.reader, self.memory = reader, memory
        self.device = next(reader.model.parameters()).device
        self._rows: dict[int, int] = {}

    @diagnosed(_check_pairs)
    def score(
        self, contexts: Sequence[np.ndarray], targets: np.ndarray, progress: Callable[[int], None] | None = None
    ) -> np.ndarray:
        count, none = len(contexts), np.empty(0, np.int64)
        lengths = np.array([len(c) for c in contexts], np.int64)
        prefixes = Prefixes(contexts, np.arange(count), lengths, targets, np.zeros(count, bool), none)
        return self.score_prefixes(prefixes, progress)[0]

    def score_prefixes(
        self, prefixes: Prefixes, progress: Callable[[int], None] | None = None
    ) -> tuple[np.ndarray, np.ndarray]:
        lengths, texts = np.array([len(text) for text in prefixes.texts], np.int64), prefixes.texts
        if len(prefixes.lengths) and not prefixes.lengths.min():
            raise ValueError("a context must hold at least one token")
        scores, order = np.zeros((2, len(prefixes.of))), np.argsort(lengths, kind="stable")
        rows = self.rows(int(lengths.max())) if len(lengths) else 1
        for start in range(0, len(order), rows):
            batch = order[start : start + rows]
            row = np.full(len(texts), -1)
            row[batch] = np.arange(len(batch))
            (inside,) = np.nonzero(row[prefixes.of] >= 0)
            scores[:, inside] = self._batch([texts[i] for i in batch], row[prefixes.of[inside]], prefixes, inside)
            if progress is not None:
                progress(int(lengths[batch].sum()))
        return scores[0], scores[1]

    def rows(self, longest: int) -> int:
        """Return the number of contexts of `longest` tokens in a batch: the budget divided by the measured memory of one.

        Lengths are rounded up to multiples of `STEP`, so that each is measured once.
        """
        limit = self.reader.model.capabilities.maximum_length
        longest = longest if longest <= STEP else -(-longest // STEP) * STEP
        longest = longest if limit is None else min(longest, limit)
        if longest not in self._rows:
            self._rows[longest] = self._measure(longest)
        return self._rows[longest]

    def _measure(self, longest: int) -> int:
        model, largest = self.reader.model, 0
        weights = {p.untyped_storage().data_ptr() for p in model.parameters()}
        for _, prediction in self._read(torch.zeros(1, longest, dtype=torch.long, device=self.device)):
            largest = max(largest, _bytes(prediction, weights))
        # Gates and copies: about eight times what a prediction holds, and a state is held before, after and in between. A row
        # also pays for one line of logits, in three copies.
        row = 8 * largest + 4 * _bytes(self.reader.snapshot(), weights) + 12 * model.vocabulary_size
        return int(np.clip(self.memory // row, 1, MOST_ROWS))

    def _batch(self, texts: list[np.ndarray], rows: np.ndarray, prefixes: Prefixes, places: np.ndarray) -> np.ndarray:
        """Return scores and masses (2, n) of prefixes at these places, whose texts are the `rows` (n,) of one batch.

        Shorter texts are padded at their end, where a causal reader cannot see it.
        """
        padded = np.zeros((len(texts), max(map(len, texts))), np.int64)
        for filled, text in zip(padded, texts, strict=True):
            filled[: len(text)] = text
        columns = (
            rows,
            prefixes.lengths[places],
            prefixes.targets[places].astype(np.int64),
            prefixes.with_mass[places],
        )
        row, lengths, targets, with_mass = (torch.from_numpy(values).to(self.device) for values in columns)
        members = torch.from_numpy(prefixes.members).to(self.device)
        scores = torch.zeros(2, len(places), dtype=torch.float64, device=self.device)
        for start, prediction in self._read(torch.from_numpy(padded).to(self.device)):
            here = (lengths > start) & (lengths <= start + self._step(padded.shape[1]))
            (ending,) = torch.where(here & (targets >= 0))
            if len(ending):
                last = prediction.select(row[ending], lengths[ending] - 1 - start)
                with self.reader.precision.context(self.device):
                    scores[0, ending] = last.log_prob(targets[ending, None])[:, 0].double()
            (ending,) = torch.where(here & with_mass)
            with self.reader.precision.context(self.device):
                at = row[ending], lengths[ending] - 1 - start
                scores[1, ending] = log_mass(prediction, *at, members)
        return scores.cpu().numpy()

    def _read(self, tokens: Tensor) -> Iterator[tuple[int, Prediction]]:
        """Read contexts (B, T) piece by piece; yield the start of each piece and the prediction over it."""
        length = tokens.shape[1]
        step = self._step(length)
        with torch.no_grad():
            self.reader.start(len(tokens))
            for start in range(0, length, step):
                yield start, self.reader.predict(tokens[:, start : start + step])
                if start + step < length:
                    self.reader.observe(tokens[:, start + 1 : start + step + 1])

    def _step(self, length: int) -> int:
        """Return the tokens in a piece: all, for a reader whose scores depend on the cuts or that rereads."""
        in_one = not self.reader.capabilities.block_invariant or self.reader.model.capabilities.rereads
        return length if in_one else STEPS


class WordScorer:
    """Scores words of pieces with a scorer of pieces.

    A word's score is the sum over its pieces, each after the context and the pieces before it, corrected for where it begins
    and ends (`backstory.data.tokenizers.boundaries`). The pieces of the words are the text's own, so an unperturbed context is
    read exactly as it stands. A word of k pieces costs one reading of its context and itself, k lines of logits and, corrected,
    two whole distributions: before its first piece and after its last.
    """

    def __init__(
        self,
        scorer: Scorer,
        pieces: Sequence[np.ndarray],
        maximum_length: int | None = None,
        boundaries: Boundaries | None = None,
    ) -> None:
        """`pieces` of each word by its id; of contexts longer than `maximum_length` pieces the nearest are read.

        With `boundaries` scores are corrected, else they are plain sums. Raises UserError for a scorer that cannot do that.
        """
        if boundaries is not None and not isinstance(scorer, PrefixScorer):
            raise UserError(
                f"{with_article(type(scorer).__name__)} gives no mass of the pieces that begin a word; give it "
                "`score_prefixes`, or take the word score sum"
            )
        self.scorer, self.pieces, self.maximum_length = scorer, pieces, maximum_length
        self.boundaries = boundaries

    def score(
        self, contexts: Sequence[np.ndarray], targets: np.ndarray, progress: Callable[[int], None] | None = None
    ) -> np.ndarray:
        texts: list[np.ndarray] = []
        rows: list[tuple[int, int, int, int, int]] = []
        for i, (context, target) in enumerate(zip(contexts, targets, strict=True)):
            read = np.concatenate([*(self.pieces[int(w)] for w in context), self.pieces[int(target)]])
            first, limit, last_begin = len(read) - len(self.pieces[int(target)]), self.maximum_length or len(read), -1
            signs = self._signs(read, first)
            for end in range(first, len(read) + (len(read) in signs)):
                begin = max(0, end - limit)
                if begin != last_begin:  # where the window has moved on, the text is another
                    texts.append(read[:0])
                    last_begin = begin
                texts[-1] = read[begin:end]
                piece = int(read[end]) if end < len(read) else NOTHING
                rows.append((len(texts) - 1, end - begin, piece, i, signs.get(end, 0)))
        of, lengths, pieces, owner, sign = np.array(rows, np.int64).reshape(-1, 5).T
        members = np.empty(0, np.int64) if self.boundaries is None else self.boundaries.beginning
        prefixes = Prefixes(texts, of, lengths, pieces, sign != 0, members)
        words = sum(map(len, contexts))
        if isinstance(self.scorer, PrefixScorer):
            advance = progress and _scaled(progress, sum(map(len, texts)), words)
            scores, masses = self.scorer.score_prefixes(prefixes, advance)
            scores = np.where(np.isinf(scores), scores, scores + sign * masses)
        else:
            advance = progress and _scaled(progress, int(lengths.sum()), words)
            scores = self.scorer.score([texts[t][:n] for t, n in zip(of, lengths, strict=True)], pieces, advance)
        return np.bincount(owner, scores, len(contexts))

    def _signs(self, read: np.ndarray, first: int) -> dict[int, int]:
        """Return where the mass of the word-initial pieces is subtracted or added: before and after the word."""
        if self.boundaries is None:
            return {}
        uncertain = self.boundaries.uncertain(read, np.array([first]))
        return {end: sign for end, sign in ((first, -1), (len(read), 1)) if uncertain[end]}


def _scaled(progress: Callable[[int], None], total: int, words: int) -> Callable[[int], None]:
    """Return a function that receives progress in pieces, of `total`, and reports it in words."""
    done = 0

    def advance(pieces: int) -> None:
        nonlocal done
        before, done = done * words // total, done + pieces
        progress(done * words // total - before)

    return advance


def _bytes(tree: Any, weights: set[int]) -> int:
    """Return the bytes of the tensors of a prediction or a state: shared memory counts once, and weights do not count."""
    storages = {t.untyped_storage().data_ptr(): t.untyped_storage().nbytes() for t in _tensors(tree)}
    return sum(size for pointer, size in storages.items() if pointer not in weights)


def _tensors(tree: Any) -> Iterator[Tensor]:
    if isinstance(tree, Tensor):
        yield tree
    elif isinstance(tree, dict):
        tree = list(tree.values())
    elif is_dataclass(tree):
        tree = [getattr(tree, field.name) for field in fields(tree)]
    for part in tree if isinstance(tree, tuple | list) else ():
        yield from _tensors(part)
