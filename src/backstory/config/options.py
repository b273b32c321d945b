"""Options of evaluations, examinations and explanations: one declaration for the command line, suites, Python and results."""

import hashlib
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Annotated, Any, BinaryIO, Literal, Self

import tyro
from tyro.conf import FlagCreatePairsOff, UseAppendAction

from backstory.config.arguments import Options, checked, described
from backstory.config.errors import UserError, check_name
from backstory.config.strict import between

Precision = Literal["auto", "float32", "bfloat16"]
"""Precision of matrix products; `auto` is bfloat16 where the device multiplies it natively."""
SAVE_EVERY = 60.0
"""Seconds between checkpoints."""
WITH_FIELDS = ("split", "reader", "batch_size", "after", "addressing", "lengths", "overrides", "precision")
"""Options of a reading that results record in fields of their own; all others in one, `options`."""
SPELT_OUT = 8
"""Most lengths that the name of a result's folder lists one by one."""


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
    """For hf:... only: auto spreads the weights over all devices, the largest first (needs accelerate)."""
    window: int | None = between(None, 2)
    """For hf:... only: the largest number of tokens that the model reads at once (else what its settings allow)."""
    stride: int | None = between(None, 1)
    """For hf:... only: the number of tokens by which a full window moves on (else half of it)."""

    def load_options(self) -> "LoadOptions":
        """Return these options alone."""
        return LoadOptions(**{field.name: getattr(self, field.name) for field in fields(LoadOptions)})

    @classmethod
    def among(cls, options: Mapping[str, Any]) -> list[str]:
        """Return the names of the options of loading among others that differ from the default."""
        own = [
            (field.name, options[field.name], field.default) for field in fields(LoadOptions) if field.name in options
        ]
        # An array, which is none of them, has no single answer to `!=`.
        return [name for name, value, default in own if not isinstance(value, type(default)) or value != default]

    def not_default(self) -> list[str]:
        """Return the names of the options beside the device that differ from the default: a run has none."""
        return [field.name for field in fields(LoadOptions)[1:] if getattr(self, field.name) != field.default]


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
        parts = _not_default(
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
        for field in fields(ReadingOptions)[2:]:
            value = getattr(self, field.name)
            if field.name == "overrides":
                flags += [word for setting in self.overrides for word in ("--set", setting)]
            elif value != field.default:
                values = () if value is True else value if isinstance(value, tuple) else (value,)
                flags += [f"--{field.name.replace('_', '-')}", *map(str, values)]
        return tuple(flags)

    def further(self) -> dict[str, Any]:
        """Return the options that results have no field for and that are not the default, by name."""
        values = {field.name: (getattr(self, field.name), field.default) for field in fields(ReadingOptions)}
        return {k: value for k, (value, default) in values.items() if k not in WITH_FIELDS and value != default}

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
        further = options_in_words(self.further())
        return f"{self.split} with {self.reader}{batch}{after}{lengths}{addressed}{changed}{precision}{further}"

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
class EvalOptions(ReadingOptions, ModelOptions):
    """Options of an evaluation: the text, the reader, and the folder of the result."""

    text: tyro.conf.Suppress[Path | BinaryIO | None] = None
    """A text of your own in place of a split: the path of a file, or a file open for bytes."""
    audit_places: int | None = between(None, 1)
    """Number of random blocks that are audited; by default 8, more of short blocks, fewer of a larger batch."""
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
            values["reader"] = "+".join(reader) or "static"
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


@dataclass(frozen=True, kw_only=True)
class ExaminationSettings(Options):
    """One experiment on a model's use of context, as suites list it; lengths are in tokens."""

    experiment: str = "truncate"
    """The change to the context: `backstory ls experiments`."""
    split: str = "valid"
    """train, valid or test."""
    targets: int = between(2000, 2)
    """Number of tokens scored under every condition, sampled at random; if there are fewer, all are scored."""
    maximum_context: int = between(1000, 1)
    """The longest context; only tokens with that many before them are targets."""
    reader: UseAppendAction[tuple[str, ...]] = ()
    """The reader: static (the default) or cache; readers that move the weights are not supported."""
    context: int = between(300, 2)
    """Number of tokens in the context, in experiments that do not vary it."""
    near: int = between(50, 1)
    """Largest distance, in tokens, that counts as near."""
    by: UseAppendAction[tuple[str, ...]] = ()
    """Also split the targets by frequency, tag, content, class or position; may be given more than once."""
    tagger: Any = "auto"
    """Source of the part-of-speech tags: auto, gold or pattern; in Python also a function from words to their tags."""
    within_documents: FlagCreatePairsOff[bool] = False
    """Let contexts end where the target's document begins."""
    start_token: FlagCreatePairsOff[bool] = False
    """Begin every shortened or changed context with the token that the model reads before a text."""
    seed: int = between(0, 0)
    """Seed of the targets, of random changes to the context, and of the bootstrap."""
    batch_size: int = between(1, 1)
    """Rows of text read side by side for the infinite context: faster, and at least the longest context before each token."""
    word_score: Literal["corrected", "sum"] = "corrected"
    """Score of a word from its pieces: corrected for where the word begins and ends, or their plain sum."""
    precision: Precision = "float32"
    """Precision of matrix products, of the baseline too."""

    def checked(self) -> Self:
        """Return the options with every value checked. Raises UserError, and TypeError for a value of another type."""
        options = super().checked()
        if not isinstance(self.tagger, str) and not callable(self.tagger):
            raise TypeError(f"tagger must be text or a function, not {described(self.tagger)}")
        if self.batch_size > 1 and self.within_documents:
            raise UserError(
                "--batch-size and --within-documents cannot be combined, as documents are read one by one; remove one"
            )
        return options

    def recorded(self, whole: bool) -> dict[str, Any]:
        """Return the options that a result records and that examinations of one set share.

        `whole`: the experiment perturbs all of the context, so that `context` is not an option of it.
        """
        return {
            "experiment": self.experiment,
            "seed": self.seed,
            "maximum_context": self.maximum_context,
            "context": None if whole else self.context,
            "within_documents": self.within_documents,
            "start_token": self.start_token,
            "batch_size": self.batch_size if whole else 1,
            "near": self.near,
        }

    def losses_key(self, whole: bool) -> dict[str, Any]:
        """Return the options that the losses of the targets depend on: losses of equal keys are taken over."""
        recorded = self.recorded(whole)
        batched = {} if recorded["batch_size"] == 1 else {"batch_size": self.batch_size}
        batched |= {"start_token": True} if self.start_token else {}
        near = None if whole else self.near
        return {
            **{k: v for k, v in recorded.items() if k not in ("batch_size", "start_token")},
            "targets": self.targets,
            "near": near,
        } | batched

    def folder_name(self, split: str, reader: str = "static") -> str:
        """Return the name of the result's folder in a run; `reader` is the canonical name of the readers."""
        return folder_name(
            "examine",
            self.experiment,
            split,
            *([] if reader == "static" else [reader]),
            *(["documents"] if self.within_documents else []),
            *(["start-token"] if self.start_token else []),
            *([] if self.word_score == "corrected" else [f"word-score-{self.word_score}"]),
        )

    def further(self) -> dict[str, Any]:
        """Return the options after the first four that are not the default, by name, as JSON has them."""
        values = {field.name: (getattr(self, field.name), field.default) for field in fields(ExaminationSettings)[4:]}
        changed = {name: value for name, (value, default) in values.items() if value != default}
        return {name: list(value) if isinstance(value, tuple) else value for name, value in changed.items()}

    def flags(self) -> Iterator[str]:
        """Yield the flags of `backstory examine` for these settings: the first four, and others that are not the default."""
        first = {field.name: getattr(self, field.name) for field in fields(ExaminationSettings)[:4]}
        for name, value in (first | self.further()).items():
            flag = f"--{name.replace('_', '-')}"
            for one in value if isinstance(value, list) else (value,):
                yield from (flag,) if one is True else (flag, str(one))


@dataclass(frozen=True, kw_only=True)
class ExamineOptions(ExaminationSettings, ModelOptions):
    """Options of `backstory examine`: an experiment, the machine it runs on, and the folder its result goes to."""

    memory: float = between(1.0, 0.0, above=True)
    """GiB that a batch of contexts may take."""
    out: Path | None = None
    """Folder for result.json (else RUN/examine-EXPERIMENT-SPLIT, and the reader if not static); of several runs: of the set."""
    again: FlagCreatePairsOff[bool] = False
    """Start over: reuse nothing of an examination that was made or stopped there."""
    allow_unknown: FlagCreatePairsOff[bool] = False
    """Examine a text even if most of it is outside the vocabulary."""


LONGEST_PASSAGE = 2000
"""The most words of a passage."""
WORDS = 200
"""Words of an explained passage, unless options say otherwise."""
TOKENS = 20_000
"""Tokens of a compared stretch of text, unless options say otherwise."""


@dataclass(frozen=True, kw_only=True)
class ExplanationOptions(ModelOptions):
    """Options that every explanation has: the text, how it is read, and where the result goes."""

    split: str | None = None
    """train, valid or test (else test)."""
    at: int = between(0, 0)
    """The token where the passage begins; the text before it is read too."""
    context: int | None = between(None, 0)
    """Number of tokens before it that are read (else all)."""
    reader: UseAppendAction[tuple[str, ...]] = ()
    """The reader (`backstory ls readers`; else static); may be given more than once: readers wrap each other."""
    word_score: Literal["corrected", "sum"] = "corrected"
    """Score of a word from its pieces: corrected for where the word begins and ends, or their plain sum."""
    precision: Precision = "float32"
    """Precision of matrix products."""
    out: Path | None = None
    """Folder of result.json (else one in the run, named after the explanation and these options)."""
    allow_unknown: FlagCreatePairsOff[bool] = False
    """Read a text even if most of it is outside the vocabulary."""


EXPLANATION_SUMMARIES = {
    "surprisal": "how surprising each word is, what was expected instead, and which reader predicts it better",
    "reading": "what one reader gains on others along a sequence of articles, and where it loses",
    "buffer": "which words before it a model's span buffer attends to, what it expects there, and whether it helps",
    "memory": "which words the heads of an external memory read at each word, and how they find their slots",
    "cache": "where a neural cache looks at each word, what it expects there, and whether it helps",
}
"""The subject of each explanation, by its name."""


@dataclass(frozen=True, kw_only=True)
class ExplainOptions(ExplanationOptions):
    """Options of an explanation of a passage."""

    words: int | None = between(None, 1)
    """Words of the passage, 2000 at most (else 200; with --find as many as the cache can hold)."""
    find: Literal["success", "failure"] | None = None
    """With `cache`: show its most peaked success or its flattest failure from --at on, and the words before it."""
    against: str | None = None
    """A reader, or another run's folder: show what is gained over it."""
    top: int = between(5, 0, 100)
    """Largest number of candidates shown for a word."""
    layer: str | None = None
    """The layer that colours the words at first: surprisal, entropy, ..."""

    @property
    def most_words(self) -> int:
        """The most words of the passage."""
        return WORDS if self.words is None else self.words

    def checked(self) -> Self:
        """Return the options with every value checked. Raises UserError, and TypeError for a value of another type."""
        options = super().checked()
        check_words(options.most_words)
        return options

    def name_parts(self, text: str, reader: str, precision: str, against: str | None) -> list[str]:
        """Return the parts of the name of the result's folder: the options that are not the default.

        The text, the reader, its precision and what it is compared with are given by unambiguous names.
        """
        return _not_default(
            (text, "test"),
            (f"at{self.at}", "at0"),
            (f"words{self.most_words}", f"words{WORDS}"),
            (f"context{self.context}", "contextNone"),
            (reader, "static"),
            (precision, "float32"),
            (f"against-{against}", "against-None"),
            (f"top{self.top}", "top5"),
            (f"layer-{self.layer}", "layer-None"),
            (f"find-{self.find}", "find-None"),
            (f"word-score-{self.word_score}", "word-score-corrected"),
        )


@dataclass(frozen=True, kw_only=True)
class CompareOptions(ExplanationOptions):
    """Options of a comparison of readers along a stretch of text."""

    tokens: int = between(TOKENS, 1)
    """Tokens of the stretch."""
    against: UseAppendAction[tuple[str, ...]] = ()
    """A reader, or another run's folder, to compare with (else static); may be given more than once, best first."""
    block: int = between(100, 1)
    """Tokens of a block."""
    smooth: int = between(10, 0)
    """Blocks of the moving average in the picture; 0 for none."""
    passage: UseAppendAction[tuple[int, ...]] = ()
    """Show the passage that begins at this token; may be given more than once (else passages are chosen)."""
    words: int = between(100, 1)
    """Words of a passage, 2000 at most."""

    def checked(self) -> Self:
        """Return the options with every value checked. Raises UserError, and TypeError for a value of another type."""
        options = super().checked()
        check_words(options.words)
        return options

    def name_parts(self, text: str, reader: str, precision: str, against: Sequence[str]) -> list[str]:
        """Return the parts of the name of the result's folder, as `ExplainOptions.name_parts`, and always the reader."""
        return _not_default(
            (text, "test"),
            (f"at{self.at}", "at0"),
            (f"tokens{self.tokens}", f"tokens{TOKENS}"),
            (f"context{self.context}", "contextNone"),
            (f"block{self.block}", "block100"),
            (f"smooth{self.smooth}", "smooth10"),
            (f"words{self.words}", "words100"),
            (f"passage{'-'.join(map(str, self.passage))}", "passage"),
            (precision, "float32"),
            (f"word-score-{self.word_score}", "word-score-corrected"),
            (reader, ""),
            (f"against-{'-'.join(against)}", "against-static"),
        )


def check_words(words: int) -> None:
    """Raise UserError for a passage of too many words."""
    if words > LONGEST_PASSAGE:
        raise UserError(f"a passage has 1 to {LONGEST_PASSAGE:,} words, not {words:,}; choose fewer with --words")


def folder_name(*parts: str) -> str:
    """Join parts to the name of a result's folder."""
    return re.sub(r"[^\w.+-]+", "_", "-".join(parts))


def _not_default(*parts: tuple[str, str]) -> list[str]:
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
