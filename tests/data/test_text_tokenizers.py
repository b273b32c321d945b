"""Tokenizers: tokens of a text, whole and in blocks, and the text of tokens."""

from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from backstory.data.tokenizers.built_in import BUILT_IN, tokenizer
from backstory.utils.errors import UserError

TEXTS = st.text(st.sampled_from("ab 'é-1.,\n\t\u2028<unk>Σ\U0001f600"), max_size=60) | st.text(max_size=60)


@pytest.mark.parametrize(
    ("text", "tokens"),
    [
        ("a b\nc\n", ["a", "b", "<eos>", "c", "<eos>"]),
        ("a b\nc", ["a", "b", "<eos>", "c", "<eos>"]),
        ("\n \na\n", ["<eos>", "<eos>", "a", "<eos>"]),
        ("a\u2028b\u2029c\x0bd\n", ["a", "b", "c", "d", "<eos>"]),
        ("", []),
        (" ", ["<eos>"]),
        ("<unk> N $ <eos>\n", ["<unk>", "N", "$", "<eos>", "<eos>"]),
    ],
)
def test_words(text: str, tokens: list[str]) -> None:
    assert tokenizer("words").split(text) == tokens


@pytest.mark.parametrize(
    ("text", "tokens"),
    [
        ("Don't stop, it's 3.5!", ["Don't", "stop", ",", "it's", "3.5", "!", "<eos>"]),
        ("one\ntwo\n\nthree\n", ["one", "two", "<eos>", "three", "<eos>"]),
        ("\n\n one \n \n\n two \n\n", ["one", "<eos>", "two", "<eos>"]),
        ("well-known <unk> os.path __init__", ["well-known", "<unk>", "os", ".", "path", "__init__", "<eos>"]),
        ("1,000,000 utf8 3rd ...", ["1,000,000", "utf8", "3rd", ".", ".", ".", "<eos>"]),
        (" \n\n\t", []),
    ],
)
def test_regex(text: str, tokens: list[str]) -> None:
    assert tokenizer("regex").split(text) == tokens


def test_characters_keep_the_newline_and_bytes_are_those_of_utf8() -> None:
    assert tokenizer("characters").split("aé\n😀") == ["a", "é", "\n", "😀"]
    assert [ord(t) for t in tokenizer("bytes").split("é\n")] == [0xC3, 0xA9, 0x0A]


def test_join_shows_a_text() -> None:
    assert tokenizer("words").join(["a", "b", "<eos>", "c", "<eos>"]) == "a b\nc\n"
    assert (
        tokenizer("regex").join(["Yes", ",", "(", "one", ")", "!", "<eos>", "Two", "<eos>"]) == "Yes, (one)!\n\nTwo\n\n"
    )
    assert tokenizer("bytes").join(["\xc3"]) == "\ufffd"


@settings(deadline=None)
@given(TEXTS)
def test_lossless_tokenizers_give_the_text_back(text: str) -> None:
    lossless = [t for t in BUILT_IN.values() if t.lossless]
    assert {t.name for t in lossless} == {"characters", "bytes"}
    for t in lossless:
        assert t.join(t.split(text)) == text


@settings(deadline=None)
@given(st.lists(TEXTS, max_size=6))
def test_blocks_cut_anywhere_give_the_tokens_of_the_whole(blocks: list[str]) -> None:
    for t in BUILT_IN.values():
        assert [token for tokens in t.stream(blocks) for token in tokens] == t.split("".join(blocks)), t.name


@settings(deadline=None)
@given(TEXTS)
def test_words_survive_a_round_of_join_and_split(text: str) -> None:
    words = tokenizer("words")
    tokens = words.split(text.replace("<eos>", ""))
    assert words.split(words.join(tokens)) == tokens


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("word", r"unknown tokenizer 'word' \(did you mean 'words'\?\)"),
        ("", "unknown tokenizer ''"),
        ("gpt2", "unknown tokenizer 'gpt2'; use auto, words, .*, bpe:8000, unigram:8000 or a tokenizer.json"),
        ("missing/tokenizer.json", "there is no tokenizer file 'missing/tokenizer.json'"),
        ("x" * 5000, "unknown tokenizer"),
    ],
)
def test_unknown_tokenizers_are_refused(name: str, message: str) -> None:
    with pytest.raises(UserError, match=message) as caught:
        tokenizer(name)
    assert "\n" not in str(caught.value)


def test_a_lone_surrogate_has_no_bytes() -> None:
    with pytest.raises(UserError, match="lone surrogate"):
        tokenizer("bytes").split("a\ud800")


def test_a_file_that_is_no_tokenizer_is_refused(tmp_path: Path) -> None:
    pytest.importorskip("tokenizers", reason="needs the extra hf")
    for name, data in {"a.json": b'{"a": 1}', "b.json": b"nothing", "c.json": b"\xff\xfe"}.items():
        (tmp_path / name).write_bytes(data)
        with pytest.raises(UserError, match="tokenizer") as caught:
            tokenizer(str(tmp_path / name))
        assert "\n" not in str(caught.value)
