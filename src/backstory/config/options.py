"""Options of loading and evaluations: one declaration for the command line, suites, Python and results."""

import hashlib
import re
from collections.abc import Mapping
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Annotated, Any, BinaryIO, Literal, Self, TypeVar, cast

import tyro
from tyro.conf import FlagCreatePairsOff, UseAppendAction

from backstory.config.strict import between, changes
from backstory.utils.arguments import Options, checked
from backstory.utils.errors import UserError, check_name
from backstory.utils.formats import count

T = TypeVar("T")
Precision = Literal["auto", "float32", "bfloat16"]
"""Precision of matrix products; `auto` is bfloat16 where the device multiplies it natively."""
SAVE_EVERY = 60.0
"""Seconds between checkpoints."""
WITH_FIELDS = ("split", "reader", "batch_size", "after", "addressing", "lengths", "overrides", "precision")
"""Options of a reading that results record in fields of their own; all others in one, `options`."""
SPELT_OUT = 8
"""Most lengths that the name of a result's folder lists one by one."""


def part_of(options: Any, kind: type[T]) -> T:
    """Return those of a command's options that belong to a dataclass that it inherits from."""
    return kind(**{field.name: getattr(options, field.name) for field in fields(cast(Any, kind))})


@dataclass(frozen=True, kw_only=True)
class LoadOptions(Options):
    """How a model is loaded, for every verb that reads with one. A field that is added here is a flag of all of them."""

    device: str = "auto"
    """auto, cpu or cuda."""
    revision: str | None = None
    """For a model of the hub: its branch, tag or commit (else main)."""
    dtype: Literal["auto", "bfloat16", "float16", "float32"] = "auto"
    """For hf:... only: the type of the weights; auto: as they were saved."""
    device_map: Literal["auto"] | None = None
    """For hf:... only: auto loads the weights straight onto the first GPU, if they fit on it (needs accelerate)."""
    window: int | None = between(None, 2)
    """For hf:... only: the largest number of tokens that the model reads at once (else what its settings allow)."""
    stride: int | None = between(None, 1)
    """For hf:... only: the number of tokens by which a full window moves on (else half of it)."""

    def load_options(self) -> "LoadOptions":
        """Return these options alone."""
        return part_of(self, LoadOptions)

    @classmethod
    def among(cls, options: Mapping[str, Any]) -> list[str]:
        """Return the names of the options of loading among others that differ from the default."""
        own = [
            (field.name, options[field.name], field.default) for field in fields(LoadOptions) if field.name in options
        ]
        # An array, which is none of them, has no single answer to `!=`.
        return [name for name, value, default in own if not isinstance(value, type(default)) or value != default]


@dataclass(frozen=True, kw_only=True)
class ModelOptions(LoadOptions):
    """How a model is loaded, and where and in which field its text is."""

    data_dir: Path | None = None
    """Folder that holds the corpora (else BACKSTORY_DATA)."""
    corpus: str | None = None
    """For hf:... only: the corpus, by its name or the path of a file or folder."""
    field: Annotated[str | None, tyro.conf.arg(name="text.field")] = None
    """Field or column of a .jsonl, .csv or .parquet text that holds the texts (else that of the run's corpus)."""


@checked(batch_size=1, lengths=1)
@dataclass(frozen=True)
class ReadingOptions:
    """One reading of a text, as suites, their tables and `backstory evaluate` identify it.

    A field that is added here is a flag of `evaluate`, a key of suites, and part of the results, their folders, their
    sentences, and the checks of what is resumed; its effect on the text or the reader is all that is left to write.
    """

    split: str = "test"
    """train, valid or test."""
    reader: str = "static"
    """The reader, or several that wrap each other, joined by `+`: `backstory ls readers`."""
    batch_size: int = between(1, 1)
    """Rows of text read side by side: above 1 faster, and a little worse as each row starts with an empty state."""
    after: str | None = None
    """A split to read first (valid): an adaptive reader keeps what it learned there."""
    addressing: str | None = None
    """Addressing of an external memory, in place of the one it was trained with: dense, localized:257 (slots, odd),
    localized:257x3, literal, window:257. Short for --set core.addressing=VALUE."""
    lengths: tuple[int, ...] = ()
    """For synthetic tasks such as copy: generate the split with sequences of these lengths, equally many of each."""
    overrides: Annotated[UseAppendAction[tuple[str, ...]], tyro.conf.arg(name="set")] = ()
    """Settings of the model that may change after training, as core.addressing=window:257; may be given more than once."""
    precision: Precision = "float32"
    """Precision of matrix products."""

    def __post_init__(self) -> None:
        object.__setattr__(self, "lengths", tuple(self.lengths))
        object.__setattr__(self, "overrides", tuple(self.overrides))

    def folder_name(self) -> str:
        """Return the name of the result's folder in a run: the split, and the options that are not the default."""
        parts = changed_parts(
            (self.reader, "static"),
            (f"after-{self.after}", "after-None"),
            (self.precision, "float32"),
            (f"batch{self.batch_size}", "batch1"),
            (_lengths_part(self.lengths), "lengths"),
            *((value, "") for value in self.inference_overrides().values()),
            *((f"{name.replace('_', '-')}-{value}", "") for name, value in self.further().items()),
        )
        return folder_name("evaluate", self.split, *parts)

    def flags(self) -> tuple[str, ...]:
        """Return the flags of `backstory evaluate` for this reading: split, reader, and what is not the default."""
        flags = ["--split", self.split, "--reader", self.reader]
        for name, value in changes(self.reading()).items():
            if name == "overrides":
                flags += [word for setting in self.overrides for word in ("--set", setting)]
            elif name not in ("split", "reader"):
                values = () if value is True else value if isinstance(value, list) else (value,)
                flags += [f"--{name.replace('_', '-')}", *map(str, values)]
        return tuple(flags)

    def further(self) -> dict[str, Any]:
        """Return the options that results have no field for and that are not the default, by name."""
        return {k: value for k, value in changes(self.reading()).items() if k not in WITH_FIELDS}

    def reading(self) -> "ReadingOptions":
        """Return these options alone, to compare two readings."""
        return part_of(self, ReadingOptions)

    def described(self) -> str:
        """Return the reading as tables and messages say it: `test, static`, `test, dynamic, batch of 10, after valid`."""
        parts = changed_parts(
            (f"batch of {count(self.batch_size)}", "batch of 1"),
            (self.addressing or "", ""),
            (f"after {self.after}", "after None"),
            (f"lengths {', '.join(map(count, self.lengths))}", "lengths "),
            *((setting, "") for setting in self.overrides),
            (self.precision, "float32"),
        )
        return ", ".join((self.split, self.reader, *parts)) + options_in_words(self.further())

    def inference_overrides(self) -> dict[str, str]:
        """Return the model's settings that differ from training, by dotted name. Raises UserError."""
        overrides = {} if self.addressing is None else {"core.addressing": self.addressing}
        for text in self.overrides:
            name, equals, value = text.partition("=")
            if not equals or not name or not value:
                raise UserError(f"--set {text} must be written SETTING=VALUE, as in --set core.addressing=window:257")
            if name in overrides:
                raise UserError(f"the setting {name} is given twice; give it once")
            overrides[name] = value
        return overrides

    def check(self) -> None:
        """Raise UserError for options that exclude each other."""
        if self.after is not None and self.lengths:
            raise UserError("--after and --lengths cannot be combined; remove one")
        self.inference_overrides()


@checked(batch_size=1, lengths=1, audit_places=1, audit_seed=(0, 2**256), save_every=0)
@dataclass(frozen=True)
class EvalOptions(ReadingOptions, ModelOptions):
    """Options of an evaluation: the text, the reader, and the folder of the result."""

    text: tyro.conf.Suppress[Path | BinaryIO | None] = None
    """A text of your own in place of a split: the path of a file, or a file open for bytes."""
    audit_places: int | None = between(None, 1)
    """Number of random blocks that are audited; by default 8, more for short blocks, fewer for a large batch."""
    audit_seed: int | None = between(None, 0)
    """Seed of the audited places, to repeat an audit; by default a random one, which is recorded."""
    out: Path | None = None
    """Folder for result.json (else RUN/evaluate-SPLIT; for your own text, nothing is written)."""
    per_token: Path | None = None
    """Also write the score of every token to this file, one per line: .jsonl or .tsv, or compressed with .gz."""
    each_line: FlagCreatePairsOff[bool] = False
    """Score each line of a text by itself, from the model's start; --batch-size lines of similar length side by side."""
    per_line: Path | None = None
    """With --each-line: also write the score of every line to this file: .tsv, or compressed with .gz."""
    proof: Path | None = None
    """Also write the code of the text to this file, the proof of its score: `backstory verify` decodes it."""
    overwrite: FlagCreatePairsOff[bool] = False
    """Let --per-token, --per-line and --proof replace a file that exists, and --out the result of another evaluation."""
    resume: FlagCreatePairsOff[bool] = False
    """Continue the same evaluation where it was stopped or killed, from its last checkpoint."""
    save_every: float = between(SAVE_EVERY, 0.0)
    """Seconds between checkpoints of a long evaluation, beside its result, for --resume; 0: never."""
    allow_unknown: FlagCreatePairsOff[bool] = False
    """Score a text even if most of it is outside the vocabulary."""
    allow_equal_splits: FlagCreatePairsOff[bool] = False
    """Score a test split that is the same text as validation."""

    @classmethod
    def build(cls, options: Any = None, **values: Any) -> Self:
        """Return options with some fields replaced; `reader` may be a sequence of readers that wrap each other.

        `options` may also be those of another verb: the fields that they share are taken.
        """
        shared = {field.name for field in fields(cls)} & set(() if options is None else vars(options))
        values = {name: getattr(options, name) for name in shared} | values
        reader = values.get("reader")
        if isinstance(reader, list | tuple) and all(isinstance(one, str) for one in reader):
            values["reader"] = "+".join(reader) if reader else "static"
        for name in values:
            check_name(name, [field.name for field in fields(cls)], "option")
        return cls(**values)

    def check(self) -> None:
        if self.resume and self.per_token is not None:
            raise UserError(
                "--resume and --per-token cannot be combined, as that file is written in one go; remove one"
            )
        if self.text is not None and self.corpus is not None:
            raise UserError("a text and --corpus cannot be combined; remove one")
        if self.text is not None and self.after is not None:
            raise UserError("--after names a split to read first, and a text has none; remove it, or the text")
        if self.text is not None and self.lengths:
            raise UserError("--lengths works with synthetic tasks only; remove it to evaluate your own text")
        self._check_lines()
        super().check()

    def _check_lines(self) -> None:
        """Raise UserError for options that do not go with --each-line, or need it."""
        if not self.each_line:
            if self.per_line is not None:
                raise UserError("--per-line needs --each-line, which scores each line by itself; add it")
            return
        if self.text is None:
            raise UserError("--each-line scores the lines of a text; name a file, or - for standard input")
        if self.resume:
            raise UserError("--resume and --each-line cannot be combined, as lines are read in one go; remove one")


LONGEST_NAME = 200
"""Bytes of the longest name of a folder."""


def folder_name(*parts: str) -> str:
    """Join parts to the name of a result's folder; a long one ends in a hash of the whole, as a file system takes 255 bytes."""
    whole = "-".join(parts)
    name = re.sub(r"[^\w.+-]+", "_", whole)
    if len(name.encode()) <= LONGEST_NAME:
        return name
    begins = name.encode()[: LONGEST_NAME - 13].decode(errors="ignore")
    return f"{begins}-{hashlib.sha256(whole.encode()).hexdigest()[:12]}"


def changed_parts(*parts: tuple[str, str]) -> list[str]:
    """Return each part that differs from the default beside it."""
    return [part for part, default in parts if part != default]


def options_in_words(further: Mapping[str, Any] | None) -> str:
    """Return `ReadingOptions.further` in words, to end a description: `, most tokens 500`."""
    return "".join(f", {name.replace('_', ' ')} {value}" for name, value in (further or {}).items())


def _lengths_part(lengths: tuple[int, ...]) -> str:
    """Return the part of a folder's name for lengths: all of a few, else the first, the last and a hash."""
    if len(lengths) <= SPELT_OUT:
        return "-".join(["lengths", *map(str, lengths)])
    digest = hashlib.sha256(" ".join(map(str, lengths)).encode()).hexdigest()
    return f"lengths-{lengths[0]}..{lengths[-1]}-{digest[:8]}"
