"""Dataclasses that describe a run, read from and written to strict YAML; this room imports no torch."""

from backstory.config.errors import NonFiniteError, UserError, check_name, nearest, plural
from backstory.config.schema import (
    EmbeddingConfig,
    GateConfig,
    LSTMConfig,
    MixtureConfig,
    ModelConfig,
    MogrifierConfig,
    NoBufferConfig,
    RecallConfig,
    RewardConfig,
    RunConfig,
    SecondSoftmaxConfig,
    SoftmaxConfig,
    SpanBufferConfig,
    TextConfig,
    TrainingConfig,
)
from backstory.config.strict import from_dict, from_yaml, to_dict, to_yaml, validate

__all__ = [
    "EmbeddingConfig",
    "GateConfig",
    "LSTMConfig",
    "MixtureConfig",
    "ModelConfig",
    "MogrifierConfig",
    "NoBufferConfig",
    "NonFiniteError",
    "RecallConfig",
    "RewardConfig",
    "RunConfig",
    "SecondSoftmaxConfig",
    "SoftmaxConfig",
    "SpanBufferConfig",
    "TextConfig",
    "TrainingConfig",
    "UserError",
    "check_name",
    "from_dict",
    "from_yaml",
    "nearest",
    "plural",
    "to_dict",
    "to_yaml",
    "validate",
]
