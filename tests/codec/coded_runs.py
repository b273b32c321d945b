"""Small untrained runs over any vocabulary, as if they had been loaded from a folder."""

from pathlib import Path
from typing import Any

import torch

from backstory.config import EmbeddingConfig, LSTMConfig, ModelConfig, RunConfig, TextConfig
from backstory.data import Vocabulary
from backstory.data.tokenizers import vocabulary as vocabularies
from backstory.data.tokenizers.built_in import Tokenizer, tokenizer
from backstory.models import build_model
from backstory.runs.run import Run

TEXT = "The cat sat on the mat, and the dog (old) saw it.\nA cat is no dog; it costs 3.50 in all.\n\nThe mat was red.\n"


def run_of(vocabulary: Vocabulary, core: Any = None, folder: Path = Path("nowhere"), **parts: Any) -> Run:
    """A run whose predictions are far from uniform."""
    config = ModelConfig(embedding=EmbeddingConfig(7), core=core or LSTMConfig(layers=2, hidden=9), **parts)
    torch.manual_seed(0)
    model = build_model(config, len(vocabulary))
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.mul_(3)
    corpus = {"name": "none", "fingerprint": "0", "types": len(vocabulary), "provenance": "none"}
    return Run(folder, model.eval(), vocabulary, RunConfig(text=TextConfig(corpus="none"), model=config), corpus, {})


def vocabulary_of(
    name: str | Tokenizer, text: str = TEXT, lowercase: bool = False, minimum_count: int = 1, closed: bool = False
) -> Vocabulary:
    """The vocabulary of a text."""
    rule = tokenizer(name) if isinstance(name, str) else name
    counts: dict[str, int] = {}
    for tokens in vocabularies.tokenize([text], rule, lowercase):
        for token in tokens:
            counts[token] = counts.get(token, 0) + 1
    return vocabularies.build(counts, rule, lowercase, minimum_count, closed=closed)
