"""Small sub-word tokenizers, trained on a text of the test; skips where the extra hf is missing."""

from collections.abc import Sequence
from typing import Any

import pytest


def byte_level(text: str, size: int = 300) -> Any:
    """A tokenizer of pieces of bytes, as GPT-2's is."""
    hf = pytest.importorskip("tokenizers", reason="needs the extra hf")
    model = hf.Tokenizer(hf.models.BPE())
    model.pre_tokenizer = hf.pre_tokenizers.ByteLevel(add_prefix_space=False)
    model.decoder = hf.decoders.ByteLevel()
    alphabet = hf.pre_tokenizers.ByteLevel.alphabet()
    trainer = hf.trainers.BpeTrainer(
        vocab_size=size, special_tokens=["<|endoftext|>"], initial_alphabet=alphabet, show_progress=False
    )
    model.train_from_iterator([text], trainer)
    return model


def metaspace(text: str, special: Sequence[str] = ("<unk>",)) -> Any:
    """A unigram tokenizer whose pieces mark the spaces before them."""
    hf = pytest.importorskip("tokenizers", reason="needs the extra hf")
    model = hf.Tokenizer(hf.models.Unigram())
    model.pre_tokenizer = hf.pre_tokenizers.Metaspace()
    model.decoder = hf.decoders.Metaspace()
    trainer = hf.trainers.UnigramTrainer(
        vocab_size=60, special_tokens=list(special), unk_token="<unk>", show_progress=False
    )
    model.train_from_iterator([text], trainer)
    return model
