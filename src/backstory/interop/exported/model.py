"""The model as a causal language model of transformers: embedding, core, dual connection, head and auxiliary prediction.

Logits are log-probabilities: they sum to one already, so that their softmax is the model's own distribution.
"""

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from transformers import GenerationMixin, PretrainedConfig, PreTrainedModel, PreTrainedTokenizerFast
from transformers.modeling_outputs import CausalLMOutputWithPast

from backstory.interop.exported.buffers import AUXILIARY
from backstory.interop.exported.cores import CORES, Settings, State

CACHE = "cache" if "cache" in CausalLMOutputWithPast.__dataclass_fields__ else "past_key_values"
"""Name of the cache that `forward` takes and returns: `past_key_values` before transformers 5.24."""


class BackstoryConfig(PretrainedConfig):
    """A language model by its parts: `parts` is the `model` section of a recipe of Backstory, in plain values."""

    model_type = "backstory"

    def __init__(
        self,
        vocab_size: int = 2,
        parts: Settings | None = None,
        weights: str | None = None,
        bos_token_id: int | None = 0,
        tie_word_embeddings: bool = True,
        use_cache: bool = True,
        **settings: Any,
    ) -> None:
        """`weights` is the SHA-256 (hex) of the weights that were exported, as results of the run record it."""
        self.vocab_size, self.parts, self.weights, self.use_cache = vocab_size, parts, weights, use_cache
        tied = tie_word_embeddings
        if parts is not None:
            tied = bool(parts["head"]["tied"])
            settings["hidden_size"], settings["num_hidden_layers"] = _shape(parts)
        settings |= {"bos_token_id": bos_token_id, "tie_word_embeddings": tied}
        super().__init__(**settings)


def _shape(parts: Settings) -> tuple[int, int]:
    """Return the size of the vectors that the head reads, and the number of layers."""
    with torch.device("meta"):
        model = Composed(parts, 1)
    return model.sizes[-1], len(model.sizes)


class Dual(nn.Module):
    """ReLU(W_de e + W_dh h + b) of a word's vector and the core's output."""

    def __init__(self, settings: Settings, embedding: int, hidden: int) -> None:
        super().__init__()
        size = settings["size"] or embedding
        self.hidden_proj = nn.Linear(hidden, size)
        self.embedding_proj = nn.Linear(embedding, size, bias=False) if settings["direct"] else None

    def forward(self, embedded: Tensor, hidden: Tensor) -> Tensor:
        summed = self.hidden_proj(hidden)
        return torch.relu(summed if self.embedding_proj is None else summed + self.embedding_proj(embedded))


class Head(nn.Module):
    """A softmax, or a mixture of softmaxes. Tied weights are the embedding's."""

    bias: nn.Parameter | None

    def __init__(self, settings: Settings, embedding: nn.Embedding, inputs: int) -> None:
        super().__init__()
        types, size = embedding.weight.shape
        self.mixture = settings["kind"] == "mixture"
        own = size if self.mixture else inputs
        self.weight = (
            embedding.weight if settings["tied"] else nn.Parameter(torch.zeros(types, own).uniform_(-0.1, 0.1))
        )
        self.register_parameter("bias", nn.Parameter(torch.zeros(types)) if settings["bias"] else None)
        if self.mixture:
            self.latent = nn.Linear(inputs, settings["experts"] * size)
            self.prior = nn.Linear(inputs, settings["experts"], bias=False)

    def forward(self, hidden: Tensor) -> Tensor:
        """Return log-probabilities (..., V) of vectors (..., D)."""
        if not self.mixture:
            return wide_log_softmax(nn.functional.linear(hidden, self.weight, self.bias))
        latents = torch.tanh(self.latent(hidden)).unflatten(-1, (-1, self.weight.shape[1]))
        experts = wide_log_softmax(nn.functional.linear(latents, self.weight, self.bias))
        return torch.logsumexp(experts + wide_log_softmax(self.prior(hidden)).unsqueeze(-1), -2)


class Gated(nn.Module):
    """(1 - lambda) p + lambda q of the head's prediction p and an auxiliary one, q."""

    def __init__(self, settings: Settings, size: int, embedding: int) -> None:
        super().__init__()
        self.second = AUXILIARY[settings["kind"]](settings, size, embedding)
        self.policy = nn.Linear(size, 2, bias=False)
        self.temperature = settings["gate"]["temperature"]

    def forward(self, hidden: Tensor, head: Head, auxiliary: Settings) -> Tensor:
        """Return log-probabilities (B, K, V) at states (B, K, D)."""
        p, (to_q, to_p) = head(hidden), self.policy(hidden).unbind(2)
        if "evidence" in auxiliary:
            to_q = to_q + auxiliary["evidence"]
        if "present" in auxiliary:
            to_q = to_q.masked_fill(~auxiliary["present"], -torch.inf)
        log_q, log_p = wide_log_softmax(torch.stack([to_q, to_p], 2) / self.temperature).unsqueeze(3).unbind(2)
        if "vectors" in auxiliary:
            q = head(auxiliary["vectors"])
        else:  # a pointer: a word has the weight of the places where it stands
            mass = torch.zeros_like(p).scatter_add(2, auxiliary["words"], auxiliary["weights"].to(p.dtype))
            tiny = mass < torch.finfo(mass.dtype).tiny
            q = mass.masked_fill(tiny, 1.0).log().masked_fill(tiny, -torch.inf)
        return torch.logaddexp(log_p + p, log_q + q)


def wide_log_softmax(logits: Tensor) -> Tensor:
    return torch.log_softmax(logits, -1, dtype=torch.promote_types(logits.dtype, torch.float32))


class Composed(nn.Module):
    """The parts; `sizes` are those of the layers' outputs, of which the head reads the last."""

    def __init__(self, parts: Settings, types: int) -> None:
        super().__init__()
        size, core, head = parts["embedding"]["size"], parts["core"], parts["head"]
        tied = head["kind"] == "softmax" and head["tied"]
        self.embedding = nn.Embedding(types, size)
        nn.init.uniform_(self.embedding.weight, -0.1, 0.1)
        self.core = CORES[core["kind"]](core, size, core["output"] or (size if tied else None))
        self.sizes, self.dual, self.gated = list(self.core.sizes), None, None
        if parts["dual"]["kind"] == "dual":
            self.dual = Dual(parts["dual"], size, self.sizes[-1])
            self.sizes.append(self.dual.hidden_proj.out_features)
        self.head = Head(head, self.embedding, self.sizes[-1])
        if parts["buffer"]["kind"] != "none":
            self.gated = Gated(parts["buffer"], self.sizes[-1], size)

    def start(self, rows: int, like: Tensor) -> State:
        """Return the state before the first token of these many texts."""
        return self.core.start(rows, like), () if self.gated is None else self.gated.second.start(rows, like)

    def forward(
        self, embedded: Tensor, state: State, tokens: Tensor | None, last: int
    ) -> tuple[Tensor, State, tuple[Tensor, ...]]:
        """Read embedded words (B, T, E), by their tokens if they are known, from a state.

        Return the log-probabilities (B, K, V) at the last K positions, the state, and the vectors (B, T, ...) of the words and
        of every layer.
        """
        core_state, auxiliary_state = state
        layers, core_state = self.core(embedded, core_state, tokens)
        if self.dual is not None:
            layers = [*layers, self.dual(embedded, layers[-1])]
        hidden, shown = layers[-1], slice(embedded.shape[1] - last, None)
        if self.gated is None:
            log_probs = self.head(hidden[:, shown])
        else:
            second = self.gated.second(hidden, tokens, self.embedding.weight, auxiliary_state)
            auxiliary_state = second.pop("state")
            log_probs = self.gated(hidden[:, shown], self.head, {name: part[:, shown] for name, part in second.items()})
        return log_probs, (core_state, auxiliary_state), (embedded, *layers)


def map_state(function: Callable[[Tensor], Tensor], state: State) -> State:
    """Return the same tree with `function` applied to each tensor."""
    if isinstance(state, Tensor):
        return function(state)
    if isinstance(state, dict):
        return {name: map_state(function, part) for name, part in state.items()}
    return type(state)(map_state(function, part) for part in state)


def tensors_of(state: State) -> Iterator[Tensor]:
    """Yield the tensors of a tree, in order."""
    if isinstance(state, Tensor):
        yield state
    else:
        for part in state.values() if isinstance(state, dict) else state:
            yield from tensors_of(part)


@dataclass
class StateCache:
    """The cache of `forward` and `generate`: the state of B rows, a tree of tensors with B first, after so many columns."""

    state: State
    length: int
    """Columns of `input_ids` that were passed, padding included."""
    is_compileable = False
    is_linear = (False,)
    """For transformers from 5.24 on: the cache knows how many tokens are in it."""

    def get_seq_length(self, layer_idx: int = 0) -> int:
        """Return how many tokens are in it, as any cache does."""
        return self.length

    def reorder_cache(self, beam_idx: Tensor) -> None:
        """Continue with these rows, in this order; a row may come several times."""
        self.state = rows_of(self.state, beam_idx)

    def batch_select_indices(self, indices: Tensor) -> None:
        """Keep these rows only."""
        self.reorder_cache(indices)

    def batch_repeat_interleave(self, repeats: int) -> None:
        """Repeat each row, the copies side by side."""
        self.state = map_state(lambda t: t.repeat_interleave(repeats, 0), self.state)


def rows_of(state: State, rows: Tensor) -> State:
    return map_state(lambda t: t.index_select(0, rows.to(t.device)), state)


def with_rows(state: State, rows: Tensor, new: State) -> State:
    """Return a state in which these rows are those of the new one."""
    tensors = tensors_of(new)
    return map_state(lambda t: t.index_copy(0, rows, next(tensors)), state)


class BackstoryForCausalLM(PreTrainedModel, GenerationMixin):
    """The model; `model` holds its parts. Evaluation and training read alike: there is no dropout."""

    config_class = BackstoryConfig
    base_model_prefix = "model"
    main_input_name = "input_ids"
    _tied_weights_keys = {"model.head.weight": "model.embedding.weight"}  # where the config says so  # noqa: RUF012
    _is_stateful = True  # what was read cannot be taken back token by token, so nothing is drafted

    def __init__(self, config: BackstoryConfig) -> None:
        super().__init__(config)
        self.model = Composed(config.parts or {}, config.vocab_size)
        self.post_init()

    def _init_weights(self, module: nn.Module) -> None:
        """The parts have initialised themselves."""

    @classmethod
    def from_pretrained(cls, *args: Any, output_loading_info: bool = False, **kwargs: Any) -> Any:
        """Load a model. Raises ValueError for a folder that lacks weights."""
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

    def set_input_embeddings(self, value: Any) -> None:
        self.model.embedding = value

    def get_output_embeddings(self) -> nn.Module:
        return self.model.head

    def resize_token_embeddings(self, new_num_tokens: int | None = None, *_: Any, **__: Any) -> nn.Module:
        """Give the vocabulary this many types; new ones have the mean of the others' weights. Returns the embedding."""
        embedding, head = self.model.embedding, self.model.head
        if new_num_tokens is None or new_num_tokens == len(embedding.weight):
            return embedding
        tied = head.weight is embedding.weight
        embedding.weight = _resized(embedding.weight, new_num_tokens)
        embedding.num_embeddings = self.config.vocab_size = new_num_tokens
        head.weight = embedding.weight if tied else _resized(head.weight, new_num_tokens)
        if head.bias is not None:
            head.bias = _resized(head.bias, new_num_tokens)
        return embedding

    def forward(
        self,
        input_ids: Tensor | None = None,
        attention_mask: Tensor | None = None,
        past_key_values: StateCache | None = None,
        inputs_embeds: Tensor | None = None,
        labels: Tensor | None = None,
        use_cache: bool | None = None,
        output_hidden_states: bool | None = None,
        output_attentions: bool | None = None,
        return_dict: bool | None = None,
        logits_to_keep: int | Tensor = 0,
        cache: StateCache | None = None,
        **kwargs: Any,
    ) -> Any:
        """Read tokens (B, T), or their vectors (B, T, E), from a cache, or from the start.

        The cache is `cache`, or `past_key_values` as transformers before 5.24 names it.
        A token whose `attention_mask` (B, T, or that of all columns so far) is 0 is not read: the row's state stays as it was,
        so that a row that is padded on the left begins at its own first token. There the logits are those of a uniform
        distribution, and hidden states are 0. `logits` is (B, T, V), or (B, K, V) of the last K positions with
        `logits_to_keep`, or of the positions (K,) in it; `labels` (B, T) are the `input_ids`, -100 where a token is not scored,
        and give the mean loss. `hidden_states` are the words' vectors and the output (B, T, H) of every layer, of which the
        head reads the last. The cache that comes out is a new one. Raises ValueError for `output_attentions`.
        """
        if (input_ids is None) == (inputs_embeds is None):
            raise ValueError("give either input_ids or inputs_embeds")
        if output_attentions:
            raise ValueError("this model has no attentions to give; leave output_attentions out")
        embedded = self.model.embedding(input_ids) if inputs_embeds is None else inputs_embeds
        rows, columns = embedded.shape[:2]
        cache = past_key_values if cache is None else cache
        state = self.model.start(rows, embedded.detach()) if cache is None else cache.state
        mask = None if attention_mask is None else attention_mask[:, -columns:].to(embedded.device).bool()
        by_position = isinstance(logits_to_keep, Tensor)
        last = columns if by_position else min(logits_to_keep or columns, columns)
        if mask is None or bool(mask.all()):
            logits, state, hidden = self.model(embedded, state, input_ids, last)
        else:
            logits, state, hidden = self._read_masked(embedded, input_ids, mask, state, last)
        if by_position:
            logits = logits[:, logits_to_keep]
        loss = None
        if labels is not None:
            loss = self.loss_function(logits=logits, labels=labels, vocab_size=self.config.vocab_size, **kwargs)
        past = None
        if self.config.use_cache if use_cache is None else use_cache:
            past = StateCache(state, columns + (0 if cache is None else cache.length))
        if output_hidden_states is None:
            output_hidden_states = self.config.output_hidden_states
        shown = hidden if output_hidden_states else None
        result = CausalLMOutputWithPast(loss=loss, logits=logits, hidden_states=shown, **{CACHE: past})  # type: ignore[arg-type]
        return result if (self.config.return_dict if return_dict is None else return_dict) else result.to_tuple()

    def _read_masked(
        self, embedded: Tensor, tokens: Tensor | None, mask: Tensor, state: State, last: int
    ) -> tuple[Tensor, State, tuple[Tensor, ...]]:
        """Return the logits of the last columns, the state and the hidden states, if rows leave columns out."""
        rows, columns = mask.shape
        types, first_column = self.config.vocab_size, columns - last
        dtype = torch.promote_types(embedded.dtype, torch.float32)  # as of any log-probabilities
        logits = torch.full((rows, last, types), -math.log(types), dtype=dtype, device=embedded.device)
        sizes = self.model.sizes
        hidden = [embedded.clone(), *(embedded.new_zeros(rows, columns, size) for size in sizes)]
        for first, end, read in stretches(mask):
            shown = max(end - max(first, first_column), 0)
            ids = None if tokens is None else tokens[read, first:end]
            # Of a stretch before the first column that is wanted, one is made and left.
            scores, after, vectors = self.model(embedded[read, first:end], rows_of(state, read), ids, max(shown, 1))
            state = with_rows(state, read, after)
            for all_rows, part in zip(hidden[1:], vectors[1:], strict=True):
                all_rows[read, first:end] = part.to(all_rows.dtype)
            if shown:
                logits[read, end - shown - first_column : end - first_column] = scores
        return logits, state, tuple(hidden)


def stretches(mask: Tensor) -> Iterator[tuple[int, int, Tensor]]:
    """Yield the stretches of columns between changes of a mask (B, T): first, end, and the rows (N,) that are read there."""
    changes = [0, *((mask[:, 1:] != mask[:, :-1]).any(0).nonzero().flatten() + 1).tolist(), mask.shape[1]]
    for first, end in zip(changes, changes[1:]):  # noqa: B905, RUF007
        read = mask[:, first].nonzero().flatten()
        if len(read):
            yield first, end, read


def _resized(weight: Tensor, types: int) -> nn.Parameter:
    """Return weights (V, ...) of this many types: the first of them, and their mean for new ones."""
    kept = weight.detach()[:types]
    new = weight.detach().mean(0, keepdim=True).expand(types - len(kept), *weight.shape[1:])
    return nn.Parameter(torch.cat([kept, new]), requires_grad=weight.requires_grad)


class BackstoryTokenizer(PreTrainedTokenizerFast):
    """A tokenizer of the run, whose `bos_token` and `eos_token` begin a text and end a line.

    They are no special tokens of the backend: written out they are text, and decoding keeps the ends of lines.
    """

    def _add_tokens(self, new_tokens: Any, special_tokens: bool = False) -> int:
        named = {self._special_tokens_map.get("bos_token"), self._special_tokens_map.get("eos_token")}
        return super()._add_tokens([token for token in new_tokens if str(token) not in named], special_tokens)
