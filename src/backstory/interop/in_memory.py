"""Hugging Face causal language models that are in memory, as runs: read like a folder of theirs, and left as they are."""

import re
from typing import Any

from torch import nn

from backstory.interop.hugging_face import (
    HuggingFaceRun,
    check_pieces,
    corpus_of_pieces,
    ours,
    pieces_of,
    quiet,
    vocabulary_of,
)
from backstory.models import LanguageModel
from backstory.runs.model_in_memory import copy_around_weights, unwrapped
from backstory.runs.run import weights_hash
from backstory.storage.disk_cache import folder as cache_folder
from backstory.utils.arguments import described


def is_causal(model: Any) -> bool:
    """Return True for a model that has what transformers' causal language models have."""
    return isinstance(model, nn.Module) and hasattr(model, "get_output_embeddings") and hasattr(model, "config")


def _checked(causal: Any) -> Any:
    """Return the model inside wrappers. Raises TypeError unless it is a causal language model of transformers."""
    causal = unwrapped(causal)
    if not is_causal(causal):
        raise TypeError(
            f"model must be a causal language model of transformers, not {described(causal)}; make a LanguageModel of another "
            "model (docs/python.md), or give bs.examine an object with `score` (docs/context.md), or bs.referee one with "
            "`predict` and `observe` (docs/referee.md)"
        )
    return causal


def _called(causal: Any) -> str:
    """Return the name that a model was loaded by, or that of its class."""
    return str(getattr(causal.config, "_name_or_path", "") or type(causal).__name__)


def shared_model(causal: Any, name: str | None = None) -> LanguageModel:
    """Return a model of transformers as a `LanguageModel` that shares its weights; everything else is a copy.

    `name` is what messages call it. Raises UserError as loading from a folder does, and TypeError for another object.
    """
    causal = _checked(causal)
    with quiet():
        return ours(copy_around_weights(causal), name or _called(causal))


def open_in_memory(causal: Any, tokenizer: Any, name: str | None = None) -> HuggingFaceRun:
    """Return a model of transformers and its tokenizer as a run, with the precision and the device that it has.

    The weights are shared, everything else is a copy: the model stays usable, and in the mode that it is in. `name` is what
    results call it, by default the name that it was loaded by. Raises UserError as loading from a folder does.
    """
    causal = _checked(causal)
    if not hasattr(tokenizer, "get_vocab"):
        raise TypeError(
            f"tokenizer must be the model's tokenizer, as AutoTokenizer loads it, not {described(tokenizer)}"
        )
    shown, model = name or _called(causal), shared_model(causal, name)
    with quiet():
        vocabulary = vocabulary_of(pieces_of(tokenizer, shown), tokenizer, causal.config)
    check_pieces(vocabulary, model, shown)
    digest = weights_hash(model)
    filed = re.sub(r"[^\w.-]+", "-", shown)
    folder = cache_folder() / "huggingface" / f"{filed}-{digest[:16]}"
    corpus, settings = corpus_of_pieces(vocabulary), causal.config.to_diff_dict()
    run = HuggingFaceRun(folder, model, vocabulary, None, corpus, {}, shown, settings)
    vars(run)["weights_hash"] = digest  # a cached property: computed once
    return run
