"""Options of examinations: one declaration for the command line, suites, Python and results."""

from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal, Self

from tyro.conf import FlagCreatePairsOff, UseAppendAction

from backstory.config.options import ModelOptions, Precision, folder_name, part_of
from backstory.config.strict import between, changes
from backstory.utils.arguments import Options, described
from backstory.utils.errors import UserError

MAXIMUM_CONTEXT, CONTEXT = 1000, 300
"""Lengths of contexts unless they are given, or the model reads fewer tokens at once."""
FIRST = ("experiment", "split", "targets", "maximum_context")
"""Options that identify an examination; results of suites have the others in one field."""


@dataclass(frozen=True, kw_only=True)
class ExaminationSettings(Options):
    """One experiment on a model's use of context, as suites list it; lengths are in tokens."""

    experiment: str = "truncate"
    """The change to the context: `backstory ls experiments`."""
    split: str = "valid"
    """train, valid or test."""
    targets: int = between(2000, 2)
    """Number of tokens scored under every condition, sampled at random; if there are fewer, all are scored."""
    maximum_context: int | None = between(None, 1)
    """The longest context, in tokens, or in words where pieces are joined to words (else 1000, or what the model's
    window holds); only tokens with that many before them are targets."""
    reader: UseAppendAction[tuple[str, ...]] = ()
    """The reader: static (the default) or cache; readers that move the weights are not supported."""
    context: int | None = between(None, 2)
    """Number of tokens (or joined words) in the context, in experiments that do not vary it (else 300, or what the
    model's window holds)."""
    near: int = between(50, 1)
    """Largest distance, in tokens, that counts as near."""
    by: UseAppendAction[tuple[str, ...]] = ()
    """Also split the targets by frequency, tag, content, class, similar or position, or for the experiment cache by cache; may
    be given more than once."""
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

    @property
    def longest_context(self) -> int:
        """The longest context."""
        return MAXIMUM_CONTEXT if self.maximum_context is None else self.maximum_context

    @property
    def context_length(self) -> int:
        """Number of tokens in the context, in experiments that do not vary it."""
        return CONTEXT if self.context is None else self.context

    def fitted(self, most: int | None) -> Self:
        """Return the options with contexts of at most so many tokens (None: any number) where no length is given."""
        if most is None:
            return self
        longest, context = min(MAXIMUM_CONTEXT, most), max(2, min(CONTEXT, most))
        return replace(
            self,
            maximum_context=longest if self.maximum_context is None else self.maximum_context,
            context=context if self.context is None else self.context,
        )

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
            "maximum_context": self.longest_context,
            "context": None if whole else self.context_length,
            "within_documents": self.within_documents,
            "start_token": self.start_token,
            "batch_size": self.batch_size if whole else 1,
            "near": self.near,
        }

    def losses_key(self, whole: bool) -> dict[str, Any]:
        """Return the options that the losses of the targets depend on: losses of equal keys are taken over."""
        key = self.recorded(whole) | {"targets": self.targets, "near": None if whole else self.near}
        for name, default in (("batch_size", 1), ("start_token", False)):
            if key[name] == default:  # left out, as by earlier versions
                del key[name]
        return key

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
        """Return the options other than FIRST that are not the default, by name, as JSON has them."""
        settings = changes(part_of(self, ExaminationSettings))
        return {name: value for name, value in settings.items() if name not in FIRST}

    def flags(self) -> Iterator[str]:
        """Yield the flags of `backstory examine` for these settings: FIRST, and others that are not the default."""
        first = {name: getattr(self, name) for name in FIRST} | {"maximum_context": self.longest_context}
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
