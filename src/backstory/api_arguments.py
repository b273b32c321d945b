"""Turn the arguments of the functions of `import backstory as bs` into runs, texts, corpora and options."""

import io
import os
import re
from collections.abc import Mapping
from dataclasses import fields
from pathlib import Path
from typing import Any, BinaryIO, TypeGuard

import numpy as np
from torch import Tensor, nn

from backstory.api_errors import in_python
from backstory.config.examination_options import ExamineOptions
from backstory.config.explanation_options import CompareOptions, ExplainOptions
from backstory.config.options import EvalOptions, LoadOptions
from backstory.config.referee_options import RefereeOptions
from backstory.config.schema import SPLITS
from backstory.context import EXPERIMENTS
from backstory.data import Dataset, Vocabulary
from backstory.evaluation.refereed_text import RefereedText
from backstory.models import LanguageModel
from backstory.models.devices import unaffected
from backstory.readers import READERS
from backstory.runs.model_in_memory import model_in_memory, unwrapped
from backstory.runs.run import Run
from backstory.utils.arguments import described
from backstory.utils.errors import UserError, shown
from backstory.utils.small_file import user_path

_OPTIONS = (EvalOptions, ExamineOptions, ExplainOptions, CompareOptions, RefereeOptions)
_SWITCHES = {field.name for options in _OPTIONS for field in fields(options) if field.default is False}
takes_options = in_python(_SWITCHES | {"allow_equal_splits"}, {"set": "overrides", "text.field": "field"}, unaffected)
"""Decorator of the functions that take the flags of their verb as arguments."""


def open_model(
    model: Path | str | Run | nn.Module,
    tokenizer: Any = None,
    name: str | None = None,
    options: Mapping[str, Any] | None = None,
) -> Path | str | Run:
    """Return a model in memory as a run, and a name as it is.

    Raises UserError, also for `options` of loading with a model in memory, and a tokenizer or name with one that is not, and
    TypeError for other modules.
    """
    model = unwrapped(model)
    if isinstance(model, Run | nn.Module) and (idle := LoadOptions.among(options or {})):
        raise UserError(f"{idle[0]} is for a model that is loaded by its name; leave it out to read one in memory")
    if isinstance(model, LanguageModel):
        if not isinstance(tokenizer, Vocabulary):
            raise UserError(
                "a model in memory has no vocabulary; give tokenizer=vocabulary, or token ids to `bs.audit` and "
                "`bs.examine`"
            )
        return model_in_memory(model, tokenizer, name)
    if isinstance(model, nn.Module):
        from backstory.interop.in_memory import open_in_memory

        return open_in_memory(model, tokenizer, name)
    if tokenizer is not None:
        raise UserError("tokenizer is for a model in memory; remove it, as a run has its own")
    if name is not None:
        raise UserError("name is for a model in memory; remove it, as a run is called by its folder")
    return model


_FILE_NAME = re.compile(r"\.[A-Za-z]\w{0,5}$")


def is_alone(model: object, tokenizer: object) -> TypeGuard[LanguageModel]:
    """Return True for a model of Backstory in memory without its vocabulary, which reads token ids alone."""
    return isinstance(model, LanguageModel) and tokenizer is None


def array_of(text: Any) -> Any:
    """Return token ids that are a tensor, on any device, as an array; another text as it is."""
    if not isinstance(text, Tensor):
        return text
    ids = text.detach().cpu()
    return (ids.double() if ids.is_floating_point() else ids).numpy()


def on_token_ids(model: Any, text: object, tokenizer: object) -> Any:
    """Return a model of transformers that is to read token ids or a prepared corpus as one of ours; another object as it is.

    Raises UserError for a tokenizer beside them, and TypeError for other modules.
    """
    if not isinstance(model, nn.Module) or not isinstance(text, np.ndarray | Dataset):
        return model
    if tokenizer is not None:
        raise UserError("token ids and a prepared corpus need no tokenizer; leave it out, or give the text itself")
    if isinstance(model, LanguageModel):
        return model
    from backstory.interop.in_memory import shared_model

    return shared_model(model)


def own_text(text: str | Path | BinaryIO | None) -> Path | BinaryIO | None:
    """Return a user's own text as a path, or as a file open for bytes.

    A string is the text itself if it has white space and names no file. Raises UserError for a single word and for one line
    that ends like the name of a file, if no such file is there, and for the name of a split, a reader or an experiment.
    """
    if not isinstance(text, str):
        return text
    if not text:
        raise UserError("the text is empty; give a file or a text")
    if os.path.exists(text):
        return Path(text)
    is_word = not re.search(r"\s", text)
    if is_word:
        refuse_name(text)
        if os.path.exists(os.path.expanduser(text)):
            return user_path(text)
    if is_word or ("\n" not in text and _FILE_NAME.search(text)):
        raise UserError(f"there is no file {shown(text)}; if it is the text itself, end it with a line break")
    try:
        return _Text(text.encode())
    except UnicodeEncodeError as error:
        raise UserError(
            f"the text holds a lone surrogate (character {error.start:,}); correct it or remove it"
        ) from None


def check_one_text(corpus: object, text: object) -> None:
    if corpus is not None and text is not None:
        raise UserError("corpus and text exclude each other; give one of them")


def refuse_name(text: object) -> None:
    """Raise UserError for the name of a split, a reader or an experiment in the place of a text."""
    kinds = {"split": SPLITS, "reader": READERS, "experiment": EXPERIMENTS}
    if not isinstance(text, str) or os.path.exists(text):
        return
    if option := next((kind for kind, names in kinds.items() if text in names), None):
        raise UserError(f"there is no file {shown(text)}; give the {option} by its name: {option}={text!r}")


class _Text(io.BytesIO):
    """A text as a file open for bytes; results call it by its name."""

    name = "text"


def plain_options(options: Mapping[str, Any]) -> dict[str, Any]:
    """Return options with the path of a corpus as text."""
    return {
        name: str(value) if name == "corpus" and isinstance(value, Path) else value for name, value in options.items()
    }


def path_or_none(corpus: object) -> Path | None:
    """Return a corpus that is named. Raises UserError for another object."""
    if corpus is None or isinstance(corpus, str | Path):
        return None if corpus is None else Path(corpus)
    raise UserError("a run is examined on its own corpus, or on a text file; give the path of one, or None")


def examine_options(experiment: str, options: Mapping[str, Any]) -> ExamineOptions:
    return ExamineOptions.of(experiment=experiment, **plain_options(options))


def refereed_text(text: Any, vocabulary: Vocabulary | None, types: int | None, start: int) -> RefereedText:
    """Return what a predictor is scored on. Raises UserError."""
    if isinstance(text, np.ndarray):
        if text.ndim != 1 or not len(text) or not np.issubdtype(text.dtype, np.integer) or text.min() < 0:
            raise UserError(f"token ids must be whole numbers (N,) from 0 on, not {described(text)}; give at least one")
        return RefereedText("token ids", text, start, types)
    source = own_text(text)
    if source is None:
        raise UserError("there is no text to score; give a file, a text or token ids")
    if isinstance(source, Path):
        return RefereedText.of_path(source, vocabulary)
    return RefereedText.of_file(source, str(getattr(source, "name", "text")), vocabulary)
