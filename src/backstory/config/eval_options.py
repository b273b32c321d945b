"""Options of an evaluation, declared once: for the command line, suites, results, and the names of their folders."""

import hashlib
import re
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Annotated, Any, BinaryIO, Literal, Self

import tyro

from backstory.config.arguments import checked
from backstory.config.errors import UserError
from backstory.config.strict import between

Precision = Literal["auto", "float32", "bfloat16"]
SAVE_EVERY = 60.0
"""Seconds between checkpoints."""
SPELT_OUT = 8
"""Lengths that the name of a result's folder lists one by one."""


@checked(batch_size=1, lengths=1)
@dataclass(frozen=True)
class ReadingOptions:
    """How a text is read, as suites, their tables and `backstory evaluate` tell one reading from another."""

    split: str = "test"
    """train, valid or test."""
    reader: str = "static"
    """The reader, or several that wrap each other, joined by `+`: `backstory ls readers`."""
    batch_size: int = between(1, 1)
    """Rows of text read side by side: above 1 faster and a little worse, since each row starts with an empty state."""
    after: str | None = None
    """A split to read first (valid): an adaptive reader keeps what it learned there."""
    addressing: str | None = None
    """Of an external memory, in place of the one that it was trained with: dense, localized:257 (slots, odd), localized:257x3,
    literal, window:257. Short for --set core.addressing=VALUE."""
    lengths: tuple[int, ...] = ()
    """Of a synthetic task (copy and its like): make the split anew with sequences of these lengths, as many of each."""
    overrides: Annotated[tyro.conf.UseAppendAction[tuple[str, ...]], tyro.conf.arg(name="set")] = ()
    """Settings of the model that may change after training, as core.addressing=window:257; may be given more than once."""
    precision: Precision = "float32"
    """Precision of matrix products."""

    def __post_init__(self) -> None:
        object.__setattr__(self, "lengths", tuple(self.lengths))
        object.__setattr__(self, "overrides", tuple(self.overrides))

    def folder_name(self) -> str:
        """Return the name of the result's folder in a run: the split, and the options that are not the default."""
        parts = _not_default(
            (self.reader, "static"),
            (f"after-{self.after}", "after-None"),
            (self.precision, "float32"),
            (f"batch{self.batch_size}", "batch1"),
            (_lengths_part(self.lengths), "lengths"),
            *((value, "") for value in self.inference_overrides().values()),
        )
        return folder_name("evaluate", self.split, *parts)

    def flags(self) -> tuple[str, ...]:
        """Return the flags of `backstory evaluate` for this reading: split, reader, and what is not the default."""
        flags = ["--split", self.split, "--reader", self.reader]
        for field in fields(ReadingOptions)[2:]:
            value = getattr(self, field.name)
            if field.name == "overrides":
                flags += [word for setting in self.overrides for word in ("--set", setting)]
            elif value != field.default:
                values = value if isinstance(value, tuple) else (value,)
                flags += [f"--{field.name.replace('_', '-')}", *map(str, values)]
        return tuple(flags)

    def reading(self) -> "ReadingOptions":
        """Return these options alone, to compare two readings."""
        return ReadingOptions(**{field.name: getattr(self, field.name) for field in fields(ReadingOptions)})

    def described(self) -> str:
        """Return the reading in words: `test with dynamic after valid`, `test with cache in a batch of 10`."""
        batch = "" if self.batch_size == 1 else f" in a batch of {self.batch_size}"
        after = "" if self.after is None else f" after {self.after}"
        lengths = f" at lengths {', '.join(map(str, self.lengths))}" if self.lengths else ""
        addressed = "" if self.addressing is None else f", addressed {self.addressing}"
        changed = "".join(f", {setting}" for setting in self.overrides)
        precision = "" if self.precision == "float32" else f", in {self.precision}"
        return f"{self.split} with {self.reader}{batch}{after}{lengths}{addressed}{changed}{precision}"

    def inference_overrides(self) -> dict[str, str]:
        """Return the model's settings that differ from training, by dotted name. Raises UserError."""
        changes = {} if self.addressing is None else {"core.addressing": self.addressing}
        for text in self.overrides:
            name, equals, value = text.partition("=")
            if not equals or not name or not value:
                raise UserError(f"--set {text} must be written SETTING=VALUE, as in --set core.addressing=window:257")
            if name in changes:
                raise UserError(f"the setting {name} is given twice; give it once")
            changes[name] = value
        return changes

    def check(self) -> None:
        """Raise UserError for options that exclude each other."""
        if self.after is not None and self.lengths:
            raise UserError("--after and --lengths cannot be combined; remove one")
        self.inference_overrides()


@checked(batch_size=1, lengths=1, audit_places=1, audit_seed=(0, 2**256), save_every=0)
@dataclass(frozen=True)
class EvalOptions(ReadingOptions):
    """What to read and how, and where the result goes."""

    text: tyro.conf.Suppress[Path | BinaryIO | None] = None
    """A text of one's own instead of a split: a file by its path, or one that is open for bytes."""
    device: str = "auto"
    """auto, cpu or cuda."""
    data_dir: Path | None = None
    """Folder that holds the corpora (else BACKSTORY_DATA)."""
    corpus: str | None = None
    """For hf:... alone: the corpus, by its name or the path of a file or folder."""
    audit_places: int | None = between(None, 1)
    """Random blocks that are audited; without a number 8, more of short blocks, fewer of a larger batch."""
    audit_seed: int | None = between(None, 0)
    """Draw the audited places by this number, to repeat an audit; else by one from the operating system, which is recorded."""
    out: Path | None = None
    """Where result.json goes (else RUN/evaluate-SPLIT; of a text it is not written)."""
    per_token: Path | None = None
    """Also write what every token scored to this file, in lines: .jsonl or .tsv, compressed if .gz follows."""
    overwrite: tyro.conf.FlagCreatePairsOff[bool] = False
    """Let --per-token replace a file that exists."""
    resume: tyro.conf.FlagCreatePairsOff[bool] = False
    """Continue the same evaluation where it was stopped or killed, from its last checkpoint."""
    save_every: float = between(SAVE_EVERY, 0.0)
    """Seconds between checkpoints of a long evaluation, beside its result, for --resume; 0: never."""
    allow_unknown: tyro.conf.FlagCreatePairsOff[bool] = False
    """Score a text even if most of it is outside the vocabulary."""
    allow_equal_splits: tyro.conf.FlagCreatePairsOff[bool] = False
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
            values["reader"] = "+".join(reader) or "static"
        return cls(**values)

    def check(self) -> None:
        if self.resume and self.per_token is not None:
            raise UserError(
                "--resume and --per-token cannot be combined, as that file is written in one go; remove one"
            )
        if self.text is not None and self.lengths:
            raise UserError("--lengths works with synthetic tasks only; remove it to evaluate your own text")
        super().check()


def folder_name(*parts: str) -> str:
    """Join parts to the name of a result's folder."""
    return re.sub(r"[^\w.+-]+", "_", "-".join(parts))


def _not_default(*parts: tuple[str, str]) -> list[str]:
    """Return each part that differs from the default beside it."""
    return [part for part, default in parts if part != default]


def _lengths_part(lengths: tuple[int, ...]) -> str:
    """Return the part of a folder's name for lengths: all of a few, else the first, the last and a hash."""
    if len(lengths) <= SPELT_OUT:
        return "-".join(["lengths", *map(str, lengths)])
    digest = hashlib.sha256(" ".join(map(str, lengths)).encode()).hexdigest()
    return f"lengths-{lengths[0]}..{lengths[-1]}-{digest[:8]}"
