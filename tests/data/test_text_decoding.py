"""Text that is decoded id by id is the text of all ids; and tokens fall into the words of the tokenizer `words`."""

from collections import Counter
from dataclasses import replace
from functools import cache
from itertools import islice, pairwise

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from subwords import byte_level, metaspace

from backstory.data import (
    Dataset,
    Vocabulary,
    build,
    decode_stream,
    encode_split,
    in_words,
    word_numbers,
    word_parts,
)
from backstory.data.encoding import _Counter
from backstory.data.tokenizers.built_in import BUILT_IN
from backstory.data.tokenizers.pieces import Pieces

hf = pytest.importorskip("tokenizers", reason="needs the extra hf")

TEXT = 'The (cat) sat, "well"; 3.5 dögs – naïve 😀 \u200d日本.\n\nNobody\u00a0else\tdid!\n [a]{b}\n' * 3


def byte_fallback() -> "hf.Tokenizer":
    """Made as Llama's is: spaces are marked, one is put in front, unknown characters are bytes."""
    words = ["<unk>", "▁", *"abcdefhistTn", *(f"<0x{i:02X}>" for i in range(256)), "▁t", "▁th", "at"]
    model = hf.Tokenizer(
        hf.models.BPE(
            vocab={w: i for i, w in enumerate(words)},
            merges=[("▁", "t"), ("▁t", "h"), ("a", "t")],
            unk_token="<unk>",
            byte_fallback=True,
            fuse_unk=True,
        )
    )
    model.normalizer = hf.normalizers.Sequence([hf.normalizers.Prepend("▁"), hf.normalizers.Replace(" ", "▁")])
    model.decoder = hf.decoders.Sequence(
        [
            hf.decoders.Replace("▁", " "),
            hf.decoders.ByteFallback(),
            hf.decoders.Fuse(),
            hf.decoders.Strip(" ", 1, 0),
        ]
    )
    return model


def word_piece() -> "hf.Tokenizer":
    model = hf.Tokenizer(hf.models.WordPiece(unk_token="[UNK]"))
    model.pre_tokenizer = hf.pre_tokenizers.Whitespace()
    model.decoder = hf.decoders.WordPiece()
    trainer = hf.trainers.WordPieceTrainer(vocab_size=80, special_tokens=["[UNK]"], show_progress=False)
    model.train_from_iterator([TEXT], trainer)
    return model


PIECES = {
    "byte_level": lambda: byte_level(TEXT),
    "metaspace": lambda: metaspace(TEXT),
    "byte_fallback": byte_fallback,
    "word_piece": word_piece,
}


@cache
def vocabulary(name: str) -> Vocabulary:
    chosen = BUILT_IN[name] if name in BUILT_IN else Pieces(name, PIECES[name]().to_str())
    return build(Counter(chosen.split(TEXT)), chosen)


NAMES = [*BUILT_IN, *PIECES]


@pytest.mark.parametrize("name", NAMES)
@given(data=st.data())
def test_any_ids_give_the_text_of_all_of_them(name: str, data: st.DataObject) -> None:
    words = vocabulary(name)
    ids = data.draw(st.lists(st.integers(0, len(words) - 1), max_size=40))
    pieces = list(decode_stream(words, ids))
    assert "".join(pieces) == words.decode(ids)
    assert len(pieces) == len(ids) + 1


@pytest.mark.parametrize("name", NAMES)
@given(text=st.text(st.sampled_from("aTt .,()\n日é😀"), max_size=30))
def test_a_text_comes_back(name: str, text: str) -> None:
    words = vocabulary(name)
    ids = words.encode(text)
    assert "".join(decode_stream(words, ids.tolist())) == words.decode(ids)
    if words.lossless and (words.unknown is None or words.unknown not in ids):
        assert "".join(decode_stream(words, ids.tolist())) == text


@pytest.mark.parametrize("name", NAMES)
def test_an_id_is_taken_when_its_text_is_asked_for(name: str) -> None:
    words, taken = vocabulary(name), []

    def ids():
        for i in words.encode(TEXT).tolist():
            taken.append(i)
            yield i

    assert len("".join(islice(decode_stream(words, ids()), 30))) > 20
    assert len(taken) == 30


def test_a_character_is_shown_when_it_is_whole() -> None:
    words = vocabulary("bytes")
    assert list(decode_stream(words, "é!".encode())) == ["", "é", "!", ""]
    assert list(decode_stream(words, b"\xe2\x82")) == ["", "", "\ufffd"]
    words = vocabulary("byte_level")
    assert "\ufffd" not in "".join(list(decode_stream(words, words.encode(TEXT).tolist())))


@given(
    text=st.text(st.sampled_from("ab \n\t\u00a0\u2028é"), max_size=25), cuts=st.lists(st.integers(0, 25), max_size=4)
)
def test_words_are_counted_as_the_tokenizer_words_counts_them(text: str, cuts: list[int]) -> None:
    counter, places = _Counter(), [0, *sorted(cuts), len(text)]
    blocks = [text[a:b] for a, b in pairwise(places)]
    assert "".join(counter._measure(blocks)) == text[: max(places)]
    assert counter.words == len(BUILT_IN["words"].split(text))


@pytest.mark.parametrize("name", ["characters", "bytes", "byte_level", "byte_fallback"])
@given(text=st.text(st.sampled_from('abT .,"\n ö日'), min_size=1, max_size=30))
def test_tokens_fall_into_words(name: str, text: str) -> None:
    words = vocabulary(name)
    split = encode_split(words, text)
    numbers = list(word_numbers(words, split))
    assert len(numbers) == len(split.ids)
    expected = BUILT_IN["words"].split(text)
    assert split.words == len(expected)
    folded: dict[int, list[int]] = {}
    for i, number in zip(split.ids.tolist(), numbers, strict=True):
        assert number is not None
        folded.setdefault(number, []).append(i)
    assert numbers == sorted(numbers, key=lambda n: n or 0) and max(folded) < len(expected)
    if name != "byte_level":  # where no token spans two words, each word's tokens spell it
        for number, ids in folded.items():
            spelled = "".join(decode_stream(words, ids)).lstrip(" ")
            assert spelled == ("\n" if expected[number] == "<eos>" and spelled else expected[number] if spelled else "")


def test_bytes_among_pieces_are_of_their_own_word() -> None:
    words = vocabulary("byte_fallback")
    for text, expected in (
        ("a é hat a", [0, 0, 1, 1, 1, 2, 2, 2, 3, 3]),
        ("éa\n\né b", [0, 0, 0, 0, 1, 2, 3, 3, 4, 4]),  # a line end is a byte
        ("b日", [0, 0, 0, 0, 0]),
    ):
        split = encode_split(words, text)
        assert list(word_numbers(words, split)) == expected, words.tokens(split.ids)


@pytest.mark.parametrize("name", NAMES)
@given(data=st.data())
def test_parts_are_the_text_of_all_ids(name: str, data: st.DataObject) -> None:
    words = vocabulary(name)
    ids = data.draw(st.lists(st.integers(0, len(words) - 1), max_size=40))
    parts = list(word_parts(words, ids))
    assert "".join(text for text, _, _ in parts) == words.decode(ids)
    assert sum(count for _, count, _ in parts) == len(ids) and all(count for _, count, _ in parts)
    assert [n for _, _, n in parts] == sorted(n for _, _, n in parts)


def test_words_go_on_where_a_document_ends() -> None:
    words = vocabulary("characters")
    split = encode_split(words, "a bc\nde\n")
    both = type(split)("x", split.ids, np.array([0, 5]), ["", ""], 0, 0, 0)
    assert list(word_numbers(words, both)) == list(word_numbers(words, split)) == [0, 1, 1, 1, 2, 3, 3, 4]


@pytest.mark.parametrize("name", ["characters", "bytes", "byte_level", "byte_fallback"])
@given(texts=st.lists(st.text(st.sampled_from('abT .,"\n ö'), min_size=1, max_size=20), min_size=1, max_size=3))
def test_a_text_in_words_is_numbered_as_its_tokens_are(name: str, texts: list[str]) -> None:
    words = vocabulary(name)
    parts = [encode_split(words, text) for text in texts]
    ids, begins = np.concatenate([part.ids for part in parts]), np.cumsum([0, *(len(part.ids) for part in parts[:-1])])
    split = replace(parts[0], ids=ids, documents=begins)
    train = replace(encode_split(words, "Ta Ta\na"), name="train")
    dataset = Dataset("x", words, {"train": train, "text": split}, "0", "")
    inwards = in_words(dataset, "text")
    spelled = inwards.vocabulary.tokens(inwards.splits["text"].ids)
    numbers = np.array([n for n in word_numbers(words, split) if n is not None])
    assert len(numbers) == len(ids) and numbers.max() < len(spelled)
    for document, begin in enumerate(begins):
        assert numbers[begin] == inwards.splits["text"].documents[document]
    for number in np.unique(numbers):
        document = int(np.searchsorted(begins, np.flatnonzero(numbers == number)[0], "right")) - 1
        # Of all that a word's tokens hold, the word they are counted as comes first.
        text = words.decode(ids[numbers == number]).replace("\n", " <eos> ").split()
        if document and name == "byte_fallback":
            continue  # whose decoder takes the space off
        assert spelled[number] == (text[0] if text else "<eos>")
    counts = dict(zip(inwards.vocabulary.words, inwards.vocabulary.counts.tolist(), strict=True))
    assert {word: n for word, n in counts.items() if n} == {"Ta": 2, "a": 1, "<eos>": 1}


def test_words_of_tokens_that_are_words() -> None:
    assert list(word_numbers(vocabulary("words"), encode_split(vocabulary("words"), "The a\n"))) == [0, 1, 2]
    assert list(word_numbers(vocabulary("regex"), encode_split(vocabulary("regex"), "The a"))) == [None] * 3
    # An unknown character may have been a space.
    assert list(word_numbers(vocabulary("characters"), encode_split(vocabulary("characters"), "zz"))) == [None] * 2
