"""Vocabularies as tokenizers of transformers: our ids and our texts, of real texts and of hostile ones, also from a folder."""

import sys
import unicodedata
from collections import Counter
from functools import cache
from pathlib import Path

import pytest
from hypothesis import assume, example, given
from hypothesis import strategies as st
from subwords import byte_level, metaspace
from tiers import several
from transformers import AutoTokenizer, PreTrainedTokenizerFast

from backstory.data import Vocabulary, build, encode_split
from backstory.data.tokenizers.built_in import BUILT_IN
from backstory.data.tokenizers.pieces import Pieces
from backstory.evaluation.generation import encode_prompt
from backstory.interop.modeling import fast_tokenizer

TEXT = (
    'The (cat) sat, "well"; 3.5 dögs – naïve 😀 \u200d日本; <unk> don\'t x-ray 1,000th.\n\nNobody\u00a0else\tdid!\n [a]{b}\n'
    "the cat <eos> sat on Ā \x1c mat\r\nσας ΣΑΣ İstanbul e\u0301 ² 五 1.5.2 :)\n \x1d\n\n( so ) said he .\n"
) * 3


@cache
def made_once(name: str, lowercase: bool) -> Vocabulary:
    if name in BUILT_IN:
        tokens = BUILT_IN[name].split(TEXT.lower() if lowercase else TEXT)
        return build(Counter(tokens[: len(tokens) // 2]), BUILT_IN[name], lowercase)
    made = byte_level(TEXT) if name == "byte_level" else metaspace(TEXT[:100])
    return build({}, Pieces("tokenizer.json", made.to_str()), lowercase)


def vocabulary(name: str, lowercase: bool = False) -> Vocabulary:
    return made_once(name, lowercase)


@cache
def fast(name: str, lowercase: bool = False) -> PreTrainedTokenizerFast:
    return fast_tokenizer(vocabulary(name, lowercase))


NAMES = [*BUILT_IN, "byte_level", "metaspace"]
hostile = st.lists(
    st.sampled_from(
        ["a", "The", "cat", " ", "  ", "\n", "\n\n", "\r", "\r\n", "\t", "\x1c", "\x85", "\u2028", "\u00a0", "\u200b", "\ufeff",
         "<unk>", "<eos>", "<|endoftext|>", "<", ">", "unk", "eos", "-", "'", "’", ".", ",", "3", "٣", "1.5", "1,000", "²", "½",
         "e\u0301", "Ā", "Σ", "İ", "ß", "😀", "日本", "ﬁ", "_", "(", ")", "[", "!", ":", "$A", "##", "Ġ", "▁"]
    ) | st.characters(exclude_categories=["Cs", "Cn"], exclude_characters="\x00"),
    max_size=25,
).map("".join)  # fmt: skip


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("lowercase", [False, True])
def test_ids_are_ours(name: str, lowercase: bool) -> None:
    known, made = vocabulary(name, lowercase), fast(name, lowercase)

    @given(hostile)
    @example(TEXT)
    @example("")
    @example(" \n\n a")
    @example("a<eos>b")
    def check(text: str) -> None:
        try:
            wanted = encode_prompt(known, text)
        except Exception:
            assume(False)
        assert made(text, add_special_tokens=False)["input_ids"] == wanted
        assert made(text)["input_ids"] == [known.start, *wanted]

    check()


def after_a_word(known: Vocabulary, ids: list[int]) -> str:
    """Text that tokens add to one that ends in a word."""
    if known.tokenizer.unit != "word":
        return known.decode(ids)
    return known.tokenizer.join(["word", *known.tokens(ids)]).removeprefix("word")


@pytest.mark.parametrize("name", NAMES)
def test_texts_are_ours(name: str) -> None:
    known, made = vocabulary(name), fast(name)

    @given(st.lists(st.integers(0, len(known) - 1), max_size=30))
    def check(ids: list[int]) -> None:
        assert made.decode(ids) == after_a_word(known, ids)
        assert made.decode([known.start, *ids]) == known.decode([known.start, *ids])

    check()


@pytest.mark.parametrize("name", NAMES)
def test_a_tokenizer_comes_back_from_its_folder(name: str, tmp_path: Path) -> None:
    fast(name).save_pretrained(tmp_path)
    back = AutoTokenizer.from_pretrained(tmp_path)
    for text in (TEXT, "a <unk> <eos> Ā", ""):
        assert back(text)["input_ids"] == fast(name)(text)["input_ids"]
    ids = fast(name)(TEXT)["input_ids"]
    assert back.decode(ids) == vocabulary(name).decode(ids)
    assert (back.padding_side, back.pad_token, back.unk_token) == ("left", fast(name).pad_token, fast(name).unk_token)
    assert len(back) == back.vocab_size == len(vocabulary(name))


@pytest.mark.parametrize("name", NAMES)
def test_rows_are_padded_on_the_left_with_a_mask(name: str) -> None:
    texts = ["the cat", "the cat sat on the mat"]
    found, alone = fast(name)(texts, padding=True), [fast(name)(text)["input_ids"] for text in texts]
    assert set(found) == {"input_ids", "attention_mask"}
    short = len(alone[1]) - len(alone[0])
    assert short > 0 and found["attention_mask"] == [[0] * short + [1] * len(alone[0]), [1] * len(alone[1])]
    assert found["input_ids"][0][short:] == alone[0] and found["input_ids"][1] == alone[1]
    assert all(0 <= i < len(vocabulary(name)) for row in found["input_ids"] for i in row)


def test_line_ends_stay_in_what_is_shown_without_special_tokens() -> None:
    for name, text in (("words", "the cat\nThe dogs\n"), ("characters", "The\nThe\n"), ("bytes", "The\nThe\n")):
        ids = fast(name)(text, add_special_tokens=False)["input_ids"]
        assert fast(name).decode(ids, skip_special_tokens=True).count("\n") == 2


@pytest.mark.full
def test_what_is_a_word_is_what_python_says_of_every_character() -> None:
    kinds = {"regex": fast("regex"), "words": fast("words")}
    assigned = [c for c in map(chr, range(1, sys.maxunicode + 1)) if unicodedata.category(c) not in ("Cs", "Cn")]
    for name, made in kinds.items():
        for first in range(0, len(assigned), 5000):
            text = "".join(f"a{c}1 {c}{c} 3{c}" for c in assigned[first : first + 5000] if c not in "\r\ufeff")
            tokens = vocabulary(name).tokenizer.split(f"{text} x")[:-2]
            backend = made.backend_tokenizer
            found = [t for t, _ in backend.pre_tokenizer.pre_tokenize_str(backend.normalizer.normalize_str(text))]
            assert found == tokens


# --- real texts ---


def real(data_dir: Path, characters: int) -> str:
    text = (data_dir / "ptb" / "ptb.test.txt").read_text(encoding="utf-8")
    wiki = next((data_dir / "wikitext-2").glob("*test*"))
    return text[: characters // 2] + wiki.read_text(encoding="utf-8")[: characters // 2]


@pytest.mark.parametrize("name", [*BUILT_IN, "byte_level"])
def test_ids_of_real_text_are_ours(name: str, data_dir: Path) -> None:
    text = real(data_dir, several(100_000, 400_000))
    if name in BUILT_IN:
        known = build(Counter(BUILT_IN[name].split(text[: len(text) // 2])), BUILT_IN[name])
    else:
        known = build({}, Pieces("tokenizer.json", byte_level(text[:20_000], 600).to_str()))
    made = fast_tokenizer(known)
    ids = made(text, add_special_tokens=False)["input_ids"]
    whole = encode_split(known, text).ids.tolist()
    assert ids == encode_prompt(known, text)
    assert ids == whole[: len(ids)] and len(whole) - len(ids) <= 1
    assert made.decode(ids) == after_a_word(known, ids)
