"""The accuracy of the answers that a synthetic task asks for, by their length."""

from typing import Any, Self

import numpy as np

from backstory.config.options import EvalOptions
from backstory.data import Answers
from backstory.evaluation.metrics.metric import SummingMetric
from backstory.evaluation.opening import EvalSetup
from backstory.evaluation.reading_loop import ScoredBlock
from backstory.evaluation.token_scores import token_scores
from backstory.models import Precision
from backstory.readers.base import places_of
from backstory.results.evaluation_record import AnswersRecord, LengthAnswers

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
