"""Models that no run folder holds, as runs: one of Backstory in memory, with its vocabulary."""

import copy
import hashlib
import json
from dataclasses import dataclass, is_dataclass, replace
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
from torch import nn

from backstory.config import TextConfig
from backstory.config.recipes import merged
from backstory.data import Dataset, Vocabulary, prepare
from backstory.models import LanguageModel
from backstory.runs.run import Run, weights_hash
from backstory.storage.disk_cache import folder as cache_folder
from backstory.storage.documents import json_digest
from backstory.utils.errors import UserError

M = TypeVar("M", bound=nn.Module)


@dataclass(frozen=True)
class ModelElsewhere(Run):
    """A model that no run folder holds; `folder`, in the cache, holds what is prepared for its readers."""

    model: Any
    """A `LanguageModel`."""
    config: Any
    """None: there is no recipe."""
    called: str
    """Its name in results."""
    own_settings: dict[str, Any]
    """The model's, as results record them."""

    @property
    def name(self) -> str:
        return self.called

    @property
    def argument(self) -> str:
        """Its name, because no command takes it, and its folder in the cache means nothing to a person."""
        return self.called

    @property
    def in_memory(self) -> bool:
        return True

    @property
    def results(self) -> None:
        return None

    def settings(self) -> dict[str, Any]:
        return {"seed": None, "model": self.own_settings}

    def architecture(self) -> str:
        """Return the SHA-256 (hex) of the model's settings and modules, on which scores depend as well."""
        return json_digest([self.own_settings, architecture_hash(self.model)])

    def with_settings(self, changes: dict[str, Any]) -> "ModelElsewhere":
        return replace(self, own_settings=merged(self.own_settings, {"parts": changes}))

    def dataset(self, corpus: str | None, data_dir: Path | None, field: str | None = None) -> Dataset:
        """Prepare a corpus, by its name or path, in the model's vocabulary. Raises UserError."""
        if corpus is None:
            raise UserError(
                f"{self.name} has no corpus of its own; name one with --corpus NAME, or give a text file: "
                "`backstory evaluate MODEL FILE`, and examine and explain with --text FILE"
            )
        return self._prepared(TextConfig(corpus=corpus, field=field or TextConfig().field), data_dir)

    def _prepared(self, text: TextConfig, data_dir: Path | None) -> Dataset:
        return prepare(text, data_dir, vocabulary=self.vocabulary)

    def other_dataset(self, corpus: str | None, data_dir: Path | None, field: str | None = None) -> Dataset:
        return self.dataset(corpus, data_dir, field)

    def training_text(self) -> tuple[np.ndarray, int, int]:
        """Raise UserError: the text that the model was trained on is not there."""
        raise UserError(
            f"{self.name} has no training text to count n-grams in; use the reader ppm, which counts what it reads"
        )


def architecture_hash(model: nn.Module) -> str:
    """Return the SHA-256 (hex) of a model apart from its weights: its modules, with their plain attributes and settings.

    Models of equal weights may have other heads or windows of attention, for instance.
    """
    digest, plain = hashlib.sha256(), (bool, int, float, str, tuple, type(None))
    for name, module in model.named_modules():
        known = {k: v for k, v in vars(module).items() if isinstance(v, plain) or is_dataclass(v)}
        settings = [f"{key}={value!r}" for key, value in sorted(known.items()) if key != "training"]
        digest.update("\n".join([name, type(module).__qualname__, *settings, ""]).encode())
    return digest.hexdigest()


def unknown_corpus(vocabulary: Vocabulary, content: str | None = None) -> dict[str, Any]:
    """Return what is known of the text of such a model: the hash of its vocabulary, or of other content that fixes it."""
    content = json.dumps(vocabulary.to_json()) if content is None else content
    fingerprint = hashlib.sha256(content.encode()).hexdigest()
    return {"name": "", "fingerprint": fingerprint, "types": len(vocabulary), "provenance": "unknown"}


def unwrapped(model: Any) -> Any:
    """Return the module inside `torch.compile` or a wrapper for several devices, which computes the same; others as is.

    Raises UserError for a model on the meta device, whose weights have no values.
    """
    while isinstance(model, nn.Module):
        # By its name, as the import of the compiler takes seconds.
        inner = model._modules.get("_orig_mod")
        if isinstance(model, nn.DataParallel | nn.parallel.DistributedDataParallel):
            inner = model.module
        if inner is None:
            break
        model = inner
    if isinstance(model, nn.Module) and any(parameter.is_meta for parameter in model.parameters()):
        raise UserError(
            "the model is on the meta device, where weights have no values; load them first, onto the CPU or a GPU"
        )
    return model


def copy_around_weights(model: M) -> M:
    """Return a copy of a model that shares its parameters and buffers, and nothing else."""
    return copy.deepcopy(model, {id(tensor): tensor for tensor in (*model.parameters(), *model.buffers())})


def model_in_memory(model: LanguageModel, vocabulary: Vocabulary, name: str | None = None) -> ModelElsewhere:
    """Return a model of Backstory and its vocabulary as a run, on the device that it is on.

    The weights are shared, everything else is a copy in evaluation mode: the model stays in the mode that it is in. `name` is
    what results call it, by default that of its class. Raises UserError for a vocabulary of another size.
    """
    if model.vocabulary_size != len(vocabulary):
        raise UserError(
            f"the model knows {model.vocabulary_size:,} types and the vocabulary has {len(vocabulary):,}; "
            "give the vocabulary that it was trained with"
        )
    own, corpus = copy_around_weights(model).eval(), unknown_corpus(vocabulary)
    digest, called = weights_hash(own), name or type(model).__name__
    folder = cache_folder() / "in-memory" / digest[:16]
    run = ModelElsewhere(folder, own, vocabulary, None, corpus, {}, called, {"class": type(model).__name__})
    vars(run)["weights_hash"] = digest  # a cached property: computed once
    return run
