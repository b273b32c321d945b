"""Dataclasses that describe a run, read from and written to strict YAML; this room imports no torch.

A module is imported when one of its names is first used: help needs none of the settings.
"""

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from backstory.config.cores import (
        DNCConfig,
        ExternalMemoryConfig,
        LSTMConfig,
        MDMConfig,
        MogrifierConfig,
        NTMConfig,
        TransformerConfig,
        TrellisConfig,
    )
    from backstory.config.errors import NonFiniteError, UserError, check_name, nearest, pasted, plural
    from backstory.config.schema import (
        AlgorithmConfig,
        AuxiliarySoftmaxConfig,
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
        SoftmaxConfig,
        SpanBufferConfig,
        TextConfig,
        TrainingConfig,
    )
    from backstory.config.strict import (
        between,
        changes,
        from_dict,
        from_saved,
        from_yaml,
        probability,
        to_dict,
        to_yaml,
        validate,
    )

_HOMES = {
    **dict.fromkeys(
        (
            "DNCConfig",
            "ExternalMemoryConfig",
            "LSTMConfig",
            "MDMConfig",
            "MogrifierConfig",
            "NTMConfig",
            "TransformerConfig",
            "TrellisConfig",
        ),
        "cores",
    ),
    **dict.fromkeys(("NonFiniteError", "UserError", "check_name", "nearest", "pasted", "plural"), "errors"),
    **dict.fromkeys(
        (
            "AlgorithmConfig",
            "AuxiliarySoftmaxConfig",
            "DualConfig",
            "EmbeddingConfig",
            "GateConfig",
            "MixtureConfig",
            "ModelConfig",
            "NoBufferConfig",
            "NoDualConfig",
            "RecallConfig",
            "RewardConfig",
            "RunConfig",
            "SoftmaxConfig",
            "SpanBufferConfig",
            "TextConfig",
            "TrainingConfig",
        ),
        "schema",
    ),
    **dict.fromkeys(
        ("between", "changes", "from_dict", "from_saved", "from_yaml", "probability", "to_dict", "to_yaml", "validate"),
        "strict",
    ),
}
"""The module of each name."""

__all__ = [
    "AlgorithmConfig",
    "AuxiliarySoftmaxConfig",
    "DNCConfig",
    "DualConfig",
    "EmbeddingConfig",
    "ExternalMemoryConfig",
    "GateConfig",
    "LSTMConfig",
    "MDMConfig",
    "MixtureConfig",
    "ModelConfig",
    "MogrifierConfig",
    "NTMConfig",
    "NoBufferConfig",
    "NoDualConfig",
    "NonFiniteError",
    "RecallConfig",
    "RewardConfig",
    "RunConfig",
    "SoftmaxConfig",
    "SpanBufferConfig",
    "TextConfig",
    "TrainingConfig",
    "TransformerConfig",
    "TrellisConfig",
    "UserError",
    "between",
    "changes",
    "check_name",
    "from_dict",
    "from_saved",
    "from_yaml",
    "nearest",
    "pasted",
    "plural",
    "probability",
    "to_dict",
    "to_yaml",
    "validate",
]


def __getattr__(name: str) -> Any:
    if name not in _HOMES:  # also for a module of this room: Python then imports it
        raise AttributeError(f"module 'backstory.config' has no attribute '{name}'")
    value = globals()[name] = getattr(importlib.import_module(f"backstory.config.{_HOMES[name]}"), name)
    return value


def __dir__() -> list[str]:
    return sorted(__all__)
