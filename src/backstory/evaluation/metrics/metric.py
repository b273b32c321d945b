"""Metrics of an evaluation: the base class, the likelihood of each reader, nats by distance, and the accuracy of answers.

To add one, write a class and list it in `METRICS`.
"""

import json
import math
import warnings
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from typing import Any, ClassVar, Self

import numpy as np

from backstory.config import UserError
from backstory.config.options import EvalOptions
from backstory.config.scores import perplexity
from backstory.data import Answers, Truth
from backstory.evaluation.opening import EvalSetup
from backstory.evaluation.reading_loop import ScoredBlock
from backstory.evaluation.token_scores import token_scores
from backstory.models import Precision
from backstory.readers.base import places_of
from backstory.results.evaluation_record import (
    AnswersRecord,
    CurveRecord,
    KindCosts,
    LengthAnswers,
    MemoryRange,
    MemoryRecord,
    NewTokens,
    ReaderScore,
    RecencyRange,
    RecencyRecord,
)
from backstory.results.validation import json_values


class Metric(ABC):
    """Something measured while a text is read: it sees each block once, before the reader learns from it.

    A context manager around the reading, for one that holds a file open.
    """

    name: ClassVar[str]
    """The section of the result, and the key of its state in a checkpoint."""
    takes_lines: ClassVar[bool] = False
    """True if it does not depend on the position of a block, so that it also applies to separately read lines."""

    @classmethod
    @abstractmethod
    def for_evaluation(cls, setup: EvalSetup, options: EvalOptions) -> Self | None:
        """Return the metric for a reading; None if it does not apply. Raises UserError, before anything is read."""

    @abstractmethod
    def update(self, scored: ScoredBlock) -> None:
        """Measure a block."""

    @abstractmethod
    def result(self) -> Any:
        """Return the section of the result: a record, or plain values (docs/results.md); None if there is none."""

    def state_dict(self) -> dict[str, Any]:
        """Return what was measured so far, in plain values."""
        return {}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Restore a state. Raises ValueError, TypeError or LookupError for one of another reading."""
        if state:
            raise ValueError(f"{self.name} has no state")

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> bool | None:
        return None


def plain_result(metric: Metric) -> Any:
    """Return a metric's section with plain values: numbers of numpy as those of Python, and null, with a warning, for one that
    is not finite. Raises UserError for what JSON cannot hold.
    """
    infinite = []

    def plain(value: Any) -> Any:
        if isinstance(value, np.generic | np.ndarray):
            value = value.tolist()
        if isinstance(value, Mapping):
            return {str(name): plain(inner) for name, inner in value.items()}
        if isinstance(value, float) and not math.isfinite(value):
            infinite.append(value)
            return None
        if isinstance(value, tuple | list) and type(value) in (tuple, list):  # a named tuple stays one
            return type(value)(map(plain, value))
        return value

    result = plain(metric.result())
    try:
        json.dumps(json_values(result), allow_nan=False)
    except (TypeError, ValueError) as error:
        raise UserError(f"the metric {metric.name} has a result that JSON cannot hold ({error})") from None
    if infinite:
        warnings.warn(
            f"the metric {metric.name} has {infinite[0]}, which is not a number; the result holds null", stacklevel=2
        )
    return result


def added(states: Sequence[Any]) -> Any:
    """Return the sum of states of metrics, or of other plain values alike, in their order; a key that one lacks counts 0."""
    first = states[0]
    if isinstance(first, dict):
        names = dict.fromkeys(name for state in states for name in state)
        return {name: added([state[name] for state in states if name in state]) for name in names}
    if isinstance(first, list):
        return [added(values) for values in zip(*states, strict=True)]
    return sum(states[1:], first)


class SummingMetric(Metric):
    """A metric whose state is an array of sums of a fixed shape."""

    sums: np.ndarray

    def state_dict(self) -> dict[str, Any]:
        return {"sums": self.sums.tolist()}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        sums = np.array(state["sums"], np.float64)
        if sums.shape != self.sums.shape:
            raise ValueError(f"its sums have the shape {sums.shape}, not {self.sums.shape}")
        self.sums = sums


class StackLikelihood(SummingMetric):
    """Mean nats of every reader of a stack, the innermost first, which give the gain of each over those inside it."""

    name = "gains"
    takes_lines = True

    def __init__(self, setup: EvalSetup) -> None:
        self.names = [layer.name for layer in setup.layers]
        self.precision = setup.reader.precision
        self.sums, self.tokens = np.zeros(len(self.names)), 0

    @classmethod
    def for_evaluation(cls, setup: EvalSetup, options: EvalOptions) -> Self:
        return cls(setup)

    def update(self, scored: ScoredBlock) -> None:
        block, prediction, log_prob = scored
        self.tokens += int(block.scored.sum())
        for layer in reversed(range(len(self.names))):
            self.sums[layer] -= log_prob.double()[block.scored].sum().item()
            if layer:
                parts = prediction.parts()
                if "p" not in parts:
                    raise UserError(
                        f"the prediction of the reader {self.names[layer]} does not hold that of the reader inside it; its "
                        "parts() must return that one as 'p' (docs/extending.md)"
                    )
                prediction = parts["p"]
                with self.precision.context(log_prob.device):
                    log_prob = prediction.log_prob(block.targets)

    def result(self) -> tuple[ReaderScore, ...]:
        totals = zip(self.names, self.sums.tolist(), strict=True)
        return tuple(ReaderScore.of_nats(name, total / self.tokens) for name, total in totals)

    def state_dict(self) -> dict[str, Any]:
        return super().state_dict() | {"tokens": self.tokens}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        super().load_state_dict(state)
        self.tokens = int(state["tokens"])


FROM = (1, 5, 10, 20, 50, 100, 200, 500, 1000)
"""The least distance of each bin, in tokens; the last has no end."""
COLUMNS = len(FROM) + 1
"""One for tokens in which nothing comes back, then one for each bin."""


class NatsByDistance(SummingMetric):
    """Sums of nats by class of token and distance to the last occurrence of what recurs in it."""

    def __init__(self, kind: np.ndarray, kinds: int, distance: np.ndarray, block: int) -> None:
        """The class of every token of the text and its distance, 0 if nothing comes back, each (tokens,).

        `block`: tokens of each row that are read at once.
        """
        self.block, self.distance = block, distance
        self.cells = kind.astype(np.int32) * COLUMNS
        self.cells += np.searchsorted(FROM, distance, "right")
        self.sums = np.zeros(kinds * COLUMNS)

    def update(self, scored: ScoredBlock) -> None:
        block, _, log_prob = scored
        places = places_of(block, self.block)
        inside = block.scored.cpu().numpy()
        nats = -log_prob.double().cpu().numpy()[inside]
        self.sums += np.bincount(self.cells[places[inside]], nats, minlength=len(self.sums))

    def nats(self) -> np.ndarray:
        """Return the sums of nats, (kinds, COLUMNS)."""
        return self.sums.reshape(-1, COLUMNS)

    def summed(self, weights: np.ndarray | None = None) -> np.ndarray:
        """Return sums of weights (tokens,) over the text, or the number of tokens, (kinds, COLUMNS)."""
        return np.bincount(self.cells, weights, self.sums.size).reshape(-1, COLUMNS)


class Recency(NatsByDistance):
    """Nats of every token by distance to its last occurrence in its row, with new tokens apart.

    A memory of the words read so far lowers them.
    """

    name = "recency"

    def __init__(self, ids: np.ndarray, batch_size: int, block: int) -> None:
        """A text (tokens,) that is read in contiguous rows, `block` tokens of each at once."""
        super().__init__(np.zeros(len(ids), np.uint8), 1, last_seen(ids, math.ceil(len(ids) / batch_size)), block)

    @classmethod
    def for_evaluation(cls, setup: EvalSetup, options: EvalOptions) -> Self:
        return cls(setup.split.ids, options.batch_size, setup.reader.block)

    def result(self) -> RecencyRecord:
        counts, distances, nats = self.summed()[0], self.summed(self.distance)[0], self.nats()[0]
        new = int(counts[0])
        bins = [
            RecencyRange(
                **ends(column),
                distance=float(distances[column] / counts[column]),
                tokens=int(counts[column]),
                nats=float(nats[column]) / int(counts[column]),
            )
            for column in range(1, COLUMNS)
            if counts[column]
        ]
        return RecencyRecord(
            new=NewTokens(tokens=new, nats=float(nats[0]) / new if new else None),
            bins=tuple(bins),
        )


class MemoryCurve(NatsByDistance):
    """Nats above the exact cost of a text whose truth is known, by class and distance."""

    name = "memory"

    def __init__(self, truth: Truth, block: int) -> None:
        """`block`: tokens of each row that are read at once."""
        super().__init__(truth.kind, len(truth.kinds), truth.distance, block)
        self.truth = truth

    @classmethod
    def for_evaluation(cls, setup: EvalSetup, options: EvalOptions) -> Self | None:
        truth = setup.dataset.truth(setup.split.name)
        return None if truth is None else cls(truth, setup.reader.block)

    def result(self) -> MemoryRecord:
        counts, exact, distances = (self.summed(w) for w in (None, self.truth.exact, self.truth.distance))
        nats = self.nats()

        def costs(*cells: Any) -> dict[str, Any]:
            tokens = int(counts[cells].sum())
            mean, least = (float(sums[cells].sum()) / tokens for sums in (nats, exact))
            return {"tokens": tokens, "nats": mean, "exact": least, "excess": mean - least}

        def bins(kind: int) -> tuple[MemoryRange, ...]:
            return tuple(
                MemoryRange(
                    **ends(column),
                    distance=float(distances[kind, column] / counts[kind, column]),
                    **costs(kind, column),
                )
                for column in range(1, COLUMNS)
                if counts[kind, column]
            )

        whole = costs(slice(None))
        kinds = [(number, kind) for number, kind in enumerate(self.truth.kinds) if counts[number].any()]
        curves = [
            CurveRecord(kind=kind, forgotten=self.truth.forgotten[kind], bins=bins(number))
            for number, kind in kinds
            if kind in self.truth.forgotten
        ]
        return MemoryRecord(
            exact_nats_per_token=whole["exact"],
            exact_perplexity=perplexity(whole["exact"]),
            excess_nats_per_token=whole["excess"],
            kinds=tuple(KindCosts(kind=kind, **costs(number)) for number, kind in kinds),
            curves=tuple(curves),
        )


def ends(column: int) -> dict[str, Any]:
    """Return the ends of a range of distances, by its column."""
    return {"from_": FROM[column - 1], "to": FROM[column] - 1 if column < len(FROM) else None}


def last_seen(ids: np.ndarray, row: int) -> np.ndarray:
    """Return the distance (tokens,) of each token to its last occurrence in its row of `row` tokens; 0 if new."""
    distances = np.zeros(len(ids), np.int32)
    for begin in range(0, len(ids), row):
        tokens = np.asarray(ids[begin : begin + row])
        order = np.argsort(tokens, kind="stable")
        same = np.diff(tokens[order]) == 0
        distances[begin + order[1:]] = np.where(same, np.diff(order), 0)
    return distances


SUMS = ("nats", "tokens", "bits")
"""Sums of each document over its answer: nats, tokens that are predicted right, bits that are predicted right."""


class AnswerAccuracy(SummingMetric):
    """Compare the most likely token with every answer token."""

    name = "answers"

    def __init__(self, answers: Answers, precision: Precision, block: int) -> None:
        """`block`: tokens of each row that are read at once."""
        self.answers, self.precision, self.block = answers, precision, block
        self.sums = np.zeros((len(SUMS), len(answers.lengths)))
        self.answer_tokens = np.bincount(answers.document, answers.mask, minlength=len(answers.lengths))

    @classmethod
    def for_evaluation(cls, setup: EvalSetup, options: EvalOptions) -> Self | None:
        answers = setup.dataset.answers(setup.split.name)
        return None if answers is None else cls(answers, setup.reader.precision, setup.reader.block)

    def update(self, scored: ScoredBlock) -> None:
        block, prediction, log_prob = scored
        places = places_of(block, self.block)
        inside = block.scored.cpu().numpy()
        mask = inside & self.answers.mask[np.where(inside, places, 0)]
        if not mask.any():
            return
        with self.precision.context(log_prob.device):
            scores = token_scores(prediction, block.targets, block.scored.new_tensor(mask), top=1)
        predicted, targets = (ids.cpu().numpy()[mask] for ids in (scores.candidates[..., 0], block.targets))
        nats = -log_prob.double().cpu().numpy()[mask]
        document, count = self.answers.document[places[mask]], len(self.answers.lengths)
        values = (nats, predicted == targets, self._right_bits(predicted, targets))
        self.sums += np.stack([np.bincount(document, value, minlength=count) for value in values])

    def _right_bits(self, predicted: np.ndarray, targets: np.ndarray) -> np.ndarray:
        """Count the bits of each target symbol (n,) that are right; 0 if either token is no symbol."""
        first, bits = self.answers.symbols, self.answers.bits
        wrong = sum(((predicted - first) ^ (targets - first)) >> bit & 1 for bit in range(bits))
        return np.where((predicted >= first) & (targets >= first), bits - wrong, 0)

    def nats(self) -> float:
        """Return the mean nats of an answer token."""
        return float(self.sums[0].sum() / self.answer_tokens.sum())

    def result(self) -> AnswersRecord:
        lengths = self.answers.lengths
        by_length = tuple(LengthAnswers(length=int(n), **self._of(lengths == n)) for n in np.unique(lengths))
        return AnswersRecord(task=self.answers.task, **self._of(np.ones(len(lengths), bool)), lengths=by_length)

    def _of(self, documents: np.ndarray) -> dict[str, Any]:
        """Return the fields of AnswerCounts for some documents, a mask (documents,)."""
        nats, tokens, bits = self.sums[:, documents].sum(1).tolist()
        answers = self.answer_tokens[documents]
        # All answer tokens are symbols, but for the end, which repeat-copy asks for too.
        symbols = answers - (1 if self.answers.task == "repeat-copy" else 0)
        return {
            "documents": int(documents.sum()),
            "answer_tokens": int(answers.sum()),
            "nats_per_answer_token": float(nats / answers.sum()),
            "token_accuracy": float(tokens / answers.sum()),
            "bit_accuracy": float(bits / (symbols.sum() * self.answers.bits)),
            "document_accuracy": float((self.sums[1, documents] == answers).mean()),
        }
