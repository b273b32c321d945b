"""Statistics of training gradients, weight by weight: root mean square, and the diagonal Fisher information.

RMS = sqrt(mean over minibatches of g^2) (Krause et al. 2018); F is the precision of the weights' posterior in elastic weight
consolidation (Kirkpatrick et al. 2017; appendix A of Wolf et al. 2018).
"""

from collections.abc import Callable
from dataclasses import asdict, dataclass
from itertools import islice
from pathlib import Path
from typing import Any, get_type_hints

import numpy as np
import torch
from torch import Tensor

from backstory.config.plugin_files import plugin_flags
from backstory.models import LanguageModel, Precision, Prediction, detach
from backstory.models.kernels.factored_gradients import whole
from backstory.readers.base import blocks
from backstory.readers.moving_weights import MovingWeights
from backstory.runs.run import check_tensors, weights_hash
from backstory.storage.atomic import sweep_abandoned
from backstory.storage.checkpoint import DamagedCheckpoint, read_checkpoint, write_checkpoint
from backstory.storage.documents import has_fields
from backstory.utils.errors import NonFiniteError, UserError, pasted

NAME = "statistics"
EVERY = 10
"""Minibatches between two samples of the expected Fisher information of a softmax, which is expensive and a smooth mean."""


@dataclass(frozen=True)
class Collected:
    """Record of how statistics were collected."""

    weights: str
    """Hash of the model's weights."""
    moving: str
    """Choice of the weights, as `MovingWeights` takes it."""
    text: str
    """The split, and the corpus's fingerprint."""
    batch_size: int
    segment: int
    minibatches: int
    tokens: int
    precision: str


@dataclass(frozen=True)
class Statistics:
    """Mean squares of each parameter by name, in its shape, in its dtype or at least float32."""

    mean_square: dict[str, Tensor]
    """Mean over minibatches of the squared gradient of their mean loss."""
    information: dict[str, Tensor]
    """Fisher information of a token: the squared gradients times the tokens of a minibatch; for the rows of a softmax the
    expected (p - p^2)^T h^2, which covers the words that are rare as well."""
    collected: Collected

    def __deepcopy__(self, memo: dict[int, Any]) -> "Statistics":
        return self  # nothing changes them, and they are as large as the model

    def rms(self, weights: MovingWeights) -> Tensor:
        """Return (N,): root mean square of the gradients of the weights that move. Raises UserError if these are not theirs."""
        return self._flat(self.mean_square, weights)

    def fisher(self, weights: MovingWeights) -> Tensor:
        """Return (N,): square root of the Fisher information. Raises UserError."""
        return self._flat(self.information, weights)

    def _flat(self, tensors: dict[str, Tensor], weights: MovingWeights) -> Tensor:
        missing = [name for name in weights.names if name not in tensors]
        if missing:
            raise UserError(
                f"the statistics are of {self.collected.moving} weights and have none of {missing[0]}; collect them for the "
                f"weights that are to move with `backstory reader statistics RUN --moving ...`"
            )
        for name, static in zip(weights.names, weights.static, strict=True):
            if tensors[name].shape != static.shape or not tensors[name].is_floating_point():
                raise UserError(
                    f"the statistics of {name} do not fit the model; collect them again with "
                    "`backstory reader statistics RUN`"
                )
        return torch.cat([tensors[n].flatten() for n in weights.names]).to(weights.delta).sqrt_()


def collect(
    model: LanguageModel,
    ids: np.ndarray,
    first: int,
    *,
    text: str = "",
    moving: str = "all",
    batch_size: int = 100,
    segment: int = 5,
    precision: Precision | None = None,
    progress: Callable[[int, int], None] | None = None,
) -> Statistics:
    """Read a text (N,) in `batch_size` rows and minibatches of `segment` tokens of each, every dropout off.

    `progress` takes the minibatches read and those there are. Raises UserError for a text that is too short for one minibatch,
    and NonFiniteError.
    """
    count = _whole_minibatches(len(ids), batch_size, segment)
    if moving != "all" and not moving.startswith("low-rank"):
        raise UserError(f"statistics are of all weights, which also serve {moving}, or of low-rank:R adapters")
    precision = precision or Precision(torch.float32, "the default for reading")
    weights = MovingWeights(model, moving)
    squares, expected = torch.zeros_like(weights.delta), ExpectedInformation(weights)
    state = model.start(batch_size)
    for block in islice(blocks(ids, first, batch_size, segment, weights.delta.device), count):
        with torch.enable_grad(), precision.context(block.tokens.device):
            prediction, state = weights.model(block.tokens, state)
            gradients = weights.gradients(-prediction.log_prob(block.targets).mean())
        with torch.no_grad():
            for region, grad in zip(weights.regions, map(whole, gradients), strict=True):
                if grad is not None:
                    flat = grad.reshape(-1).to(squares.dtype)
                    squares[region].addcmul_(flat, flat)
            if block.index % EVERY == 0:
                expected.add(prediction, block.tokens.numel())
        state = detach(state)
        if progress is not None:
            progress(block.index + 1, count)
    squares /= count
    mean_square = {
        name: squares[region].view(static.shape).cpu()
        for name, region, static in zip(weights.names, weights.regions, weights.static, strict=True)
    }
    information = {name: value * (batch_size * segment) for name, value in mean_square.items()} | expected.means()
    for tensors in (mean_square, information):
        _check_finite(tensors)
    tokens = count * batch_size * segment
    collected = Collected(weights_hash(model), moving, text, batch_size, segment, count, tokens, precision.name)
    return Statistics(mean_square, information, collected)


def _whole_minibatches(tokens: int, batch_size: int, segment: int) -> int:
    """Return how many minibatches have `segment` tokens in every row; the last rows may be shorter than the others.

    Raises UserError if there are none.
    """
    last_row = tokens - (batch_size - 1) * -(-tokens // batch_size)
    if last_row < segment:
        raise UserError(
            f"the text has {tokens:,} tokens, too few for minibatches of {batch_size:,} x {segment:,}; "
            "use a smaller --batch-size or --segment"
        )
    return last_row // segment


def _check_finite(squares: dict[str, Tensor]) -> None:
    """Raise NonFiniteError for squared gradients that are not finite numbers."""
    for name, tensor in squares.items():
        if not tensor.isfinite().all():
            raise NonFiniteError(f"the squared gradients of {name} are not finite numbers: the weights broke down")


class ExpectedInformation:
    """Means over tokens of the expected Fisher information that predictions know of their output weights."""

    def __init__(self, weights: MovingWeights) -> None:
        self._names = {id(p): name for name, p in zip(weights.names, weights.moved, strict=True)}
        self._sums: dict[str, Tensor] = {}
        self._tokens = 0

    def add(self, prediction: Prediction, tokens: int) -> None:
        self._tokens += tokens
        for parameter, information in prediction.output_information():
            if (name := self._names.get(id(parameter))) is not None:
                self._sums[name] = self._sums[name] + information if name in self._sums else information

    def means(self) -> dict[str, Tensor]:
        return {name: total.cpu() / self._tokens for name, total in self._sums.items()}


def save_statistics(folder: Path, statistics: Statistics) -> Path:
    """Write statistics into a folder of readers' files; they replace those of the same weights. Raises OSError."""
    folder.mkdir(parents=True, exist_ok=True)
    tensors = {"mean_square": statistics.mean_square, "information": statistics.information}
    name = statistics_name(statistics.collected.moving)
    sweep_abandoned(folder / name)
    return write_checkpoint(folder, name, tensors, {NAME: asdict(statistics.collected)})


def statistics_name(moving: str) -> str:
    """Return the folder of statistics: low-rank adapters have their own."""
    return f"{NAME}-{moving.replace(':', '-')}" if moving.startswith("low-rank") else NAME


class NoStatistics(UserError):
    """Raised for a run without statistics; `problem` is its message without the reader that needs none."""

    def __init__(self, problem: str, otherwise: str = "") -> None:
        super().__init__(problem + otherwise)
        self.problem = problem


def load_statistics(folder: Path, weights: str, moving: str, run: str) -> Statistics:
    """Load the statistics of a model from a folder of readers' files.

    Raises NoStatistics if there are none, and UserError if they are of other `weights` (their hash). `run` is the model as a
    command takes it.
    """
    path, again = folder / statistics_name(moving), "collect them with `backstory reader statistics RUN`"
    if not path.exists():
        more = f" --moving {moving}" if moving.startswith("low-rank") else ""
        without = ""
        if run.startswith("hf:"):
            more, without = f" --corpus NAME{more}", ", or do without them: --reader dynamic:rule=sgd,rate=0.0001"
        raise NoStatistics(
            f"{run} has no statistics of training gradients yet; collect them once with "
            f"`backstory reader statistics {pasted(run)}{more}{plugin_flags()}`",
            without,
        )
    try:
        checkpoint = read_checkpoint(path)
    except DamagedCheckpoint as error:
        raise error.as_user_error(again) from None
    document: Any = checkpoint.documents.get(NAME)
    if not has_fields(document, get_type_hints(Collected)) or checkpoint.tensors.keys() != {
        "mean_square",
        "information",
    }:
        raise UserError(f"{path} holds no statistics of this version; {again}")
    if document["weights"] != weights:
        raise UserError(f"{path} are statistics of other weights than {run} has now; {again}")
    squares, information = checkpoint.tensors["mean_square"], checkpoint.tensors["information"]
    try:
        check_tensors(information, squares, "statistics")
    except ValueError as error:
        raise UserError(f"{path}: {error}; {again}") from None
    return Statistics(squares, information, Collected(**document))
