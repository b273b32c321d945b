"""Where a neural cache does best and worst: its most peaked success and its flattest failure in a text."""

import math
from collections.abc import Callable
from dataclasses import asdict, dataclass
from typing import Any, Literal

import numpy as np
import torch
from torch import Tensor

from backstory.config import UserError, check_name
from backstory.context.folding import fold
from backstory.data import Split, Vocabulary
from backstory.data.tokenizers.built_in import END, UNKNOWN
from backstory.evaluation import Block, read
from backstory.evaluation.opening import EvalSetup
from backstory.models import Prediction
from backstory.models.prediction import Pointer
from backstory.readers import Reader
from backstory.readers.neural_cache import NeuralCache

Name = Literal["success", "failure"]
CASES: dict[Name, str] = {
    "success": "the most peaked success of the cache",
    "failure": "the flattest failure of the cache",
}


@dataclass(frozen=True)
class Case:
    """A word at which a cache succeeds or fails."""

    case: Name
    target: int
    """The word's place in the text, in tokens."""
    entropy: float
    """Nats: how evenly the cache's mass lies on the places that it remembers."""
    share: float
    """Of its mass, on places of the word itself."""

    def as_dict(self) -> dict[str, Any]:
        """As results record it."""
        return asdict(self)


def find_case(opened: EvalSetup, name: Name, at: int, progress: Callable[[int, int], None]) -> Case:
    """The success with the lowest entropy, or the failure with the highest, among the words from token `at` of the text on.

    A success has more than half of the cache's mass on the word itself, to which the reader below gives less than half; a
    failure is a word that the cache does not hold. Both have as much before them as the cache can hold, or half the text;
    `<unk>` and `<eos>` are neither, nor are words of several pieces. Raises UserError for tokens that are neither words nor
    pieces that hold all of a text, and where there is no such word.
    """
    check_name(name, CASES, "case of the cache")
    vocabulary, ids = opened.dataset.vocabulary, np.asarray(opened.split.ids)
    possible = _whole_words(vocabulary, opened.split)
    entropies, shares, below = _scan(opened.reader, ids, vocabulary.start, progress)
    window = _cache(opened.reader).settings.window
    possible[: max(at, min(window, len(ids) // 2))] = False
    possible &= (shares > 0.5) & (below < 0.5) if name == "success" else shares == 0.0
    if not possible.any():
        raise UserError(f"there is no {name} of the cache in this text; choose another split, or --at")
    measured = np.where(possible, entropies, math.inf if name == "success" else -math.inf)
    target = int(measured.argmin() if name == "success" else measured.argmax())
    return Case(name, target, float(entropies[target]), float(shares[target]))


def _whole_words(vocabulary: Vocabulary, split: Split) -> np.ndarray:
    """Which tokens (N,) are words by themselves, and neither `<unk>` nor `<eos>`, bool. Raises UserError."""
    ids, unit = np.asarray(split.ids), vocabulary.tokenizer.unit
    if unit == "word":
        special = [vocabulary.unknown, vocabulary.index.get(END)]
        return ~np.isin(ids, [i for i in special if i is not None])
    folded = fold(vocabulary, split, word_score="sum")
    if folded is None:
        raise UserError(f"cases of the cache are words, and the tokens here are {unit}s; choose --at")
    named = [len(word) == 1 and vocabulary.decode(word).strip() not in ("", UNKNOWN) for word in folded.pieces]
    found = np.zeros(len(ids), bool)
    found[folded.starts] = np.array(named)[folded.ids]
    return found


def _cache(reader: Reader) -> NeuralCache:
    assert isinstance(reader, NeuralCache)
    return reader


def _scan(
    reader: Reader, ids: np.ndarray, first: int, progress: Callable[[int, int], None]
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Of every token, (N,) each: the entropy of the cache's mass over places, the share of it on the token, and the
    probability that the reader below gives it.
    """
    entropies: list[Tensor] = []
    shares: list[Tensor] = []
    below: list[Tensor] = []
    done = 0

    def look(block: Block, prediction: Prediction, log_prob: Tensor) -> None:
        nonlocal done
        q = prediction.parts()["q"]
        assert isinstance(q, Pointer)
        entropies.append(torch.special.entr(q.weights[0]).sum(1).double().cpu())
        shares.append((q.weights[0] * (q.words[0] == block.targets[0, :, None])).sum(1).double().cpu())
        with reader.precision.context(block.targets.device):
            below.append(prediction.parts()["p"].log_prob(block.targets)[0].double().exp().cpu())
        done += block.targets.shape[1]
        progress(done, len(ids))

    read(reader, ids, first, each=look)
    return torch.cat(entropies).numpy(), torch.cat(shares).numpy(), torch.cat(below).numpy()
