"""A Hugging Face causal language model as a `LanguageModel`: its own code computes the vectors and the scores.

The output layer is taken out of the model, so that a score costs one row of logits and not a table of them. Its cache becomes
an explicit state (`hf_cache`).
"""

import copy
import inspect
from collections.abc import Iterator
from contextlib import nullcontext
from dataclasses import dataclass, replace
from typing import Any, Literal, NamedTuple

import torch
from torch import Tensor, nn
from torch.autograd.graph import saved_tensors_hooks

from backstory.interop.hf_cache import Layout
from backstory.models import Activations, Capabilities, LanguageModel, Prediction, Softmax
from backstory.models.kernels.linear_log_prob import CHUNK
from backstory.models.positions import steps_at
from backstory.models.prediction import scored_once

WHOLE = 1024
"""Maximum context of a model without a usable cache, unless its settings say less, because every block rereads it."""
CACHES = ("cache", "past_key_values", "cache_params", "state", "mems")
"""Names of the cache in models; from transformers 5.24 on it is `cache`."""
LONGEST = ("max_position_embeddings", "n_positions", "max_seq_len", "n_ctx", "seq_length", "max_target_positions")
"""Names of the longest text in settings."""

Way = Literal["blocks", "steps", "whole"]
"""Ways to continue from a model's cache: any number of tokens, one at a time, or not at all."""


class HuggingFaceState(NamedTuple):
    """State of B rows."""

    cached: Tensor
    """(B,) tokens that the cache holds; 0: its content is ignored."""
    tokens: Tensor
    """(B, n) tokens of the window; n is 0 where they are not needed."""
    cache: dict[str, Tensor]
    """The cache, taken apart (`Layout`)."""


class OutputLayer(nn.Module):
    """Stand-in for a model's output layer that stores the layer's input."""

    def __init__(self, layer: nn.Module) -> None:
        super().__init__()
        self.layer = layer
        self.input: Tensor | None = None
        self.output: Tensor | None = None
        """Returned instead, if set."""

    @property
    def weight(self) -> Tensor:
        """The layer's own, since models ask for its type."""
        return self.layer.weight  # type: ignore[return-value]

    def forward(self, hidden: Tensor) -> Tensor:
        if self.output is not None:
            return self.output
        self.input = hidden
        return hidden[..., :1]


class _FixedBody(nn.Module):
    """Stand-in for a model's body that returns the vectors it holds."""

    def __init__(self) -> None:
        super().__init__()
        self.last_hidden_state: Tensor | None = None

    def forward(self, *args: Any, **kwargs: Any) -> "_FixedBody":
        return self

    def __getitem__(self, index: int) -> Tensor | None:
        return self.last_hidden_state if index == 0 else None

    def __getattr__(self, name: str) -> Any:
        try:
            return super().__getattr__(name)
        except AttributeError:
            return None


class Finish:
    """Processing of the logits after the output layer (a scale, a soft cap), by the model's own code without its body."""

    def __init__(self, causal: nn.Module, output: OutputLayer) -> None:
        """`causal`: a model whose output layer is `output`."""
        body_name = getattr(causal, "base_model_prefix", "")
        parent, name = _parent(causal, output)
        self.shell, self.body, self.output = copy.copy(causal), _FixedBody(), OutputLayer(output.layer)
        self.shell._modules = {**causal._modules, body_name: self.body}
        if parent is causal:
            self.shell._modules[name] = self.output

    def __call__(self, hidden: Tensor) -> Tensor:
        """Return the finished logits (N, V) of vectors (N, D)."""
        self.body.last_hidden_state = hidden[None]
        self.output.output = self.output.layer(hidden[None])
        try:
            tokens = torch.zeros(1, len(hidden), dtype=torch.long, device=hidden.device)
            return self.shell(input_ids=tokens).logits[0]
        finally:
            self.body.last_hidden_state = self.output.output = None


@dataclass(frozen=True, eq=False)
class Finished(Prediction):
    """softmax(f(output layer(hidden))), f being what the model does to its logits."""

    hidden: Tensor
    """(B, T, D)"""
    finish: Finish

    @scored_once
    def log_prob(self, targets: Tensor) -> Tensor:
        rows = max(1, CHUNK // self.finish.output.weight.shape[0])
        pairs = zip(self.hidden.flatten(0, 1).split(rows), targets.flatten().split(rows), strict=True)
        return torch.cat([self._table(h).gather(1, t[:, None])[:, 0] for h, t in pairs]).view(targets.shape)

    def log_probs(self) -> Tensor:
        return self._table(self.hidden.flatten(0, 1)).unflatten(0, self.hidden.shape[:2])

    def select(self, rows: Tensor, times: Tensor) -> "Finished":
        return replace(self, activations=self._selected(rows, times), hidden=steps_at(self.hidden, rows, times))

    def _table(self, hidden: Tensor) -> Tensor:
        logits = self.finish(hidden)
        return torch.log_softmax(logits, -1, dtype=torch.promote_types(logits.dtype, torch.float32))


class OutputNotCalledError(Exception):
    """The code of a model does not call its output layer, whose input is then unknown."""


class HuggingFaceModel(LanguageModel):
    """Reads with the model's own forward pass, from its cache where that gives what the whole text gives.

    Where the settings say how long a text may be, a window slides: when it is full, the older half, or `stride` tokens, is
    forgotten and the rest read again, so that a token has between half the window and all of it before it. The windows do not
    depend on how the text is cut into blocks.
    """

    def __init__(self, causal: nn.Module) -> None:
        """Takes the output layer, a linear one, out of the model, which is then no longer usable by itself."""
        super().__init__()
        layer = causal.get_output_embeddings()  # type: ignore[operator]
        output = OutputLayer(layer)
        parent, name = _parent(causal, layer)
        setattr(parent, name, output)
        self.causal, self.head, self._output = causal, layer, [output]
        self.embedding = causal.get_input_embeddings()  # type: ignore[operator]
        self.finish: Finish | None = None
        self.way: Way = "whole"
        self.stride: int | None = None
        """Tokens by which a full window moves on; None: half of it."""
        self.row_by_row = False
        """True if single tokens are read a row at a time, as the model's own code fails with several rows."""
        self.layout: Layout | None = None
        # A model around another, as peft makes it, hands on what it does not name.
        inner: Any = getattr(causal, "get_base_model", lambda: causal)()
        named = set(inspect.signature(inner.forward).parameters)
        self.cache_name = next((name for name in CACHES if name in named), None)
        self.use_way("whole")

    def use_way(self, way: Way, layout: Layout | None = None, row_by_row: bool = False) -> None:
        """Read in this way from now on, and declare the capabilities that follow from it."""
        self.way, self.layout, self.row_by_row = way, layout, row_by_row
        self.grows = layout is None or all(0 in leaf.shape for leaf in layout.leaves.values())
        length = longest(self.causal)
        recurrent = layout is not None and not layout.grows
        # For a model without a window, the longest text is the most that it reads at once.
        self.most = length if recurrent else None
        self.switch = None if recurrent else switch_length(self.causal)
        limit = None if recurrent else length
        if way == "whole":
            limit = min(length or WHOLE, WHOLE)
        self.capabilities = Capabilities(
            recurrent=recurrent, maximum_length=limit, slides=limit is not None, keeps=(limit or 0) // 2,
            rereads=way == "whole", shares_products=has_experts(self.causal),
        )  # fmt: skip

    def set_window(self, length: int, stride: int | None) -> None:
        """Let a window of this length slide, by `stride` tokens (None: half of it), over a longer text."""
        self.stride = stride
        keeps = length // 2 if stride is None else length - stride
        self.capabilities = replace(self.capabilities, maximum_length=length, slides=True, keeps=keeps)

    @property
    def vocabulary_size(self) -> int:
        return self._output[0].weight.shape[0]

    def start(self, batch_size: int) -> HuggingFaceState:
        device = self._output[0].weight.device
        cached, tokens = (torch.zeros(batch_size, *s, dtype=torch.long, device=device) for s in ((), (0,)))
        cache = {} if self.layout is None else self.layout.start(batch_size, device)
        return HuggingFaceState(cached, tokens, cache)

    def forward(self, tokens: Tensor, state: HuggingFaceState) -> tuple[Prediction, HuggingFaceState]:
        limit, length = self.capabilities.maximum_length, state.tokens.shape[1]
        vectors, done = [], 0
        while done < tokens.shape[1]:
            if limit is not None and length == limit:
                state = self._slid(state)
                length = state.tokens.shape[1]
            # A token is read with the frequencies that the model has when this token is its last.
            ends = [end for end in (limit, self.switch) if end is not None and end > length]
            room = min(ends, default=length + tokens.shape[1]) - length
            if length == self.switch:
                state = state._replace(cached=torch.zeros_like(state.cached))
            piece = tokens[:, done : done + room]
            hidden, state = self._read(piece, state)
            vectors.append(hidden)
            done, length = done + piece.shape[1], state.tokens.shape[1]
        return self.predicted(tokens, torch.cat(vectors, 1)), state

    def predicted(self, tokens: Tensor, hidden: Tensor) -> Prediction:
        """Return the prediction of the output layer from vectors (B, T, D)."""
        activations = Activations(self.embedding(tokens), (hidden,), hidden, hidden, hidden)
        if self.finish is not None:
            return Finished(activations, hidden, self.finish)
        return Softmax(activations, hidden, self.head.weight, self.head.bias)

    def _slid(self, state: HuggingFaceState) -> HuggingFaceState:
        """Return the later part of a full window, to be read again with the next tokens."""
        first = state.tokens.shape[1] - self.capabilities.keeps
        return state._replace(cached=torch.zeros_like(state.cached), tokens=state.tokens[:, first:])

    def _read(self, new: Tensor, state: HuggingFaceState) -> tuple[Tensor, HuggingFaceState]:
        """Return the vectors (B, T, D) of tokens (B, T) that fit into the window, and the state after them."""
        window = torch.cat([state.tokens, new], 1)
        rows, steps = new.shape
        known = 0 if self.layout is None else int(state.cached[0])
        cache = self.layout.cache_of(state.cache) if self.layout is not None and known else None
        inputs = new if known else window
        vectors = []
        for piece in self._pieces(inputs, bool(known)):
            hidden, cache = self._step(piece, cache)
            vectors.append(hidden)
        hidden = torch.cat(vectors, 1)[:, inputs.shape[1] - steps :]
        remembered = window if self.capabilities.maximum_length is not None else window[:, :0]
        if self.layout is None:
            return hidden, state._replace(tokens=remembered)
        count = state.cached + steps if known else torch.full_like(state.cached, inputs.shape[1])
        return hidden, HuggingFaceState(count, remembered, self.layout.state_of(cache, rows, new.device))

    def _pieces(self, tokens: Tensor, begun: bool) -> Iterator[Tensor]:
        """Yield the tokens in pieces that are read at once."""
        most = 1 if begun and self.way == "steps" else self.most or tokens.shape[1]
        if self.way == "steps" and not begun:
            yield tokens[:, :most]
            tokens, most = tokens[:, most:], 1
        yield from tokens.split(most, 1) if tokens.shape[1] else ()

    def _step(self, tokens: Tensor, cache: Any) -> tuple[Tensor, Any]:
        if self.row_by_row and cache is not None and tokens.shape == (len(tokens), 1) and len(tokens) > 1:
            return self._each_row(tokens, cache)
        return self.body(tokens, cache, self.layout is not None)

    def _each_row(self, tokens: Tensor, cache: Any) -> tuple[Tensor, Any]:
        assert self.layout is not None
        state = self.layout.state_of(cache, len(tokens), tokens.device)
        vectors, states = [], []
        for row in range(len(tokens)):
            row_state = {name: tensor[row : row + 1] for name, tensor in state.items()}
            hidden, after = self.body(tokens[row : row + 1], self.layout.cache_of(row_state))
            vectors.append(hidden)
            states.append(self.layout.state_of(after, 1, tokens.device))
        joined = {name: torch.cat([row_state[name] for row_state in states]) for name in state}
        return torch.cat(vectors), self.layout.cache_of(joined)

    def body(self, tokens: Tensor, cache: Any = None, caching: bool = True) -> tuple[Tensor, Any]:
        """Return the output layer's input (B, T, D) for tokens (B, T) after a cache, which is changed, and the new cache.

        Raises OutputNotCalledError.
        """
        past = {self.cache_name: cache} if cache is not None and self.cache_name else {}
        # A gradient needs the tensors that a model then overwrites in its cache.
        copies = torch.is_grad_enabled() and not self.grows
        with saved_tensors_hooks(_copied, lambda tensor: tensor) if copies else nullcontext():
            result = self.causal(input_ids=tokens, use_cache=caching and self.cache_name is not None, **past)
        (output,) = self._output
        hidden, output.input = output.input, None
        if hidden is None:
            raise OutputNotCalledError
        return hidden, None if self.cache_name is None else getattr(result, self.cache_name, None)


def _copied(tensor: Tensor) -> Tensor:
    return tensor if isinstance(tensor, nn.Parameter) else tensor.clone()


def longest(causal: nn.Module) -> int | None:
    """Return the longest text that the settings of a model allow; None if they do not say.

    Models like RoBERTa number their positions from behind the padding's, and have as many fewer.
    """
    config: Any = causal.config
    decoder = config.get_text_config(decoder=True)
    lengths = (getattr(decoder, name, None) for name in LONGEST)
    length = next((int(n) for n in lengths if isinstance(n, int) and n > 0), None)
    if length is None:
        return None
    positions = (m for name, m in causal.named_modules() if "position" in name and isinstance(m, nn.Embedding))
    padded = (m.padding_idx + 1 for m in positions if m.padding_idx is not None and m.num_embeddings == length)
    return length - max(padded, default=0)


def has_experts(causal: nn.Module) -> bool:
    """Return True for a mixture of experts: a product has as many rows as there are tokens that an expert receives."""
    return any("expert" in f"{name}.{type(module).__name__}".lower() for name, module in causal.named_modules())


def switch_length(causal: nn.Module) -> int | None:
    """Return the longest text that a model reads with its short rotary frequencies, after which all change (LongRoPE)."""
    rope: Any = getattr(causal.config.get_text_config(decoder=True), "rope_parameters", None) or {}  # type: ignore[operator]
    parts = [rope, *rope.values()]  # of all layers alike, or by the type of the layer
    switching = [part for part in parts if isinstance(part, dict) and part.get("rope_type") == "longrope"]
    return min((part["original_max_position_embeddings"] for part in switching), default=None)


def _parent(causal: nn.Module, layer: nn.Module) -> tuple[nn.Module, str]:
    """Return the module that a layer is part of, and its name there."""
    return next((m, name) for m in causal.modules() for name, child in m._modules.items() if child is layer)
