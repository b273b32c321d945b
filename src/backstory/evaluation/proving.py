"""Write the proof of an evaluation beside its result, and verify one: decode it, and compare the text and the figure."""

import hashlib
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from backstory.codec.proof import Proof, decode_proof, prove
from backstory.codec.setting import Source, check_out, name_of
from backstory.config.options import EvalOptions, ModelOptions
from backstory.data import Split
from backstory.data.encoding import TextLines
from backstory.evaluation.opening import EvalSetup, read_text
from backstory.results.evaluation_record import ProofRecord
from backstory.runs.run import Run
from backstory.storage.atomic import atomic_file, sweep_abandoned
from backstory.utils.arguments import checked
from backstory.utils.errors import UserError
from backstory.utils.scores import bits, perplexity
from backstory.utils.terminal import ProgressCallback, part_of_work

TOLERANCE = 1e-3
"""Share by which a reported score may beat the code, because products of other shapes round differently."""
UNCOUNTED = 0.01
"""Limit of the uncounted bits as a share of the counted ones. (A reader could use a row's last token to predict another
row.)"""


def check_proof(options: EvalOptions) -> None:
    """Raise UserError where a proof cannot be written."""
    if options.proof is not None:
        check_out(options.proof, options.overwrite)


@contextmanager
def written_proof(
    setup: EvalSetup, path: Path, nats: float, progress: ProgressCallback | None
) -> Iterator[ProofRecord]:
    """Code the text that was scored, write the code, and yield its record; `nats` per token were reported.

    The file is put in place when the block ends without error.
    """
    options, split = setup.options, setup.split
    text = {
        "corpus": setup.dataset.corpus,
        "fingerprint": setup.dataset.fingerprint,
        "split": split.name,
        "unit": setup.dataset.vocabulary.tokenizer.unit,
        "nats_per_token": nats,
    }
    overrides, loading = options.inference_overrides(), options.load_options()
    lengths = None if setup.lines is None else np.diff([*split.documents, len(split.ids)])
    after = None if options.after is None else setup.dataset.splits[options.after]
    batch_size = min(options.batch_size, len(split.ids if lengths is None else lengths))
    reading = setup.run, setup.reader, setup.layers, split.ids, batch_size
    with part_of_work(f"writing {path.name}", progress) as shown:
        proof, content = prove(*reading, text, loading, overrides, shown, lengths=lengths, after=after)
    record = ProofRecord(
        file=path.name,
        bytes=len(content),
        sha256=hashlib.sha256(content).hexdigest(),
        nats_per_token=proof.nats_per_token,
        uncounted_share=proof.uncounted or None,
    )
    sweep_abandoned(path)
    with atomic_file(path) as file:
        file.write(content)
        file.flush()
        yield record


@dataclass(frozen=True, kw_only=True)
class Verification:
    """A proof that was decoded."""

    file: str
    model: str
    reader: str
    corpus: str
    split: str
    unit: str
    lines: int | None
    """Lines that were read each by itself; None for a text from end to end."""
    after: str | None
    """The split that was read before the text, if one was."""
    tokens: int
    nats_per_token: float
    """Length of the code."""
    perplexity: float
    bits_per_token: float
    reported: float
    """Nats per token that the evaluation reported."""
    rows: int
    """Rows that were read side by side."""
    uncounted: float
    """Share that the last tokens of rows add to the code; they are not counted."""
    compared: str | None
    """The file or split that the decoded text was compared with."""
    same_text: bool | None
    """True if the decoded tokens, and the lines if each was read by itself, are those of the text; None if there was no text
    to compare with."""

    @property
    def as_reported(self) -> bool:
        """Return True if the reported score is no better than the code."""
        return self.nats_per_token <= self.reported * (1 + TOLERANCE)

    @property
    def score_holds(self) -> bool:
        """Return True if the score is as reported, and all but 1% of the code is counted."""
        return self.uncounted <= UNCOUNTED and self.as_reported

    @property
    def holds(self) -> bool:
        """Return True if the text is not another one, and the reported score no better than the code."""
        return self.same_text is not False and self.score_holds

    def to_dict(self) -> dict[str, Any]:
        """Return the fields and `holds` as plain values."""
        return vars(self) | {"holds": self.holds}


@checked()
def verify(
    file: Source,
    model: Path | str | Run | None = None,
    *,
    text: Path | None = None,
    corpus: str | None = None,
    data_dir: Path | None = None,
    field: str | None = None,
    device: str = "auto",
    progress: ProgressCallback | None = None,
) -> Verification:
    """Decode the proof of an evaluation, compare its text with the expected one, and return the figure.

    Args:
        file: The proof: the path of its file, its bytes, or a file that is open for bytes.
        model: The model that was evaluated; by default the run that the proof names.
        text: The text to compare with; by default the split of the corpus that the proof names, if it is here.
        corpus: The name or path of the corpus that was read; by default that of the run.
        data_dir: Folder that holds the corpora.
        field: Field or column that holds the texts of `text` or `corpus`; by default that of the run's corpus.
        device: auto, cpu or cuda.
        progress: Called with the tokens decoded so far and all tokens.

    Returns the figure, what was reported, and whether they agree (`holds`). Raises UserError for what is no proof, a damaged
    one, another model, and a proof that cannot be decoded.

    Example:
        >>> bs.verify("proof.bks").holds
        True
    """
    if field is not None and text is None and corpus is None:  # before minutes of decoding
        raise UserError(f"{field!r} is the field of a text to compare with: name it with --text or --corpus")
    options = ModelOptions(device=device, data_dir=data_dir, corpus=corpus, field=field)
    proof = decode_proof(file, model, options, progress)
    described: dict[str, Any] = proof.header.text or {}
    compared, expected = _expected(proof, text, options)
    return Verification(
        file=name_of(file),
        model=proof.header.model,
        reader=proof.header.reader,
        corpus=described["corpus"],
        split=described["split"],
        unit=described["unit"],
        lines=proof.header.lines,
        after=None if proof.header.after is None else proof.header.after["split"],
        tokens=len(proof.ids),
        nats_per_token=proof.nats_per_token,
        perplexity=perplexity(proof.nats_per_token),
        bits_per_token=bits(proof.nats_per_token),
        reported=described["nats_per_token"],
        rows=proof.header.batch_size,
        uncounted=proof.uncounted,
        compared=compared,
        same_text=_is_same(proof, expected),
    )


def _is_same(proof: Proof, expected: Split | None) -> bool | None:
    """Return True if a text is what was decoded, in the same lines if each was read by itself; None without one."""
    if expected is None:
        return None
    lengths = proof.lengths
    same_lines = lengths is None or np.array_equal(np.cumsum(lengths) - lengths, expected.documents)
    return same_lines and np.array_equal(expected.ids, proof.ids)


def _expected(proof: Proof, text: Path | None, options: ModelOptions) -> tuple[str | None, Split | None]:
    """Return the name of the text that was to be read, and the text; None for both if it is not here."""
    described: dict[str, Any] = proof.header.text or {}
    if text is not None:
        lines = None if proof.lengths is None else TextLines()
        return text.name, read_text(proof.run, text, options.field, lines).splits["text"]
    if options.corpus is None and described["fingerprint"] != proof.run.corpus.get("fingerprint"):
        return None, None
    try:
        corpus = proof.run.other_dataset(options.corpus, options.data_dir, options.field)
    except UserError:
        if options.corpus is not None:
            raise
        return None, None  # the run's own is not here, or has changed
    split = corpus.splits.get(described["split"])
    return (None, None) if split is None else (f"the {split.name} split of {corpus.corpus}", split)
