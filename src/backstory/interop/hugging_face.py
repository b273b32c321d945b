"""Hugging Face causal language models as runs: `hf:PATH_OR_NAME` wherever a run is named.

The model's own code runs, as transformers has it; code that comes with the weights never does, and no pickle is opened.
"""

import hashlib
import os
import re
import socket
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import torch

from backstory.config import TextConfig
from backstory.config.options import LoadOptions
from backstory.data import Dataset, Vocabulary, prepare
from backstory.data.tokenizers.pieces import from_file, is_panic
from backstory.interop.exporting import VOCABULARY
from backstory.interop.fitting_pieces import FittingPieces, check_pieces, pieces_of, vocabulary_of
from backstory.interop.folders import (
    ADAPTER,
    CONFIG,
    INDEX,
    WEIGHTS,
    WeightSizes,
    look,
    need,
    weight_files,
    weights_digest,
)
from backstory.interop.hf_model import HuggingFaceModel
from backstory.interop.model_checks import check_unused, wrap
from backstory.models import ComposedModel, LanguageModel, choose_device
from backstory.runs.model_in_memory import ModelElsewhere, unknown_corpus
from backstory.storage.disk_cache import folder as cache_folder
from backstory.storage.documents import json_digest, parse
from backstory.storage.run_files import check_source_exists
from backstory.utils.errors import UserError, first_line, install_hint
from backstory.utils.small_file import read_small, user_path

PREFIX = "hf:"
LOADING = threading.Lock()
"""Held while transformers builds a model: it sets defaults of the whole process meanwhile, and so do we (`bounding`)."""


@dataclass(frozen=True)
class HuggingFaceRun(ModelElsewhere):
    """A Hugging Face model as a run: a `HuggingFaceModel`, or a `ComposedModel` if it was exported from Backstory.

    It is called `hf:` and the name of the folder, or the name on the hub.
    """

    exported: bool = False
    """True if it was exported from Backstory with its vocabulary, which then encodes texts."""
    revision: dict[str, str] = field(default_factory=dict)
    """The revision that was named, if any, and its commit: as results record it."""
    source: str = f"{PREFIX}FOLDER"
    """`hf:` and the path or the name that it was loaded by; a model in memory has to be saved first."""

    @property
    def argument(self) -> str:
        return self.source

    @property
    def in_memory(self) -> bool:
        return False  # messages name `hf:FOLDER` for a model that has yet to be saved

    def settings(self) -> dict[str, Any]:
        """Return the model's own settings, and how it is read."""
        model: HuggingFaceModel | ComposedModel = self.model
        way = model.way if isinstance(model, HuggingFaceModel) else "ours"
        read: dict[str, Any] = {"way": way, "maximum_length": model.capabilities.maximum_length}
        if isinstance(model, HuggingFaceModel) and model.stride is not None:
            read["stride"] = model.stride
        if (dtype := next(model.parameters()).dtype) != torch.float32:
            read["dtype"] = str(dtype).removeprefix("torch.")
        return {"seed": None, "huggingface": self.name, **self.revision, "read": read, "model": self.own_settings}

    def architecture(self) -> str:
        # The settings say all of the modules; a folder may be renamed, and transformers brought up to date.
        model = {
            key: value
            for key, value in self.own_settings.items()
            if key not in ("_name_or_path", "transformers_version")
        }
        return json_digest([self.settings()["read"], model])

    def _prepared(self, text: TextConfig, data_dir: Path | None) -> Dataset:
        if self.exported:
            return super()._prepared(text, data_dir)
        prepared = prepare(text, data_dir, tokenizer=self.vocabulary.tokenizer)
        vocabulary = replace(self.vocabulary, counts=prepared.vocabulary.counts)
        return replace(prepared, vocabulary=vocabulary)


def load(name: str, options: LoadOptions | None = None) -> HuggingFaceRun:
    """Load the model and the tokenizer of `hf:PATH_OR_NAME`, by default with the weights as they were saved.

    A path is a folder that `save_pretrained` made; another name is fetched from the hub, unless it was before. Raises
    UserError, also for a model that is not causal, or has no safetensors or no tokenizer.
    """
    options = options or LoadOptions(device="cpu")
    source = name.removeprefix(PREFIX)
    check_source_exists(source)
    path = user_path(source)
    local = path.is_dir()
    if local and options.revision is not None:
        raise UserError(f"--revision is for a name on the hub, and {source} is a folder; remove it")
    with quiet():
        causal, tokenizer = _local(path, name, options) if local else _named(source, name, options)
        shown = PREFIX + (path.resolve().name if local else source)
        if options.device_map is None:
            causal.to(choose_device(options.device))
        model = ours(causal, shown)
        exported = _exported(causal, str(path) if local else source, options.revision)
        vocabulary = exported or vocabulary_of(pieces_of(tokenizer, shown), tokenizer, causal.config)
    if options.window is not None or options.stride is not None:
        _set_window(model, shown, options)
    check_pieces(vocabulary, model, shown)
    origin = str(path.resolve()) if local else "@".join(filter(None, [source, options.revision]))
    key = hashlib.sha256(origin.encode()).hexdigest()[:16]
    filed = re.sub(r"[^\w.-]+", "-", shown.removeprefix(PREFIX))
    folder = cache_folder() / "huggingface" / f"{filed}-{key}"
    corpus = corpus_of_pieces(vocabulary)
    settings = causal.config.to_diff_dict()
    revision = {}
    if options.revision is not None:
        commit = _fetched(source, local_files_only=True, revision=options.revision).name
        revision = {"revision": options.revision, "commit": commit}
    return HuggingFaceRun(
        folder, model, vocabulary, None, corpus, {}, shown, settings, exported is not None, revision, name
    )


def files_digest(name: str) -> str | None:
    """Return a digest (hex) of the weights of `hf:PATH_OR_NAME`; None if they are not on this machine."""
    source = name.removeprefix(PREFIX)
    folder = user_path(source)
    try:
        if not folder.is_dir():
            check_source_exists(source)
            with quiet():
                folder = _fetched(source, local_files_only=True)
        return weights_digest(folder)
    except (OSError, UserError):
        return None


def corpus_of_pieces(vocabulary: Vocabulary) -> dict[str, Any]:
    """Return what is known of the text that a model was trained on: its pieces."""
    pieces = vocabulary.tokenizer
    return unknown_corpus(vocabulary, pieces.json if isinstance(pieces, FittingPieces) else None)


def ours(causal: Any, name: str) -> LanguageModel:
    """Return the model as a `LanguageModel`; an exported run holds one already."""
    from backstory.interop.modeling import BackstoryConfig, composed

    return composed(causal) if causal.config.model_type == BackstoryConfig.model_type else wrap(causal, name)


def _set_window(model: LanguageModel, name: str, options: LoadOptions) -> None:
    """Let a window of other lengths slide over long texts. Raises UserError if none slides, or if it would not fit."""
    if not isinstance(model, HuggingFaceModel) or model.capabilities.recurrent:
        flag = "--stride" if options.window is None else "--window"
        raise UserError(f"{name} reads a text of any length from a state of fixed size; remove {flag}")
    longest, window = model.capabilities.maximum_length, options.window
    if longest is None and window is None:
        raise UserError(f"the settings of {name} do not limit the length of a text; give --window with --stride")
    if window is not None and longest is not None and window > longest:
        raise UserError(f"{name} reads at most {longest:,} tokens at once; use --window {longest} or less")
    length: int = window or longest or 0
    if options.stride is not None and options.stride > length:
        raise UserError(f"--stride {options.stride} would skip tokens of a window of {length:,}; use {length} or less")
    model.set_window(length, options.stride)


def _local(folder: Path, name: str, options: LoadOptions) -> tuple[Any, Any]:
    if not (folder / CONFIG).is_file() and not (folder / ADAPTER).is_file():  # what is refused as an adapter below
        raise UserError(
            f"{folder} holds no Hugging Face model (no config.json); give a folder that save_pretrained made"
        )
    if not any(folder.glob("*.safetensors")):
        pickled = any(folder.glob("*.bin"))
        why = (
            "weights as a pickle (.bin), which could run any code; save them again with save_pretrained, as safetensors"
            if pickled
            else "no weights (*.safetensors); give a folder that save_pretrained made"
        )
        raise UserError(f"{folder} holds {why}")
    return _loaded(str(folder), name, options, look(folder), local_files_only=True)


def _named(source: str, name: str, options: LoadOptions) -> tuple[Any, Any]:
    """Load a model of the hub: from files that were fetched before, else fetch them."""
    import huggingface_hub

    revision = options.revision
    here: dict[str, Any] = {"local_files_only": True, "revision": revision}
    try:
        huggingface_hub.hf_hub_download(source, "config.json", **here)
        return _loaded(source, name, options, look(_fetched(source, **here)), **here)
    except (OSError, ValueError, _Missing):
        pass
    if huggingface_hub.constants.HF_HUB_OFFLINE or not _reachable(huggingface_hub.constants.ENDPOINT):
        raise UserError(
            f"{name} is not on this machine, and the hub cannot be reached to fetch it; give a folder, {PREFIX}PATH"
        )
    try:
        held = look(_fetched(source, revision=revision))
    except OSError as error:
        raise UserError(
            f"{name} cannot be fetched ({first_line(error)}); give another, or a folder, {PREFIX}PATH"
        ) from None
    return _loaded(source, name, options, held, revision=revision)


def _fetched(source: str, **where: Any) -> Path:
    """Return the folder in the hub's cache with the settings and weights of a model, fetched unless `local_files_only`.

    Raises OSError if there are none.
    """
    from transformers.utils import cached_file

    how: dict[str, Any] = {**where, "_raise_exceptions_for_missing_entries": False}
    path = cached_file(source, CONFIG, **how)
    if path is None:
        raise FileNotFoundError(f"there is no {CONFIG}")
    folder = Path(path).parent
    cached_file(source, ADAPTER, **how)
    listed = cached_file(source, INDEX, **how)
    for file in weight_files(folder, listed=True) if listed else [WEIGHTS]:
        cached_file(source, file, **how)
    return folder


def check_one_device(device_map: Mapping[str, Any], name: str) -> None:
    """Raise UserError if parts of a model are on several devices, or on the disk: a score is computed on one device."""
    devices = sorted({f"cuda:{device}" if isinstance(device, int) else str(device) for device in device_map.values()})
    if len(devices) > 1 or "disk" in devices:
        raise UserError(
            f"{name} does not fit on one device, and was spread over {' and '.join(devices)}; use --dtype=bfloat16 or a "
            "smaller model, or leave --device-map out and give --device=cpu"
        )


class _Missing(Exception):
    """Raised for files that are not on this machine."""


def _loaded(source: str, name: str, options: LoadOptions, held: WeightSizes, **where: Any) -> tuple[Any, Any]:
    """Return the model and its tokenizer; `where`: `local_files_only` and `revision` of a name on the hub.

    Raises UserError, and `_Missing` if files of the hub are not on this machine and are not to be fetched.
    """
    from transformers import AutoModelForCausalLM, AutoTokenizer
    from transformers.utils import cached_file

    if options.device_map is not None:
        need("accelerate", "hf", "--device-map")
    how, here = {"trust_remote_code": False, **where}, where.get("local_files_only", False)
    try:
        # `auto` of transformers would spread over all GPUs even a model that fits on the first.
        device_map = None if options.device_map is None else "sequential"
        weights: dict[str, Any] = {"dtype": options.dtype, "device_map": device_map, "use_safetensors": True}
        loading: Any = AutoModelForCausalLM.from_pretrained
        with LOADING, held.bounding():
            causal, report = loading(source, **weights, output_loading_info=True, **how)
    except Exception as error:  # of many kinds, those of safetensors among them
        if here and isinstance(error, OSError) and not Path(source).is_dir():
            raise _Missing from None
        raise UserError(_unusable(name, error)) from None
    if options.device_map is not None:
        check_one_device(getattr(causal, "hf_device_map", {}), name)  # which it lacks where no part was placed
    lost = sorted(report["missing_keys"]) or sorted(str(key) for key in report["mismatched_keys"])
    if lost:
        raise UserError(f"{name} has no weights for {lost[0]}; give a complete model")
    check_unused(causal, report["unexpected_keys"], name)
    path = cached_file(source, "tokenizer.json", **where, _raise_exceptions_for_missing_entries=False)
    if path is not None:
        from_file(Path(path))  # tried before transformers loads it
    try:
        tokenizer = AutoTokenizer.from_pretrained(source, **how)
    except BaseException as error:
        if not isinstance(error, Exception) and not is_panic(error):
            raise
        if here and isinstance(error, OSError) and not Path(source).is_dir():
            raise _Missing from None
        raise UserError(
            f"{name} has no tokenizer that can be loaded ({first_line(error)}); save one beside it"
        ) from None
    return causal, tokenizer


def _unusable(name: str, error: Exception) -> str:
    text = str(error)
    if "Unrecognized configuration class" in text:
        return f"{name} is not a causal language model; choose one that AutoModelForCausalLM can load"
    if "custom code" in text or "trust_remote_code" in text:
        return (
            f"{name} needs code that comes with its weights, which is never run; choose a model that transformers knows"
        )
    if "ignore_mismatched_sizes" in text:  # transformers logs which, and its log is silenced
        return f"{name} has weights of other sizes than its settings say; save the model again with save_pretrained"
    return f"{name} cannot be loaded ({first_line(error)}); give a model that AutoModelForCausalLM can load from safetensors"


def _reachable(endpoint: str) -> bool:
    parts = urlsplit(endpoint)
    try:
        socket.create_connection((parts.hostname or "", parts.port or 443), timeout=5).close()
    except OSError:
        # Behind a proxy the hub is reached without being seen from here.
        return bool(os.environ.get("HTTPS_PROXY") or os.environ.get("https_proxy"))
    return True


def _exported(causal: Any, source: str, revision: str | None) -> Vocabulary | None:
    """Return the vocabulary of an exported model; None for another model, and for exports of older versions."""
    from transformers.utils import cached_file

    from backstory.interop.modeling import BackstoryForCausalLM

    if not isinstance(causal, BackstoryForCausalLM):
        return None
    try:
        path = cached_file(source, VOCABULARY, revision=revision)
    except OSError:
        return None
    if path is None:
        return None
    try:
        return Vocabulary.from_json(parse(read_small(Path(path))))
    except (UserError, OSError, ValueError, AttributeError):
        raise UserError(f"{VOCABULARY} of {source} is damaged; export the run again") from None


@contextmanager
def quiet() -> Iterator[None]:
    """Silence the messages of transformers. Raises UserError if it is missing."""
    try:
        from transformers.utils import logging
    except ImportError:
        raise UserError(f"{PREFIX} needs the package transformers; {install_hint('hf')}") from None
    level, bars = logging.get_verbosity(), logging.is_progress_bar_enabled()
    logging.set_verbosity(logging.CRITICAL)
    logging.disable_progress_bar()
    try:
        yield
    finally:
        logging.set_verbosity(level)
        if bars:
            logging.enable_progress_bar()
