"""A vocabulary as a fast tokenizer of transformers, with our ids: words, regex, characters, bytes and sub-word pieces."""

import json
from collections.abc import Sequence
from typing import Any

from tokenizers import Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers, processors
from transformers import PreTrainedTokenizerFast
from transformers.convert_slow_tokenizer import bytes_to_unicode

from backstory.data import Vocabulary
from backstory.data.tokenizers.built_in import BEGIN, END, UNKNOWN
from backstory.data.tokenizers.pieces import Pieces

SPACE = r"\s\x1c-\x1f"
"""White space as Python has it, inside brackets."""
WORD = r"\p{L}\p{N}_"
"""What Python's \\w stands for, likewise; the \\w of these expressions is another."""
PADDING = ("<pad>", "[PAD]", "<|pad|>", "<|padding|>")
"""What tokenizers call the token that fills rows up."""
_BREAK = rf"\n[{SPACE}&&[^\n]]*\n[{SPACE}]*"
"""A blank line, as the tokenizer `regex` has it."""


def fast_tokenizer(vocabulary: Vocabulary) -> PreTrainedTokenizerFast:
    """The tokenizer of a prompt (`encode_prompt`): the last line or paragraph is not ended, and what is read before the first
    token comes first, unless `add_special_tokens` is false.

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
    given = {name: value for name, value in settings.items() if value is not None}
    return PreTrainedTokenizerFast(
        tokenizer_object=tokenizer,
        padding_side="left",
        clean_up_tokenization_spaces=False,
        model_input_names=["input_ids", "attention_mask"],
        **given,
    )


def _unknown(vocabulary: Vocabulary) -> str | None:
    return None if vocabulary.unknown is None else vocabulary.words[vocabulary.unknown]


def _begin(vocabulary: Vocabulary, tokenizer: Tokenizer) -> processors.PostProcessor:
    """What puts the token before a text that is read before its first one."""
    token = tokenizer.id_to_token(vocabulary.start)
    # It goes by a name of its own, since a template gives a colon in a name a meaning.
    begin = {"id": "<start>", "ids": [vocabulary.start], "tokens": [token]}
    return processors.TemplateProcessing(single=["<start>", "$A"], pair=["<start>", "$A", "$B"], special_tokens=[begin])


def _normalizer(vocabulary: Vocabulary, *more: normalizers.Normalizer) -> normalizers.Normalizer:
    """Line ends and case as `encode_split` and the vocabulary have them, then more."""
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
    """Of words and characters, each of which has its id in a table."""
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
"""What marks are called here, as which no text holds them: a text with a NUL is refused."""


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
    """A tokenizer.json as it is, but for what it puts around a text."""
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
