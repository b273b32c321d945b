"""Dataclasses that describe a run, read from and written to strict YAML; this package imports no torch.

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
    from backstory.config.model_parts import (
        AuxiliarySoftmaxConfig,
        DualConfig,
        EmbeddingConfig,
        GateConfig,
        MixtureConfig,
        NoBufferConfig,
        NoDualConfig,
        RewardConfig,
        SoftmaxConfig,
        SpanBufferConfig,
    )
    from backstory.config.schema import (
        AlgorithmConfig,
        ModelConfig,
        RecallConfig,
        RunConfig,
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

_MODULES = ("strict", "cores", "model_parts", "schema")
"""The modules that the names come from; each imports those before it."""

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
    "RecallConfig",
    "RewardConfig",
    "RunConfig",
    "SoftmaxConfig",
    "SpanBufferConfig",
    "TextConfig",
    "TrainingConfig",
    "TransformerConfig",
    "TrellisConfig",
    "between",
    "changes",
    "from_dict",
    "from_saved",
    "from_yaml",
    "probability",
    "to_dict",
    "to_yaml",
    "validate",
]


def __getattr__(name: str) -> Any:
    if name in __all__:
        for module in _MODULES:
            home = importlib.import_module(f"backstory.config.{module}")
            if hasattr(home, name):
                value = globals()[name] = getattr(home, name)
                return value
    # Python then looks for a module of this package.
    raise AttributeError(f"module 'backstory.config' has no attribute '{name}'")


def __dir__() -> list[str]:
    return sorted(__all__)
