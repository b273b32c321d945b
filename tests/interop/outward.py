"""Models of every kind of part as models of Hugging Face."""

from typing import Any

import torch

from backstory.config import (
    DualConfig,
    EmbeddingConfig,
    GateConfig,
    LSTMConfig,
    MixtureConfig,
    ModelConfig,
    MogrifierConfig,
    SecondSoftmaxConfig,
    SoftmaxConfig,
    SpanBufferConfig,
    to_dict,
)
from backstory.interop.modeling import BackstoryConfig, BackstoryForCausalLM

TYPES = 13
EMBEDDING = EmbeddingConfig(7)
LSTM = LSTMConfig(layers=2, hidden=9)
MOGRIFIER = MogrifierConfig(layers=2, hidden=9, rank=3)


def buffer(**settings: Any) -> SpanBufferConfig:
    chosen: dict[str, Any] = {"size": 6, "span": 2, "gate": GateConfig(temperature=1.0)}
    return SpanBufferConfig(**chosen | settings)


KINDS: dict[str, ModelConfig] = {
    "lstm": ModelConfig(EMBEDDING, LSTM),
    "lstm, untied": ModelConfig(EMBEDDING, LSTM, SoftmaxConfig(tied=False, bias=False)),
    "lstm, mixture": ModelConfig(EMBEDDING, LSTM, MixtureConfig(experts=3)),
    "mogrifier": ModelConfig(EMBEDDING, MOGRIFIER),
    "dual mogrifier": ModelConfig(EMBEDDING, MOGRIFIER, dual=DualConfig()),
    "span buffer": ModelConfig(EMBEDDING, LSTM, buffer=buffer()),
    "span buffer on a grid": ModelConfig(EMBEDDING, LSTM, buffer=buffer(slots="grid")),
    "pointer": ModelConfig(
        EMBEDDING,
        LSTM,
        buffer=buffer(vectors="words", values="following", prediction="pointer", attention="bilinear", sentinel=True),
    ),
    "second softmax": ModelConfig(EMBEDDING, LSTM, buffer=SecondSoftmaxConfig()),
}


def wrapped(kind: str) -> BackstoryForCausalLM:
    """A model of that kind, with weights as large as after training, in evaluation mode."""
    torch.manual_seed(0)
    model = BackstoryForCausalLM(BackstoryConfig(vocab_size=TYPES, parts=to_dict(KINDS[kind])))
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.mul_(5)
    return model.eval()


def random_ids(rows: int, columns: int, seed: int = 0) -> torch.Tensor:
    return torch.randint(TYPES, (rows, columns), generator=torch.Generator().manual_seed(seed))
