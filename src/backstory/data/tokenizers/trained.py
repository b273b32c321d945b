"""Sub-word tokenizers that are trained on a corpus, `bpe:8000` and `unigram:8000`: pieces of bytes, which lose no text."""

import re
from collections.abc import Iterable
from typing import Any, Literal, cast

from backstory.config.errors import UserError, install_hint
from backstory.data.tokenizers.pieces import LARGEST, Pieces, is_panic, parts, reason

Kind = Literal["bpe", "unigram"]

FORMAT = 1
"""Version of the rules by which a tokenizer is trained."""
START = "<|endoftext|>"
"""The piece that is fed before the first of a text."""
SMALLEST = 257
"""The 256 bytes, and the start."""
_NAME = re.compile(r"(bpe|unigram):(\d{1,9})")


def trained_kind(name: str) -> tuple[Kind, int] | None:
    """Return the kind and the number of pieces of `bpe:8000`; None for another name. Raises UserError for a bad size."""
    if (match := _NAME.fullmatch(name)) is None:
        if name.partition(":")[0] in ("bpe", "unigram"):
            raise UserError(f"the tokenizer {name!r} must be written KIND:SIZE, as in {name.partition(':')[0]}:8000")
        return None
    size = int(match[2])
    if not SMALLEST <= size <= LARGEST:
        raise UserError(f"the tokenizer {name} must have {SMALLEST} to {LARGEST:,} pieces; choose another size")
    return cast(Kind, match[1]), size


def train_tokenizer(kind: Kind, size: int, blocks: Iterable[str]) -> Pieces:
    """Train a tokenizer of at most `size` pieces on a text in blocks.

    Equal texts give equal `bpe` pieces; `unigram` adds in another order each time, so that its scores may differ a little.

    Raises UserError for a text that no pieces can be learned from, and if the package `tokenizers` is missing.
    """
    name = f"{kind}:{size}"
    try:
        import tokenizers as hf
    except ImportError:
        raise UserError(f"{name} needs the package tokenizers; {install_hint('hf')}") from None
    options: dict[str, Any] = {
        "vocab_size": size,
        "special_tokens": [START],
        "initial_alphabet": sorted(hf.pre_tokenizers.ByteLevel.alphabet()),
        "show_progress": False,
    }
    is_bpe = kind == "bpe"
    model = hf.Tokenizer(hf.models.BPE() if is_bpe else hf.models.Unigram())
    model.pre_tokenizer = hf.pre_tokenizers.ByteLevel(add_prefix_space=False)  # pyright: ignore[reportAttributeAccessIssue]
    model.decoder = hf.decoders.ByteLevel()  # pyright: ignore[reportAttributeAccessIssue]
    trainer = hf.trainers.BpeTrainer(**options) if is_bpe else hf.trainers.UnigramTrainer(**options)
    try:
        model.train_from_iterator(parts(blocks), trainer)
    except BaseException as error:
        if isinstance(error, UserError) or (type(error) is not Exception and not is_panic(error)):
            raise
        raise UserError(f"{name} cannot be learned from this text ({reason(error)}); give more text") from None
    return Pieces(name, model.to_str())
