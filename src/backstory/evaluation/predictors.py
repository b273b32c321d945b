"""External predictors: objects with `predict` and `observe`, made by a factory, whose answers are checked."""

import copy
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any, Protocol, runtime_checkable

import numpy as np
import torch
from torch import Tensor

import backstory
from backstory.evaluation.audit import copied
from backstory.evaluation.predictor_process import ProcessPredictor
from backstory.readers.base import Reader
from backstory.utils.arguments import described
from backstory.utils.errors import UserError


@runtime_checkable
class Predictor(Protocol):
    """Predicts a text in blocks: `predict(tokens)`, and once the block is scored `observe(targets)`.

    `tokens` (T,) int64 are inputs and `targets` (T,) the tokens that follow them; with several rows both are (rows, T). Calling
    `predict` again before `observe` replaces the block.
    """

    def predict(self, tokens: np.ndarray) -> Any:
        """Return the log-probabilities in nats of what follows each token: (T, types), or (rows, T, types)."""
        ...

    def observe(self, targets: np.ndarray) -> None:
        """Take the block as read: the only place where anything may be learned."""
        ...


class Instance:
    """Adapter of a fresh predictor: takes tensors of ids (B, T), and returns tables (B, T, V) in float64.

    `types` is V; None until the first table says it. Raises UserError for what cannot be refereed: another shape, values that
    are no numbers, an error in the predictor.
    """

    def __init__(self, make: Callable[[], Any], types: int | None) -> None:
        self.types = types
        if types is not None and types < 1:
            raise UserError(f"types must be 1 or more, not {types}")
        self.predictor: Any = _called(make, "the factory")
        self._answer: Any = None
        lacking = [name for name in ("predict", "observe") if not callable(self.attribute(name))]
        if lacking:
            raise UserError(
                f"{described(self.predictor)} has no {lacking[0]}(); give an object with predict and observe"
            )

    def attribute(self, name: str) -> Any:
        """Return an attribute of the predictor, None without it."""
        return _called(getattr, name, self.predictor, name, None)

    def predict(self, tokens: Tensor) -> Tensor:
        """Return the log-probabilities (B, T, V) of what follows each token (B, T)."""
        self._shape = tokens.shape
        self._answer = _called(self.predictor.predict, "predict", _given(tokens))
        return self.reread()

    def reread(self) -> Tensor:
        """Return a copy of the present content of the last answer."""
        is_process = isinstance(self.predictor, ProcessPredictor)
        answered = "the log_probs of the process are" if is_process else "predict returned"
        table, (rows, times) = _called(_numbers, answered, self._answer, answered), self._shape
        expected = (times, self.types or "types") if rows == 1 else (rows, times, self.types or "types")
        if table.ndim != len(expected) or any(
            want not in ("types", have) for have, want in zip(table.shape, expected, strict=True)
        ):
            raise UserError(
                f"{answered} a table of shape {_dimensions(table.shape)} for {times:,} tokens"
                f"{'' if rows == 1 else f' of {rows} rows'}; it must be {_dimensions(expected)}"
            )
        self.types = table.shape[-1]
        return torch.from_numpy(table.reshape(rows, times, -1))

    def observe(self, targets: Tensor) -> None:
        """Let it learn from the targets (B, T) of the block."""
        _called(self.predictor.observe, "observe", _given(targets))

    def close(self) -> None:
        """Release the predictor, and end its process if it is one."""
        close = self.attribute("close")
        self.predictor = self._answer = None
        if callable(close):
            _called(close, "close")


def _given(ids: Tensor) -> np.ndarray:
    """Return ids (B, T) as a predictor gets them, as an array of its own: (T,) for one row."""
    return (ids[0] if len(ids) == 1 else ids).numpy().astype(np.int64)


def _numbers(answer: Any, answered: str) -> np.ndarray:
    """Return an answer as a new array of float64. Raises UserError for what holds anything but real numbers."""
    kind = f" of type {answer.dtype}" if isinstance(answer, Tensor | np.ndarray) else ""
    wrong = UserError(
        f"{answered} {described(answer)}{kind}; it must be a table of log-probabilities, all of them numbers"
    )
    if isinstance(answer, Tensor):
        if answer.layout is not torch.strided or answer.is_complex() or answer.is_meta or answer.dtype is torch.bool:
            raise wrong
        return answer.detach().to("cpu", torch.float64, copy=True).numpy()
    try:
        table = np.array(answer)
    except Exception:  # lists of different lengths, tensors with gradients, whatever its own conversion raises
        raise wrong from None
    if table.dtype.kind not in "fiu":
        raise wrong
    return table.astype(np.float64)


def _dimensions(shape: Any) -> str:
    return f"({', '.join(map(str, shape))}{',' if len(shape) == 1 else ''})"


def _called(function: Callable[..., Any], name: str, *arguments: Any) -> Any:
    """Call a function of a predictor. Raises UserError, with the line in its code, where it fails."""
    try:
        return function(*arguments)
    except UserError:
        raise
    except (Exception, SystemExit) as error:
        ours = str(Path(backstory.__file__).parent)
        frames = [f for f in traceback.extract_tb(error.__traceback__) if not f.filename.startswith(ours)]
        location = f"{Path(frames[-1].filename).name}, line {frames[-1].lineno}: " if frames else ""
        raise UserError(
            f"{location}{name} failed ({type(error).__name__}: {error}); correct it and try again"
        ) from error


class ReaderPredictor:
    """A reader of ours as a predictor."""

    def __init__(self, reader: Reader, batch_size: int) -> None:
        self._reader = copied(reader)
        self._reader.start(batch_size)
        self._device = next(reader.model.parameters()).device
        self.block = reader.block

    @torch.no_grad()
    def predict(self, tokens: np.ndarray) -> Tensor:
        prediction = self._reader.predict(self._ids(tokens))
        with self._reader.precision.context(self._device):
            table = prediction.log_probs()
        return table if tokens.ndim == 2 else table[0]

    @torch.no_grad()
    def observe(self, targets: np.ndarray) -> None:
        self._reader.observe(self._ids(targets))

    def _ids(self, ids: np.ndarray) -> Tensor:
        return torch.from_numpy(np.atleast_2d(ids)).to(self._device)


def _copy(predictor: Predictor) -> Predictor:
    """Return a copy of a predictor. Raises UserError for one that holds what Python cannot copy, such as a lock or a file."""
    try:
        return copy.deepcopy(predictor)
    except Exception as error:
        problem = f"a predictor is copied for each reading, and this one cannot be ({type(error).__name__}: {error})"
        raise UserError(f"{problem}; give its class, or a function that makes it") from error


def factory_of(predictor: Any, batch_size: int) -> Callable[[], Any]:
    """Return a function that makes fresh predictors: of a factory itself; of a predictor, which is not called, copies.

    Raises UserError for an object that is neither.
    """
    if isinstance(predictor, Reader):
        return lambda: ReaderPredictor(predictor, batch_size)
    if isinstance(predictor, Predictor) and not isinstance(predictor, type):
        return lambda: _copy(predictor)
    if not callable(predictor):
        raise UserError(
            f"{described(predictor)} is not a predictor; give an object with predict and observe, or its class"
        )
    return predictor
