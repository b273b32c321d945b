"""Dataclasses that describe a run, read from and written to strict YAML; this room imports no torch."""

from backstory.config.cores import LSTMConfig, MogrifierConfig
from backstory.config.errors import NonFiniteError, UserError, check_name, nearest, plural
from backstory.config.schema import (
    DualConfig,
    EmbeddingConfig,
    GateConfig,
    MixtureConfig,
    ModelConfig,
    NoBufferConfig,
    NoDualConfig,
    RecallConfig,
    RewardConfig,
    RunConfig,
    SecondSoftmaxConfig,
    SoftmaxConfig,
    SpanBufferConfig,
    TextConfig,
    TrainingConfig,
)
from backstory.config.strict import changes, from_dict, from_yaml, to_dict, to_yaml, validate

__all__ = [
    "DualConfig",
    "EmbeddingConfig",
    "GateConfig",
    "LSTMConfig",
    "MixtureConfig",
    "ModelConfig",
    "MogrifierConfig",
    "NoBufferConfig",
    "NoDualConfig",
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
    "changes",
    "check_name",
    "from_dict",
    "from_yaml",
    "nearest",
    "plural",
    "to_dict",
    "to_yaml",
    "validate",
]
