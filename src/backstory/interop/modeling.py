"""Our models and vocabularies in transformers: any composition of parts as one `AutoModelForCausalLM`, with a fast tokenizer.

Logits are log-probabilities: they sum to one already, so that their softmax is the model's own distribution.
"""

import json
import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import torch
from huggingface_hub.dataclasses import strict
from tokenizers import Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers, processors
from torch import Tensor, nn
from transformers import (
    AutoConfig,
    AutoModelForCausalLM,
    GenerationMixin,
    PretrainedConfig,
    PreTrainedModel,
    PreTrainedTokenizerFast,
)
from transformers.convert_slow_tokenizer import bytes_to_unicode
from transformers.modeling_outputs import CausalLMOutputWithPast
from transformers.utils.generic import can_return_tuple

from backstory.config import ModelConfig, from_saved
from backstory.data import Vocabulary
from backstory.data.tokenizers.built_in import BEGIN, END, UNKNOWN
from backstory.data.tokenizers.pieces import Pieces
from backstory.models import ComposedModel, Prediction, State, build_model, flatten, map_state

IGNORED = -100
"""Label of a token that is not scored."""


@strict
class BackstoryConfig(PretrainedConfig):
    """A language model by its parts; `parts` is our `model` section of a recipe, in plain values."""

    model_type = "backstory"

    vocab_size: int = 2
    parts: dict[str, Any] | None = None
    bos_token_id: int | None = 0
    """Token that is read before the first token of a text."""
    weights: str | None = None
    """SHA-256 (hex) of the weights that were exported, as results of the run record it."""
    tie_word_embeddings: bool = True
    use_cache: bool = True

    def __post_init__(self, **kwargs: Any) -> None:
        self.tie_word_embeddings = bool(self.model().head.tied)
        super().__post_init__(**kwargs)

    def model(self) -> ModelConfig:
        """Return the parts as a dataclass. Raises UserError for anything else."""
        return from_saved(ModelConfig, self.parts or {}, "config.json: parts")


@dataclass
class StateCache:
    """Value of `past_key_values`: the state of B rows, a tree of tensors with B first, after so many columns."""

    state: State
    length: int
    """Columns of `input_ids` that were passed, padding included."""
    is_compileable = False

    def get_seq_length(self, layer_idx: int = 0) -> int:
        """Return how many tokens are in it, as any cache does."""
        return self.length

    def reorder_cache(self, beam_idx: Tensor) -> None:
        """Continue with these rows, in this order; a row may come several times."""
        self.state = _rows_of(self.state, beam_idx)

    def batch_select_indices(self, indices: Tensor) -> None:
        """Keep these rows only."""
        self.reorder_cache(indices)

    def batch_repeat_interleave(self, repeats: int) -> None:
        """Repeat each row, the copies side by side."""
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
        by_position = isinstance(logits_to_keep, Tensor)
        last_columns = columns if by_position else min(logits_to_keep or columns, columns)
        if mask is None or bool(mask.all()):
            prediction, state = self.model(input_ids, state)
            logits = _last(prediction, rows, columns, last_columns)
        else:
            logits, state = self._read_masked(input_ids, mask, state, last_columns)
        if by_position:
            logits = logits[:, logits_to_keep]
        loss = None
        if labels is not None:
            loss = self.loss_function(logits=logits, labels=labels, vocab_size=self.config.vocab_size, **kwargs)
        past = None
        if self.config.use_cache if use_cache is None else use_cache:
            past = StateCache(state, columns + (past_key_values.length if past_key_values is not None else 0))
        return CausalLMOutputWithPast(loss=loss, logits=logits, past_key_values=past)  # type: ignore[arg-type]

    def _read_masked(self, tokens: Tensor, mask: Tensor, state: State, last_columns: int) -> tuple[Tensor, State]:
        """Return the logits of the last columns and the state, if rows leave columns out."""
        rows, columns = tokens.shape
        types, first_column = self.config.vocab_size, columns - last_columns
        dtype = torch.promote_types(self.dtype, torch.float32)  # as of any log-probabilities
        logits = torch.full((rows, last_columns, types), -math.log(types), dtype=dtype, device=tokens.device)
        for first, end, read in _stretches(mask):
            prediction, after = self.model(tokens[read, first:end], _rows_of(state, read))
            state = _with_rows(state, read, after)
            if (shown := min(end - first, end - first_column)) > 0:
                log_probs = _last(prediction, len(read), end - first, shown)
                logits[read, end - shown - first_column : end - first_column] = log_probs
        return logits, state


def _stretches(mask: Tensor) -> Iterator[tuple[int, int, Tensor]]:
    """Yield the stretches of columns between changes of a mask (B, T): first, end, and the rows (N,) that are read there."""
    changes = (mask[:, 1:] != mask[:, :-1]).any(0).nonzero().flatten() + 1
    for first, end in pairwise([0, *changes.tolist(), mask.shape[1]]):
        read = mask[:, first].nonzero().flatten()
        if len(read):
            yield first, end, read


def _last(prediction: Prediction, rows: int, columns: int, count: int) -> Tensor:
    """Return the log-probabilities (rows, count, V) of the last positions of (rows, columns)."""
    if count == columns:
        return prediction.log_probs()
    index = torch.arange(rows).repeat_interleave(count), torch.arange(columns - count, columns).repeat(rows)
    return prediction.select(*index).log_probs().view(rows, count, -1)


def _rows_of(state: State, rows: Tensor) -> State:
    return map_state(lambda t: t.index_select(0, rows.to(t.device)), state)


def _with_rows(state: State, rows: Tensor, new: State) -> State:
    """Return a state in which these rows are those of the new one."""
    tensors = iter(flatten(new).values())
    return map_state(lambda t: t.index_copy(0, rows, next(tensors)), state)


AutoConfig.register(BackstoryConfig.model_type, BackstoryConfig, exist_ok=True)
AutoModelForCausalLM.register(BackstoryConfig, BackstoryForCausalLM, exist_ok=True)


SPACE = r"\s\x1c-\x1f"
"""White space as Python has it, inside brackets."""
WORD = r"\p{L}\p{N}_"
"""Characters that Python's \\w matches, inside brackets; the \\w of these expressions differs."""
PADDING = ("<pad>", "[PAD]", "<|pad|>", "<|padding|>")
"""Names of the padding token in tokenizers."""
_BREAK = rf"\n[{SPACE}&&[^\n]]*\n[{SPACE}]*"
"""A blank line, as the tokenizer `regex` has it."""


def fast_tokenizer(vocabulary: Vocabulary) -> PreTrainedTokenizerFast:
    """Return the tokenizer of a prompt (`encode_prompt`): the last line or paragraph is not ended, and the token that is read
    before a text comes first, unless `add_special_tokens` is false.

    Decoding is `Vocabulary.decode`, as it goes on after a word: with a space before the first, since that is how pipelines put
    a prompt and what is new together. What pads is never read, so it is a token that there is anyway.
    """
    if isinstance(vocabulary.tokenizer, Pieces):
        return _pieces(vocabulary, vocabulary.tokenizer)
    if vocabulary.tokenizer.unit == "byte":
        tokenizer, padding = _bytes(vocabulary), bytes_to_unicode()[0]
    else:
        tokenizer, padding = _looked_up(vocabulary), _unknown(vocabulary) or vocabulary.words[0]
    tokenizer.post_processor = _begin(vocabulary, tokenizer)
    special = {"unk_token": _unknown(vocabulary), "pad_token": padding}
    # Special tokens that are written out in a text are no special tokens in it.
    return _wrapped(tokenizer, split_special_tokens=True, **special)


def _wrapped(tokenizer: Tokenizer, **settings: Any) -> PreTrainedTokenizerFast:
    options = {name: value for name, value in settings.items() if value is not None}
    return PreTrainedTokenizerFast(
        tokenizer_object=tokenizer,
        padding_side="left",
        clean_up_tokenization_spaces=False,
        model_input_names=["input_ids", "attention_mask"],
        **options,
    )


def _unknown(vocabulary: Vocabulary) -> str | None:
    return None if vocabulary.unknown is None else vocabulary.words[vocabulary.unknown]


def _begin(vocabulary: Vocabulary, tokenizer: Tokenizer) -> processors.PostProcessor:
    """Return the processor that puts the start token before a text."""
    token = tokenizer.id_to_token(vocabulary.start)
    # It goes by a name of its own, since a template gives a colon in a name a meaning.
    begin = {"id": "<start>", "ids": [vocabulary.start], "tokens": [token]}
    return processors.TemplateProcessing(single=["<start>", "$A"], pair=["<start>", "$A", "$B"], special_tokens=[begin])


def _normalizer(vocabulary: Vocabulary, *more: normalizers.Normalizer) -> normalizers.Normalizer:
    """Return a normalizer of line ends and case as in `encode_split` and the vocabulary, then `more`."""
    steps: list[normalizers.Normalizer] = []
    if vocabulary.tokenizer.unit != "byte":
        steps += [
            normalizers.Replace(Regex(r"\A\x{FEFF}"), ""),
            normalizers.Replace("\r\n", "\n"),
            normalizers.Replace("\r", "\n"),
        ]
    if vocabulary.lowercase:
        steps += [normalizers.Replace("Σ", "σ"), normalizers.Lowercase()]
    return normalizers.Sequence([*steps, *more])


def _looked_up(vocabulary: Vocabulary) -> Tokenizer:
    """Return a tokenizer of words or characters, each with its id in a table."""
    renamed = _MARKS if vocabulary.tokenizer.name == "marked-characters" else {}
    index = {renamed.get(word, word): i for word, i in vocabulary.index.items()}
    # Where nothing stands for the unknown, it is none of the words, so that an unknown one is refused.
    tokenizer = Tokenizer(models.WordLevel(index, unk_token=_unknown(vocabulary) or ""))
    steps = {"words": _words, "regex": _regex, "characters": _characters, "marked-characters": _marked}[
        vocabulary.tokenizer.name
    ]
    more, tokenizer.pre_tokenizer, tokenizer.decoder = steps()
    tokenizer.normalizer = _normalizer(vocabulary, *more)
    return tokenizer


Steps = tuple[Sequence[normalizers.Normalizer], pre_tokenizers.PreTokenizer, decoders.Decoder]


def _words() -> Steps:
    split = pre_tokenizers.Split(Regex(rf"[{SPACE}]+"), "removed")
    tidy = [decoders.Replace(" \n", "\n"), decoders.Replace("\n ", "\n")]
    return [normalizers.Replace("\n", f" {END} ")], split, _spaced("\n", *tidy)


def _regex() -> Steps:
    token = rf"{END}|<unk>|\p{{Nd}}+(?:[.,]\p{{Nd}}+)*(?![{WORD}])|[{WORD}]+(?:['’-][{WORD}]+)*|[^{SPACE}]"
    more = [
        normalizers.Replace(END, f"< {END[1:-1]} >"),  # written out it is three tokens
        normalizers.Replace(Regex(rf"\A[{SPACE}]+"), ""),
        normalizers.Replace(Regex(_BREAK), f" {END} "),
    ]
    tidy = [
        decoders.Replace(Regex(r" ?\n\n ?"), "\n\n"),
        decoders.Replace(Regex(r" (?=[,.;:!?)\]}])"), ""),
        decoders.Replace(Regex(r"(?<=[(\[{]) "), ""),
    ]
    return more, pre_tokenizers.Split(Regex(token), "removed", invert=True), _spaced("\n\n", *tidy)


def _spaced(end: str, *tidy: decoders.Decoder) -> decoders.Decoder:
    """Tokens with a space before each, ends of lines as white space, and what is done to the text then."""
    apart = decoders.Replace(Regex(r"\A"), " ")
    return decoders.Sequence([decoders.Replace(Regex(rf"\A{END}\z"), end), apart, decoders.Fuse(), *tidy])


def _characters() -> Steps:
    return [], pre_tokenizers.Split(Regex(r"[\s\S]"), "isolated"), decoders.Fuse()


_MARKS = {BEGIN: "\x00", END: "\n"}
"""Spelling of the marks in this tokenizer. No text holds them: a text with a NUL is refused."""


def _marked() -> Steps:
    split = pre_tokenizers.Split(Regex(rf"{UNKNOWN}|[\s\S]"), "isolated")
    begin = normalizers.Replace(Regex(r"(?:\A|(?<=\n))(?=[\s\S])"), _MARKS[BEGIN])
    return [begin], split, decoders.Sequence([decoders.Replace(_MARKS[BEGIN], ""), decoders.Fuse()])


def _bytes(vocabulary: Vocabulary) -> Tokenizer:
    tokenizer = Tokenizer(models.BPE({character: byte for byte, character in bytes_to_unicode().items()}, []))
    tokenizer.normalizer = _normalizer(vocabulary)
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    tokenizer.decoder = decoders.ByteLevel()
    return tokenizer


def _pieces(vocabulary: Vocabulary, pieces: Pieces) -> PreTrainedTokenizerFast:
    """Return a tokenizer.json as it is, except for the tokens that it puts around a text."""
    tokenizer = Tokenizer.from_str(pieces.json)
    tokenizer.no_truncation()
    tokenizer.no_padding()
    own = [] if tokenizer.normalizer is None else [tokenizer.normalizer]
    tokenizer.normalizer = _normalizer(vocabulary, *own)
    tokenizer.post_processor = _begin(vocabulary, tokenizer)
    special = {token["content"] for token in json.loads(pieces.json).get("added_tokens", []) if token["special"]}
    start, unknown = vocabulary.words[vocabulary.start], _unknown(vocabulary)
    # None but its own special tokens are named so, since naming a token changes how a text with it is cut.
    known = [token for token in (*PADDING, start, unknown) if token in special]
    named = {"pad_token": known[0] if known else None, "bos_token": start if start in special else None}
    return _wrapped(tokenizer, **named, unk_token=unknown if unknown in special else None)
