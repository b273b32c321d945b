"""Scores of what is asked in a drawn task: right answers, right bits and whole documents, by the length of the sequences."""

from typing import Any

import numpy as np
from torch import Tensor

from backstory.data import Answers
from backstory.evaluation.sums import Sums
from backstory.evaluation.token_scores import token_scores
from backstory.models import Precision, Prediction
from backstory.readers.blocks import Block, places_of

SUMS = ("nats", "tokens", "bits")
"""What is added up of every document: nats paid for its answer, its tokens that are predicted right, and right bits."""


class AnswerScores(Sums):
    """Compares the likeliest token with every token that is asked, as a text is read once."""

    def __init__(self, answers: Answers, precision: Precision, block: int) -> None:
        """`block`: how many tokens of each row are read at once."""
        self.answers, self.precision, self.block = answers, precision, block
        self.sums = np.zeros((len(SUMS), len(answers.lengths)))
        self.asked = self._by_document(answers.asked)

    def __call__(self, block: Block, prediction: Prediction, log_prob: Tensor) -> None:
        places = places_of(block, len(self.answers.asked), self.block)
        scored = block.scored.cpu().numpy()
        asked = scored & self.answers.asked[np.where(scored, places, 0)]
        if not asked.any():
            return
        with self.precision.context(log_prob.device):
            mask = block.scored.new_tensor(asked)
            likeliest = token_scores(prediction, block.targets, mask, top=1).candidates[..., 0]
        predicted, wanted = (ids.cpu().numpy()[asked] for ids in (likeliest, block.targets))
        found = (-log_prob.double().cpu().numpy()[asked], predicted == wanted, self._right_bits(predicted, wanted))
        document, count = self.answers.document[places[asked]], len(self.answers.lengths)
        self.sums += np.stack([np.bincount(document, values, minlength=count) for values in found])

    def _right_bits(self, predicted: np.ndarray, wanted: np.ndarray) -> np.ndarray:
        """How many bits of each wanted symbol (n,) are predicted: none by a token without bits, and none of one."""
        first, bits = self.answers.symbols, self.answers.bits
        wrong = sum(((predicted - first) ^ (wanted - first)) >> bit & 1 for bit in range(bits))
        return np.where((predicted >= first) & (wanted >= first), bits - wrong, 0)

    def nats(self) -> float:
        """Mean nats of a token that is asked."""
        return float(self.sums[0].sum() / self.asked.sum())

    def figures(self) -> dict[str, Any]:
        """The section `answers` of an evaluation (docs/results.md)."""
        lengths = self.answers.lengths
        of_length = [{"length": int(n), **self._of(lengths == n)} for n in np.unique(lengths)]
        return {"task": self.answers.task, **self._of(np.ones(len(lengths), bool)), "lengths": of_length}

    def _of(self, chosen: np.ndarray) -> dict[str, Any]:
        """The figures of the chosen documents (documents,)."""
        nats, tokens, bits = self.sums[:, chosen].sum(1).tolist()
        asked, symbols = self.asked[chosen], self._symbols[chosen]
        return {
            "documents": int(chosen.sum()),
            "answer_tokens": int(asked.sum()),
            "nats_per_answer_token": float(nats / asked.sum()),
            "token_accuracy": float(tokens / asked.sum()),
            "bit_accuracy": float(bits / (symbols.sum() * self.answers.bits)),
            "document_accuracy": float((self.sums[1, chosen] == asked).mean()),
        }

    @property
    def _symbols(self) -> np.ndarray:
        """Symbols that are asked in each document: all but the end, where that is asked too."""
        return self.asked - (1 if self.answers.task == "repeat-copy" else 0)

    def _by_document(self, weights: np.ndarray) -> np.ndarray:
        return np.bincount(self.answers.document, weights, minlength=len(self.answers.lengths))
