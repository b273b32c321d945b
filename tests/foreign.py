"""Small Hugging Face models of many kinds, randomly initialised; skips where the extra hf is missing."""

from pathlib import Path
from typing import Any

import pytest
import torch
from subwords import byte_level

SIZES: dict[str, dict[str, Any]] = {
    "GPT2": {"n_embd": 16, "n_layer": 2, "n_head": 2, "n_positions": 16},
    "Llama": {"intermediate_size": 32, "max_position_embeddings": 64, "attention_dropout": 0.2},
    "Mistral": {"intermediate_size": 32, "max_position_embeddings": 64, "num_key_value_heads": 1, "sliding_window": 6},
    "Gemma2": {
        "intermediate_size": 32, "max_position_embeddings": 64, "num_key_value_heads": 1, "head_dim": 8, "sliding_window": 6,
    },
    "Cohere": {"intermediate_size": 32, "max_position_embeddings": 64},
    "OPT": {"ffn_dim": 32, "max_position_embeddings": 64, "word_embed_proj_dim": 16},
    "Bloom": {},
    "Mamba": {"state_size": 4},
    "Mamba2": {"state_size": 4, "num_heads": 4, "head_dim": 8, "n_groups": 1, "chunk_size": 8},
    "FalconMamba": {"state_size": 4},
    "Rwkv": {"context_length": 64},
    "xLSTM": {"hidden_size": 128, "num_blocks": 2},
    "RecurrentGemma": {"num_hidden_layers": 3, "intermediate_size": 32, "lru_width": 16, "attention_window_size": 8},
    "Mixtral": {
        "intermediate_size": 32, "max_position_embeddings": 64, "num_key_value_heads": 1, "num_local_experts": 4,
    },
    "Jamba": {
        "num_key_value_heads": 1, "intermediate_size": 32, "mamba_d_state": 4, "attn_layer_period": 2, "attn_layer_offset": 1,
        "num_experts": 2, "expert_layer_period": 2, "expert_layer_offset": 1, "max_position_embeddings": 64,
    },
}  # fmt: skip
"""Settings that make each of them small, beside a size of 16 and two layers of two heads."""


def config(kind: str, types: int, **changes: Any) -> Any:
    """The settings of a small model of a kind."""
    hf = pytest.importorskip("transformers", reason="needs the extra hf")
    hf.utils.logging.set_verbosity_error()
    usual = {"hidden_size": 16, "num_hidden_layers": 2, "num_attention_heads": 2, "num_heads": 2}
    special = {"bos_token_id": 0, "eos_token_id": 0, "pad_token_id": None}
    made = getattr(hf, f"{kind}Config")
    return made(vocab_size=types, **usual | special | SIZES.get(kind, {}) | changes)


def causal(kind: str, types: int = 17, spread: float | None = 0.3, **changes: Any) -> Any:
    """A small model, in evaluation mode; `spread` is the standard deviation of its matrices (None: as it comes).

    As they come, small models hardly depend on their context.
    """
    hf = pytest.importorskip("transformers", reason="needs the extra hf")
    settings = config(kind, types, **changes)
    torch.manual_seed(0)
    model = hf.AutoModelForCausalLM.from_config(settings).eval()
    with torch.no_grad():
        for parameter in model.parameters() if spread else ():
            if parameter.dim() > 1:
                parameter.normal_(0, spread)
    return model


def wrapped(kind: str, types: int = 17, **changes: Any) -> Any:
    """The same as one of ours."""
    pytest.importorskip("transformers", reason="needs the extra hf")
    from backstory.interop.model_checks import wrap

    return wrap(causal(kind, types, **changes), kind)


def saved(
    folder: Path,
    kind: str = "GPT2",
    text: str = "the cat sat on the mat. " * 40,
    types: int | None = None,
    **changes: Any,
) -> Any:
    """A small model saved with a tokenizer of bytes and of frequent words of a text; the model, which may know more types."""
    hf = pytest.importorskip("transformers", reason="needs the extra hf")
    tokenizer = hf.PreTrainedTokenizerFast(tokenizer_object=byte_level(text, 320), eos_token="<|endoftext|>")
    tokenizer.save_pretrained(folder)
    model = causal(kind, types or len(tokenizer), **changes)
    model.save_pretrained(folder)
    return model
