"""Evaluate a trained run: read a split or a text once with a reader, audited, and write the figures with their units."""

import hashlib
import json
import re
from collections.abc import Callable, Iterable, Sequence
from contextlib import nullcontext
from pathlib import Path
from typing import Any, BinaryIO

from torch import Tensor

from backstory.config import UserError, check_name
from backstory.config.arguments import checked
from backstory.config.printable import printable_json
from backstory.config.units import bits, perplexity
from backstory.data import Split, Vocabulary, lossless, unknown_share
from backstory.evaluation.answer_scores import AnswerScores
from backstory.evaluation.audit import Audit, AuditReport, usual_places
from backstory.evaluation.by_recency import Recency
from backstory.evaluation.evaluation_checkpoint import SAVE_EVERY, Legs, legs
from backstory.evaluation.gate_statistics import PolicyWatch
from backstory.evaluation.memory_curve import MemoryCurve
from backstory.evaluation.opening import Opened, Readers, open_run, open_text
from backstory.evaluation.per_token import Each, check_per_token, per_token_file
from backstory.evaluation.reading_loop import Reading
from backstory.evaluation.saved_reader import read_by
from backstory.evaluation.text_overlap import overlap_of
from backstory.models import Prediction
from backstory.readers.base import StaticReader
from backstory.readers.blocks import Block, block_count
from backstory.readers.registry import parse_stack, stack_name
from backstory.storage.atomic import within
from backstory.storage.provenance import check_place, write_result

SPELT_OUT = 8
"""Chosen lengths that a result's folder is named by, one by one."""


@checked(batch_size=1, places=1, audit_seed=(0, 2**256), save_every=0, lengths=1)
def evaluate(
    folder: Path | str,
    split: str = "test",
    *,
    text: Path | BinaryIO | None = None,
    reader: Readers = "static",
    batch_size: int = 1,
    precision: str = "float32",
    device: str = "auto",
    data_dir: Path | None = None,
    corpus: str | None = None,
    after: str | None = None,
    lengths: Sequence[int] = (),
    addressing: str | None = None,
    places: int | None = None,
    audit_seed: int | None = None,
    out: Path | str | None = None,
    per_token: Path | None = None,
    overwrite: bool = False,
    allow_unknown: bool = False,
    allow_equal_splits: bool = False,
    resume: bool = False,
    save_every: float = SAVE_EVERY,
    progress: Callable[[int, int], None] | None = None,
) -> dict[str, Any]:
    """Read a split, or a text, once and return the content of its result.json (docs/results.md describes it).

    `reader` names one reader, or several that are stacked on each other (`parse_stack`); what each of them gains is among
    the figures. `after` is a split that is read first, so that an adaptive reader goes on from what it learned there.
    The result is written to `out`, else to RUN/evaluate-SPLIT, with whatever differs from a static float32 reading in one
    row added to the name, so that no reading takes another's place. `text`, a file by its path or one open for bytes, is
    read instead of a split; its result is written only where there is an `out`.
    `lengths`: of a drawn task, the split is drawn anew with sequences of these lengths, as many of each. `addressing`: of the
    external memory, in place of the one it was trained with.
    `corpus` names the corpus for a model that has none of its own (`hf:...`), of which nothing is written without an `out`.
    A `batch_size` above one reads faster, from an empty state at the start of every row; `places` is how many
    random blocks the audit looks at (else `usual_places`), drawn by `audit_seed`, else by a seed from the operating
    system, which the result records; `per_token` is a file for the figures of every token, which takes the place of
    another only with `overwrite`; `progress` is told (tokens read, tokens in all). Where a result is written, and no figures
    of every token, the reading is saved beside it every `save_every` seconds (0: never) while it lasts; `resume` goes on
    with one that was stopped, to the same figures. A text that is mostly outside the vocabulary is read only with
    `allow_unknown`, a test split that equals validation only with `allow_equal_splits`. Raises UserError.
    """
    if resume and per_token is not None:
        raise UserError("the figures of every token are written in one go; leave --resume out, or --per-token")
    if per_token is not None:
        check_per_token(per_token, batch_size, overwrite)
    if text is not None and lengths:
        raise UserError("a text has the lengths that it has; leave --lengths out, or the text")
    how: dict[str, Any] = {"reader": reader, "precision": precision, "device": device, "addressing": addressing}
    how["allow_unknown"] = allow_unknown
    opened = (
        open_run(folder, split, **how, data_dir=data_dir, corpus=corpus, lengths=tuple(lengths))
        if text is None
        else open_text(folder, text, **how)
    )
    overlap = overlap_of(opened, data_dir, allow_equal_splits)
    name = stack_name(parse_stack(reader))
    if after is not None and lengths:
        raise UserError(
            "a split that is drawn at chosen lengths has no other before it; leave --lengths out, or --after"
        )
    if after is not None:
        check_after(after, opened.split.name, opened.dataset.splits)
    if text is None and opened.run.results is not None:
        precision = opened.reader.precision.name
        usual = {name: "static", f"after-{after}": "after-None", precision: "float32", f"batch{batch_size}": "batch1"}
        usual[of_lengths(lengths)] = "lengths"
        if not opened.run.as_trained:
            usual[opened.run.model.inference_overrides()["core.addressing"]] = ""
        name_of = file_name("evaluate", split, *(k for k, v in usual.items() if k != v))
        out = out or within(opened.run.results, name_of)
    check_batch_size(batch_size, len(opened.split.ids))
    destination = Path(out) if out else None
    if destination is not None:
        check_place(destination, "evaluation")
    elif resume:
        raise UserError("this reading is kept nowhere; say with --out where its result goes, now as then")
    places = places or usual_places(opened.reader.block, batch_size)
    origin, vocabulary = opened.provenance(), opened.dataset.vocabulary
    told = None if per_token is None else per_token_file(per_token, vocabulary, opened.split, opened.reader.precision)
    before = opened.split.ids[:0] if after is None else opened.dataset.splits[after].ids
    against = opened.layers[0].name != "static"
    total = len(before) + len(opened.split.ids) * (2 if against else 1)

    def by() -> dict[str, Any]:
        text = {
            "text": opened.dataset.fingerprint,
            "split": opened.split.name,
            "after": after,
            "batch_size": batch_size,
        }
        figures = {**text, "places": places, "device": origin["device"]}
        if audit_seed is not None:
            figures["audit seed"] = audit_seed
        return {**read_by(opened.run, opened.layers, opened.reader), **figures}

    keep = 0.0 if per_token is not None else save_every
    with legs(destination, by, keep, resume) as parts:
        count = Count(progress, total, parts.tokens())
        if after is not None:
            parts.read("after", opened.reader, before, vocabulary.start, batch_size=batch_size, each=count)
        inner, truth = InnerNats(opened), opened.dataset.truth(opened.split.name)
        parts.part("inner", inner)
        policy = (
            None
            if opened.run.model.gated is None or opened.run.config is None  # a reward is a training's
            else PolicyWatch(opened.reader.precision, opened.run.config.training.reward)
        )
        if policy is not None:
            parts.part("policy", policy)
        memory = None if truth is None else MemoryCurve(truth, opened.reader.block)
        if memory is not None:
            parts.part("memory", memory)
        asked = opened.dataset.answers(opened.split.name)
        answers = None if asked is None else AnswerScores(asked, opened.reader.precision, opened.reader.block)
        if answers is not None:
            parts.part("answers", answers)
        recency = Recency(opened.split.ids, batch_size, opened.reader.block)
        parts.part("recency", recency)
        with told or nullcontext() as each:
            watches = [w for w in (each, policy, inner, memory, answers, recency, count) if w is not None]
            reading, audit = read_audited(opened, batch_size, places, watches, after is None, parts, audit_seed)
        nats = [*inner.nats(), reading.nats]
        if against:
            static = StaticReader(opened.run.model, opened.reader.precision)
            beside = parts.read("static", static, opened.split.ids, vocabulary.start, batch_size=batch_size, each=count)
            nats = [beside.nats, *nats]
        names = ["static", *(layer.name for layer in opened.layers)][-len(nats) :]
        figures = {
            "split": opened.split.name,
            "reader": name,
            "readers": [
                layer.as_dict() | made.facts() for layer, made in zip(opened.layers, opened.stack(), strict=True)
            ],
            "gains": [
                {"name": n, "nats_per_token": v, "perplexity": perplexity(v)} for n, v in zip(names, nats, strict=True)
            ],
            "after": after,
            "unit": vocabulary.tokenizer.unit,
            "batch_size": reading.batch_size,
            "addressing": opened.run.model.inference_overrides().get("core.addressing"),
            "lengths": list(lengths) or None,
            "window": window(opened, reading),
            **score(reading, opened.split, vocabulary),
            "policy": None if policy is None else policy.figures(),
            "memory": None if memory is None else memory.figures(),
            "answers": None if answers is None else answers.figures(),
            "recency": recency.figures(),
            "overlap": None if overlap is None else [one.figures() for one in overlap],
            "audit": audit.as_dict(),
        }
        origin["seconds"] = round(reading.seconds, 1)
        opened.run.check_unchanged(destination)
        return write_result(destination, "evaluation", opened.run.name, figures, origin)


def check_batch_size(batch_size: int, tokens: int) -> None:
    """Raise UserError for a larger batch than a text has tokens."""
    if batch_size > tokens:
        raise UserError(
            f"the text has {tokens:,} tokens but --batch-size is {batch_size:,}; use --batch-size {tokens} or less"
        )


def check_after(after: str, split: str, splits: Iterable[str]) -> None:
    """Raise UserError unless `after`, one of the splits, may be read, and learned from, before the one that is scored."""
    check_name(after, splits, "split")
    if after == split:
        raise UserError(
            f"{after} would be scored with what was learned from it; read another split before, with --after"
        )
    if after == "test":
        raise UserError("nothing is learned from the test split before another is scored; use --after train or valid")


def of_lengths(lengths: Sequence[int]) -> str:
    """What chosen lengths add to the name of a result's folder: all of a few, and of more the ends and a hash of all."""
    if len(lengths) <= SPELT_OUT:
        return "-".join(["lengths", *map(str, lengths)])
    digest = hashlib.sha256(" ".join(map(str, lengths)).encode()).hexdigest()
    return f"lengths-{lengths[0]}..{lengths[-1]}-{digest[:8]}"


def file_name(*parts: str) -> str:
    """Parts of a result's name joined to the name of its folder."""
    return re.sub(r"[^\w.+-]+", "_", "-".join(parts))


class Count:
    """Tells a progress bar the tokens of all readings that are made."""

    def __init__(self, progress: Callable[[int, int], None] | None, total: int, done: int = 0) -> None:
        self.progress, self.total, self.done = progress, total, done

    def __call__(self, block: Block, prediction: Prediction, log_prob: Tensor) -> None:
        self.done += int(block.scored.sum())
        if self.progress is not None:
            self.progress(self.done, self.total)


class InnerNats:
    """Adds up what the readers inside a stack make of every token, from the blends of the outermost's predictions."""

    def __init__(self, opened: Opened) -> None:
        self.precision = opened.reader.precision
        self.sums, self.tokens = [0.0] * (len(opened.layers) - 1), 0

    def __call__(self, block: Block, prediction: Prediction, log_prob: Tensor) -> None:
        self.tokens += int(block.scored.sum())
        for place in reversed(range(len(self.sums))):
            prediction = prediction.parts()["p"]
            with self.precision.context(log_prob.device):
                self.sums[place] -= prediction.log_prob(block.targets).double()[block.scored].sum().item()

    def saved(self) -> dict[str, Any]:
        """What was added up so far."""
        return {"sums": self.sums, "tokens": self.tokens}

    def load(self, saved: dict[str, Any]) -> None:
        """Go on from there."""
        self.sums, self.tokens = saved["sums"], saved["tokens"]

    def nats(self) -> list[float]:
        """Per token, the innermost reader first; the outermost is not among them."""
        return [total / self.tokens for total in self.sums]


def read_audited(
    opened: Opened,
    batch_size: int,
    places: int | None = None,
    watches: Sequence[Each] = (),
    reset: bool = True,
    parts: Legs | None = None,
    seed: int | None = None,
) -> tuple[Reading, AuditReport]:
    """Read the opened split once from its first token to its last, audited on the way; `watches` are told of every block.

    Without `reset` the reader goes on from where it is. It is one of the `parts` of an evaluation, called `text`.
    """
    ids, parts = opened.split.ids, parts or Legs()
    block = opened.reader.block
    check_batch_size(batch_size, len(ids))
    audit = Audit(block_count(len(ids), batch_size, block), places or usual_places(block, batch_size), seed)
    parts.part("audit", audit)

    def each(block: Block, prediction: Prediction, log_prob: Tensor) -> None:
        for watch in watches:
            watch(block, prediction, log_prob)

    start = opened.dataset.vocabulary.start
    reading = parts.read(
        "text", opened.reader, ids, start, batch_size=batch_size, observer=audit, each=each, reset=reset
    )
    return reading, audit.report


def window(opened: Opened, reading: Reading) -> int | None:
    """The longest text that the model can read, where this one was longer, so that a window slid over it; else None."""
    can = opened.run.model.capabilities
    limit = can.maximum_length if can.slides else None
    return None if limit is None or reading.tokens <= limit * reading.batch_size else limit


def score(reading: Reading, split: Split, vocabulary: Vocabulary) -> dict[str, Any]:
    """Figures of a reading; those per word, character and byte only where the tokens hold all of the text.

    A text's words are what stands between white space, and the end of every line: its tokens, where the tokenizer is `words`.
    """
    total, whole = bits(reading.nats * reading.tokens), lossless(vocabulary, split)
    per_word = reading.nats if vocabulary.tokenizer.name == "words" else None
    per_character = None
    if whole:
        per_word, per_character = reading.nats * reading.tokens / split.words, total / split.characters
    elif vocabulary.tokenizer.unit == "character" and vocabulary.unknown is None:
        per_character = bits(reading.nats)  # all symbols that there are, as many as are counted
    return {
        "tokens": reading.tokens,
        **unknown_share(vocabulary, split).figures(),
        "nats_per_token": reading.nats,
        "perplexity": perplexity(reading.nats),
        "bits_per_token": bits(reading.nats),
        "bits_per_character": per_character,
        "bits_per_byte": total / split.bytes if whole else None,
        "words": None if per_word is None else split.words,
        "nats_per_word": per_word,
        "perplexity_per_word": None if per_word is None else perplexity(per_word),
    }


def as_json(result: dict[str, Any]) -> str:
    """A result as `--json` prints it."""
    return printable_json(json.dumps(result, indent=1, allow_nan=False))
