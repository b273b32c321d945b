"""Our models as models of Hugging Face: any core, head, dual connection and buffer as one `AutoModelForCausalLM`.

Logits are log-probabilities: they sum to one already, so that their softmax is the model's own distribution.
"""

import math
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import torch
from huggingface_hub.dataclasses import strict
from torch import Tensor, nn
from transformers import AutoConfig, AutoModelForCausalLM, GenerationMixin, PretrainedConfig, PreTrainedModel
from transformers.modeling_outputs import CausalLMOutputWithPast
from transformers.utils.generic import can_return_tuple

from backstory.config import ModelConfig, from_saved
from backstory.models import ComposedModel, Prediction, State, build_model, flatten, map_state

IGNORED = -100
"""The label of a token that is not scored."""


@strict
class BackstoryConfig(PretrainedConfig):
    """A language model by its parts; `parts` is our `model` section of a recipe, in plain values."""

    model_type = "backstory"

    vocab_size: int = 2
    parts: dict[str, Any] | None = None
    bos_token_id: int | None = 0
    """What is read before the first token of a text."""
    weights: str | None = None
    """SHA-256 (hex) of the weights that were exported, as results of the run record it."""
    tie_word_embeddings: bool = True
    use_cache: bool = True

    def __post_init__(self, **kwargs: Any) -> None:
        self.tie_word_embeddings = bool(self.model().head.tied)
        super().__post_init__(**kwargs)

    def model(self) -> ModelConfig:
        """The parts as a dataclass. Raises UserError for what is none."""
        return from_saved(ModelConfig, self.parts or {}, "config.json: parts")


@dataclass
class StateCache:
    """What `past_key_values` is here: the state of B rows, a tree of tensors with B first, after so many columns."""

    state: State
    length: int
    """Columns of `input_ids` that were passed, padding included."""
    is_compileable = False

    def get_seq_length(self, layer_idx: int = 0) -> int:
        """As of any cache: how many tokens are in it."""
        return self.length

    def reorder_cache(self, beam_idx: Tensor) -> None:
        """Go on with these rows, in this order; one may come several times."""
        self.state = _rows_of(self.state, beam_idx)

    def batch_select_indices(self, indices: Tensor) -> None:
        """Keep these rows only."""
        self.reorder_cache(indices)

    def batch_repeat_interleave(self, repeats: int) -> None:
        """Every row so many times, the copies side by side."""
        self.state = map_state(lambda t: t.repeat_interleave(repeats, 0), self.state)


class BackstoryForCausalLM(PreTrainedModel, GenerationMixin):
    """A composed model; `model` holds it."""

    config_class = BackstoryConfig
    base_model_prefix = "model"
    main_input_name = "input_ids"
    _tied_weights_keys = {"model.head.weight": "model.embedding.weight"}  # where the config says so  # noqa: RUF012
    _is_stateful = True  # what was read cannot be taken back token by token, so nothing is drafted

    def __init__(self, config: BackstoryConfig) -> None:
        super().__init__(config)
        self.model: ComposedModel = build_model(config.model(), config.vocab_size)
        self.post_init()

    def _init_weights(self, module: nn.Module) -> None:
        """The parts have initialised themselves, each in its own way."""

    @classmethod
    def from_pretrained(cls, *args: Any, output_loading_info: bool = False, **kwargs: Any) -> Any:
        """As of any model, but that a folder which lacks weights is a ValueError."""
        loaded: Any = super().from_pretrained(*args, output_loading_info=True, **kwargs)
        model, info = loaded
        if lost := sorted(info["missing_keys"]):
            raise ValueError(f"the folder lacks weights of its model: {', '.join(lost[:3])}")
        return (model, info) if output_loading_info else model

    @classmethod
    def _supports_default_dynamic_cache(cls) -> bool:
        return False  # the first call makes the state

    def get_input_embeddings(self) -> nn.Module:
        return self.model.embedding

    def get_output_embeddings(self) -> nn.Module:
        return self.model.head

    @can_return_tuple
    def forward(
        self,
        input_ids: Tensor,
        attention_mask: Tensor | None = None,
        past_key_values: StateCache | None = None,
        labels: Tensor | None = None,
        use_cache: bool | None = None,
        logits_to_keep: int | Tensor = 0,
        **kwargs: Any,
    ) -> CausalLMOutputWithPast:
        """Read tokens (B, T) from a cache, or from the start.

        A token whose `attention_mask` (B, T, or that of all columns so far) is 0 is not read: the row's state stays as it was,
        so that a row that is padded on the left begins at its own first token. There the logits are those of a uniform
        distribution. `logits` is (B, T, V), or (B, K, V) of the last K positions with `logits_to_keep`, or of the positions
        (K,) in it; `labels` (B, T) are the `input_ids`, -100 where a token is not scored, and give the mean loss. The cache
        that comes out is a new one.
        """
        rows, columns = input_ids.shape
        state = self.model.start(rows) if past_key_values is None else past_key_values.state
        mask = None if attention_mask is None else attention_mask[:, -columns:].to(input_ids.device).bool()
        chosen = isinstance(logits_to_keep, Tensor)
        kept = columns if chosen else min(logits_to_keep or columns, columns)
        if mask is None or bool(mask.all()):
            prediction, state = self.model(input_ids, state)
            logits = _last(prediction, rows, columns, kept)
        else:
            logits, state = self._read_masked(input_ids, mask, state, kept)
        if chosen:
            logits = logits[:, logits_to_keep]
        loss = None
        if labels is not None:
            loss = self.loss_function(logits=logits, labels=labels, vocab_size=self.config.vocab_size, **kwargs)
        past = None
        if self.config.use_cache if use_cache is None else use_cache:
            past = StateCache(state, columns + (past_key_values.length if past_key_values is not None else 0))
        return CausalLMOutputWithPast(loss=loss, logits=logits, past_key_values=past)  # type: ignore[arg-type]

    def _read_masked(self, tokens: Tensor, mask: Tensor, state: State, kept: int) -> tuple[Tensor, State]:
        """The logits of the last columns and the state, where rows leave columns out."""
        rows, columns = tokens.shape
        types, first_kept = self.config.vocab_size, columns - kept
        dtype = torch.promote_types(self.dtype, torch.float32)  # as of any log-probabilities
        logits = torch.full((rows, kept, types), -math.log(types), dtype=dtype, device=tokens.device)
        for first, end, read in _stretches(mask):
            prediction, after = self.model(tokens[read, first:end], _rows_of(state, read))
            state = _with_rows(state, read, after)
            if (shown := min(end - first, end - first_kept)) > 0:
                found = _last(prediction, len(read), end - first, shown)
                logits[read, end - shown - first_kept : end - first_kept] = found
        return logits, state


def _stretches(mask: Tensor) -> Iterator[tuple[int, int, Tensor]]:
    """The columns of a mask (B, T) cut where it changes: first, end, and the rows (N,) that are read there, if any are."""
    changes = (mask[:, 1:] != mask[:, :-1]).any(0).nonzero().flatten() + 1
    for first, end in pairwise([0, *changes.tolist(), mask.shape[1]]):
        read = mask[:, first].nonzero().flatten()
        if len(read):
            yield first, end, read


def _last(prediction: Prediction, rows: int, columns: int, count: int) -> Tensor:
    """The log-probabilities of the last positions of (rows, columns), (rows, count, V)."""
    if count == columns:
        return prediction.log_probs()
    index = torch.arange(rows).repeat_interleave(count), torch.arange(columns - count, columns).repeat(rows)
    return prediction.select(*index).log_probs().view(rows, count, -1)


def _rows_of(state: State, rows: Tensor) -> State:
    return map_state(lambda t: t.index_select(0, rows.to(t.device)), state)


def _with_rows(state: State, rows: Tensor, new: State) -> State:
    """A state with the new one's rows in the place of these."""
    tensors = iter(flatten(new).values())
    return map_state(lambda t: t.index_copy(0, rows, next(tensors)), state)


AutoConfig.register(BackstoryConfig.model_type, BackstoryConfig, exist_ok=True)
AutoModelForCausalLM.register(BackstoryConfig, BackstoryForCausalLM, exist_ok=True)
