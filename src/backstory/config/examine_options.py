"""Options of an examination: one declaration for the command line, suites' YAML, Python, results and their folders' names."""

from collections.abc import Iterator
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any, Literal, Self

from tyro.conf import FlagCreatePairsOff, UseAppendAction

from backstory.config.arguments import described
from backstory.config.errors import UserError
from backstory.config.eval_options import folder_name
from backstory.config.options import Options
from backstory.config.strict import between


@dataclass(frozen=True, kw_only=True)
class ExaminationSettings(Options):
    """One experiment on a model's use of context, as suites list it; lengths are in tokens."""

    experiment: str = "truncate"
    """What is done to the context: `backstory ls experiments`."""
    split: str = "valid"
    """train, valid or test."""
    targets: int = between(2000, 2)
    """Tokens that are scored under every condition, drawn at random; a number beyond all takes all."""
    maximum_context: int = between(1000, 1)
    """The longest context; only tokens with so many before them are targets."""
    reader: UseAppendAction[tuple[str, ...]] = ()
    """How it is read: static (the default) or cache; no reader whose weights move."""
    context: int = between(300, 2)
    """The tokens that are changed, where their number is not what varies."""
    near: int = between(50, 1)
    """How far back a token counts as near."""
    by: UseAppendAction[tuple[str, ...]] = ()
    """Also split the targets by frequency, tag, content, class or position; may be given more than once."""
    tagger: Any = "auto"
    """Source of the part-of-speech tags: auto, gold or pattern; in Python also a function from words to their tags."""
    within_documents: FlagCreatePairsOff[bool] = False
    """Let contexts end where the target's document begins."""
    seed: int = between(0, 0)
    """Seed of the draw of targets, of what is random in a change, and of the bootstrap."""
    batch_size: int = between(1, 1)
    """Rows of text read side by side for the infinite context: faster, and at least the longest context before each token."""
    word_score: Literal["corrected", "sum"] = "corrected"
    """How the pieces of a word become its score: corrected for where it begins and ends, or their plain sum."""
    precision: Literal["auto", "float32", "bfloat16"] = "auto"
    """Precision of matrix products, of the baseline too."""

    def checked(self) -> Self:
        """Return the options with every value checked. Raises UserError, and TypeError for a value of another type."""
        options = super().checked()
        if not isinstance(self.tagger, str) and not callable(self.tagger):
            raise TypeError(f"tagger must be text or a function, not {described(self.tagger)}")
        if self.batch_size > 1 and self.within_documents:
            raise UserError(
                "documents are read each by itself, one after the other; leave --batch-size out, or --within-documents"
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
            "batch_size": self.batch_size if whole else 1,
            "near": self.near,
        }

    def losses_key(self, whole: bool) -> dict[str, Any]:
        """Return the options that the losses of the targets depend on: losses of equal keys are taken over."""
        recorded = self.recorded(whole)
        batched = {} if recorded["batch_size"] == 1 else {"batch_size": self.batch_size}
        near = None if whole else self.near
        return {
            **{k: v for k, v in recorded.items() if k != "batch_size"},
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
            *([] if self.word_score == "corrected" else [f"word-score-{self.word_score}"]),
        )

    def flags(self) -> Iterator[str]:
        """Yield the flags of `backstory examine` for these settings; the first four always, others where not usual."""
        for field in fields(ExaminationSettings):
            value = getattr(self, field.name)
            if field.name not in ("experiment", "split", "targets", "maximum_context") and value == field.default:
                continue
            flag = f"--{field.name.replace('_', '-')}"
            for one in value if isinstance(value, tuple) else (value,):
                yield from (flag,) if one is True else (flag, str(one))


@dataclass(frozen=True, kw_only=True)
class ExamineOptions(ExaminationSettings):
    """Options of `backstory examine`: an experiment, the machine it runs on, and the folder its result goes to."""

    memory: float = between(1.0, 0.0, above=True)
    """GiB that a batch of contexts may take."""
    device: str = "auto"
    """auto, cpu or cuda."""
    data_dir: Path | None = None
    """Folder that holds the corpora (else BACKSTORY_DATA)."""
    corpus: str | None = None
    """For hf:... alone: the corpus, by its name or the path of a file or folder."""
    out: Path | None = None
    """Where result.json goes (else RUN/examine-EXPERIMENT-SPLIT, and the reader if not static); of several: of the set."""
    again: FlagCreatePairsOff[bool] = False
    """Take nothing over from an examination that was made or stopped there."""
    allow_unknown: FlagCreatePairsOff[bool] = False
    """Examine a text even where most of it is outside the vocabulary."""
