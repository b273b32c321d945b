"""The kinds of reader by name, and readers stacked on each other from words such as `dynamic+cache:theta=0.5`."""

import json
import re
import warnings
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, get_type_hints

from backstory.config import from_dict, to_dict
from backstory.config.ignored_settings import OFF
from backstory.config.options import LoadOptions
from backstory.config.readers import EnsembleSettings, completed
from backstory.config.renamed import refuse_old_reader
from backstory.config.strict import parsed
from backstory.models import Precision
from backstory.readers import counting, dynamic, learned, mixture, neural_cache, shuffled_buffer, tempered
from backstory.readers.base import Reader, StaticReader
from backstory.readers.ensemble import Members, ensemble_kind
from backstory.readers.gradient_statistics import NoStatistics
from backstory.readers.kind import BuildContext, Loaded, ReaderKind, saved_in
from backstory.runs.run import Run, open_run
from backstory.storage.atomic import sha256, sweep_abandoned, write_atomically
from backstory.storage.documents import has_fields, parse
from backstory.storage.manifest import MANIFEST
from backstory.utils.arguments import checked
from backstory.utils.errors import UserError, check_name, shown
from backstory.utils.small_file import read_small

STATIC = ReaderKind(
    "static",
    "the model as trained; nothing but its state changes while it reads",
    lambda context, settings: StaticReader(context.run.model, context.precision),
)
KINDS = (
    STATIC,
    shuffled_buffer.KIND,
    dynamic.KIND,
    learned.KIND,
    neural_cache.KIND,
    counting.NGRAM,
    counting.PPM,
    ensemble_kind(lambda context, settings: open_members(context, settings)),
    mixture.KIND,
    tempered.KIND,
)
READERS = {kind.name: kind for kind in KINDS}


@dataclass(frozen=True)
class Layer:
    """One reader of a stack, as it was typed."""

    name: str
    typed: str = ""
    """Settings as they were typed: `theta=0.5,window=2000`."""

    def __str__(self) -> str:
        return f"{self.name}:{self.typed}" if self.typed else self.name


Stack = tuple[Layer, ...]
"""The innermost first."""


@checked()
def parse_stack(names: str | Sequence[str]) -> Stack:
    """Parse the names of readers, several joined by `+` or in a list, each with settings after a colon if need be.

    The one that reads with the model goes first, whatever the order; without one it is `static`. Raises UserError.
    """
    texts, layers = [names] if isinstance(names, str) else names, []
    for word in (word.strip() for text in texts for word in re.split(r"\+\s*(?=[a-z])", text)):
        _check_named(word, texts)
        name, settings = (_BLANKS.sub(r"\1", part.strip()) for part in word.partition(":")[::2])
        refuse_old_reader(name)
        if name.partition("=")[0] in READERS and "=" in name:
            raise UserError(f"reader {name}: settings follow a colon, as in cache:theta=0.5,window=2000")
        check_name(name, READERS, "reader", "backstory ls readers", from_plugins=True)
        if any(layer.name == name for layer in layers):
            raise UserError(f"the reader {name} is named twice; name it once")
        layers.append(Layer(name, settings))
        typed_settings(layers[-1])
    bases = [layer for layer in layers if not READERS[layer.name].wraps and layer.name != "static"]
    if len(bases) > 1:
        raise UserError(f"the readers {bases[0].name} and {bases[1].name} both read with the model; choose one of them")
    base = bases[0] if bases else Layer("static")
    return (base, *(layer for layer in layers if READERS[layer.name].wraps))


_BLANKS = re.compile(r"\s*([,=])\s*")
"""Blanks around a setting and its value."""


def _check_named(word: str, texts: Sequence[str]) -> None:
    """Raise UserError for a word of a stack that is empty, as of `cache++ngram`."""
    if not "".join(texts).strip():
        raise UserError("the name of the reader is empty; give one that `backstory ls readers` shows, or leave it out")
    if not word or word.endswith("+"):
        raise UserError(f"reader {shown('+'.join(texts))}: a name is missing beside a '+'; write one between two names")


def names_readers(text: str) -> bool:
    """Return True if a text begins with the name of a reader, so that it is meant for `parse_stack`."""
    return re.split(r"[:+]", text)[0] in READERS


def stack_name(stack: Stack) -> str:
    """Return the name of a stack, which `parse_stack` understands: `static`, `cache`, `dynamic:rate=0.001+cache`."""
    layers = stack[1:] if len(stack) > 1 and stack[0].name == "static" else stack
    return "+".join(map(str, layers))


def control_in(names: str) -> str | None:
    """Return the name of a control in a stack of readers; None for readers whose figures are scores."""
    return next((layer.name for layer in parse_stack(names) if READERS[layer.name].control), None)


def settings_name(stack: Stack) -> str:
    """Return the name under which the settings of a stack are saved: only settings of a kind's `identity` are in it."""
    return stack_name(tuple(Layer(_identity_name(layer)) for layer in stack))


def _identity_name(layer: Layer) -> str:
    """Return a reader's name with the settings that make it another reader."""
    kind, typed = READERS[layer.name], typed_settings(layer)
    defaults = vars(kind.settings())
    values = {key: typed[key] for key in kind.identity if key in typed and typed[key] != defaults.get(key)}
    words = [kind.written.get(key, str)(value) for key, value in values.items()]
    return "-".join([layer.name, *(word.replace(":", "-") for word in words)])


def typed_settings(layer: Layer) -> dict[str, Any]:
    """Return the settings that were typed, checked. Raises UserError."""
    settings: dict[str, Any] = {}
    hints = get_type_hints(READERS[layer.name].settings)
    for item in filter(None, layer.typed.split(",")):
        key, equals, value = item.partition("=")
        if not equals or not key or not value:
            hint = "; a semicolon separates several runs" if "runs" in settings else ""
            raise UserError(
                f"reader {layer.name}: '{item}' must be written setting=value, as in {layer.name}:a=1,b=2{hint}"
            )
        if key in settings:
            raise UserError(f"reader {layer.name}: the setting {key} is given twice; give it once")
        settings[key] = typed(value, key)
        if hints.get(key) is str and not isinstance(settings[key], str):  # a run called 7, or null
            settings[key] = value
    from_dict(READERS[layer.name].settings, settings, f"reader {layer.name}")
    return settings


def typed(text: str, name: str) -> Any:
    """Parse the value of a setting. Raises UserError."""
    return parsed(text, lambda where: f"{shown(text)} is not a value for {name}")


@dataclass(frozen=True)
class ConfiguredLayer:
    """A reader of a stack with all of its settings, and their origin."""

    name: str
    settings: Any
    origin: str
    """`default` or `tuned on ...`; `given` if all were typed, and `rate given, others default` if some were; says if the tuned
    ones are for the model as trained."""
    file: str | None = None
    """The file in the run's folder of readers that tuned settings come from."""

    def as_dict(self) -> dict[str, Any]:
        """Return it as results record it."""
        return {"name": self.name, "settings": to_dict(self.settings), "origin": self.origin}


def configure(stack: Stack, run: Run, renewed: Collection[str] = ()) -> tuple[ConfiguredLayer, ...]:
    """Return the settings of every layer: as typed, else as tuned for this run (`save_settings`), else the defaults.

    Settings that were tuned around the readers inside a layer come before those tuned around the static reader. Tuned
    settings are used only with the model as it was trained. Raises UserError, also for settings that were tuned on other
    weights, unless they are of a reader whose settings are to be `renewed`.
    """
    layers = []
    for depth, layer in enumerate(stack, 1):
        kind, typed = READERS[layer.name], typed_settings(layer)
        names = [settings_name(stack[:depth]), *([settings_name((Layer("static"), layer))] if kind.wraps else [])]
        saved, file, origin = {}, None, "default"
        for name in names:
            if document := _saved_settings(run, name, layer.name in renewed):
                if run.as_trained:
                    saved, origin = completed(kind.settings, document["settings"]), f"tuned on {document['tuned_on']}"
                    file = settings_file(name)
                else:
                    origin = "default: the tuned settings are for the model as trained"
                break
        settings = from_dict(kind.settings, saved | typed, f"reader {layer.name}")
        _warn_ignored(layer.name, settings, typed)
        if typed:
            *first, last = typed
            names = f"{', '.join(first)} and {last}" if first else last
            origin = f"{names} given, others {origin}" if vars(settings).keys() - typed.keys() else "given"
        layers.append(ConfiguredLayer(layer.name, settings, origin, file))
    return tuple(layers)


def needs(stack: Stack) -> dict[str, str]:
    """Return what a stack takes from the run's folder of readers, by name, and the command of `backstory reader` that makes it.

    Tuned settings change nothing of it: a kind's `identity` is typed.
    """
    settings = {
        layer: from_dict(READERS[layer.name].settings, typed_settings(layer), f"reader {layer}") for layer in stack
    }
    return {name: made for layer in stack for name, made in READERS[layer.name].needs(settings[layer]).items()}


def _warn_ignored(name: str, settings: Any, typed: Collection[str]) -> None:
    for key, reason in READERS[name].ignored(settings).items():
        if key in typed and getattr(settings, key) not in OFF:
            warnings.warn(f"reader {name}: {key} has no effect {reason}", stacklevel=3)


def build(layers: Sequence[ConfiguredLayer], run: Run, precision: Precision, loaded: Loaded | None = None) -> Reader:
    """Build the readers, each around the one before; `loaded` holds the run's statistics and counts from one call to the next.

    Raises UserError where one does not fit the model.
    """
    reader, loaded = None, {} if loaded is None else loaded
    for layer in layers:
        reader = READERS[layer.name].build(BuildContext(run, precision, reader, loaded), layer.settings)
    assert reader is not None
    return reader


def open_reader(
    model: Path | str | Run,
    reader: str | Sequence[str] = "static",
    precision: str = "float32",
    options: LoadOptions | None = None,
    overrides: Mapping[str, str] | None = None,
) -> tuple[Run, Reader, tuple[ConfiguredLayer, ...]]:
    """Load a run and build a reader over it, or several that wrap each other (`parse_stack`). Raises UserError."""
    stack = parse_stack(reader)
    run = open_run(model, options or LoadOptions()).overridden(overrides or {})
    layers = configure(stack, run)
    return run, build(layers, run, run.precision(precision)), layers


def open_members(context: BuildContext, settings: EnsembleSettings) -> Members:
    """Open the other runs of an ensemble, each with its reader. Raises UserError, also for a run of another vocabulary."""
    names, (base, *others) = settings.names(), parse_stack(settings.reader)
    if not names:
        raise UserError("the reader ensemble needs another run; name it: ensemble:runs=RUN, or 'ensemble:runs=RUN;RUN'")
    if others or base.typed or READERS[base.name].control:
        raise UserError(
            f"the other runs of an ensemble read with static, dynamic or learned, not with {settings.reader}"
        )
    if repeated := next((name for name in names if names.count(name) > 1), None):
        raise UserError(f"the ensemble names {repeated} twice; name it once, and set weight=... for other shares")
    options, readers, hashes, layers = LoadOptions(device=str(context.run.device)), [], {}, {}
    for name in names:
        try:
            run, reader, configured = open_reader(name, settings.reader, context.precision.name, options)
        except NoStatistics as error:  # whose other rule cannot be typed for a member
            raise UserError(
                f"a run of the ensemble cannot be read: {error.problem}, or read it as it is, with reader=static"
            ) from None
        except UserError as error:
            raise UserError(f"a run of the ensemble cannot be read: {error}") from None
        if run.vocabulary.words != context.run.vocabulary.words:
            raise UserError(
                f"{name} has another vocabulary than {context.run.argument}; name runs of the same corpus and tokenizer"
            )
        readers.append(reader)
        hashes[name], layers[name] = run.weights_hash, [layer.as_dict() for layer in configured]
        hashes |= {f"{name}: {file}": digest for file, digest in prepared_files(run, configured, reader).items()}
    return Members(readers, hashes, layers)


def prepared_files(run: Run, layers: Sequence[ConfiguredLayer], reader: Reader) -> dict[str, str]:
    """Return the SHA-256 (hex) of everything that a reader takes from the run's folder of readers or from other runs, by name.

    These are tuned settings, statistics and meta-learners (of the last two it is the hash of the manifest), and the weights of
    other runs.
    """
    files = [layer.file for layer in layers if layer.file is not None]
    files += [f"{name}/{MANIFEST}" for inner in reader.stack() for name in inner.prepared()]
    own = {name.removesuffix(f"/{MANIFEST}"): sha256(saved_in(run) / name) for name in sorted(set(files))}
    return own | reader.other_models()


def settings_file(name: str) -> str:
    """Return the file, in a run's folder of readers, for the settings of the outermost reader of a stack of this name."""
    return f"{name}.json"


def save_settings(run: Run, stack: Stack, settings: Any, tuned_on: str, search: dict[str, Any]) -> Path:
    """Save the settings of the outermost reader of a stack beside the model, with the hash of its weights and the search."""
    path = saved_in(run) / settings_file(settings_name(stack))
    path.parent.mkdir(parents=True, exist_ok=True)
    document = {"weights": run.weights_hash, "tuned_on": tuned_on}
    document |= {"settings": to_dict(settings), "search": search}
    sweep_abandoned(path)
    write_atomically(path, json.dumps(document, indent=1, allow_nan=False) + "\n")
    return path


def _saved_settings(run: Run, name: str, renewed: bool) -> dict[str, Any] | None:
    path = saved_in(run) / settings_file(name)
    try:
        document = parse(read_small(path, inside=run.folder))
    except FileNotFoundError:
        return None
    except (OSError, ValueError) as error:
        cause = error.strerror if isinstance(error, OSError) else error
        raise UserError(f"{path} is damaged ({cause}); remove it, or tune again with `backstory reader tune`") from None
    types = {"weights": str, "tuned_on": str, "settings": dict[str, Any], "search": dict[str, Any]}
    if not has_fields(document, types):
        raise UserError(f"{path} is damaged; remove it, or tune again with `backstory reader tune`")
    if document["weights"] != run.weights_hash:
        if renewed:
            return None
        raise UserError(f"{path} was tuned for other weights than {run.argument} has now; remove it, or tune again")
    return document
