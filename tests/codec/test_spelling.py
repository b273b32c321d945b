"""Spelling: the tokens of a file with their bytes are the file, whatever it holds, and the tokens are those that are scored."""

import pytest
from coded_runs import TEXT, vocabulary_of
from hypothesis import given
from hypothesis import strategies as st
from subwords import byte_level, metaspace

from backstory.codec.range_coder import Decoder, Encoder
from backstory.codec.spelling import ESCAPED, Speller, Spelling, Unit, kind_of_last
from backstory.data import Vocabulary
from backstory.data.tokenizers.pieces import Pieces

WORDS = st.sampled_from(
    ["the", "The", "cat", "CAT", "mat", ",", ".", "(old)", "3.50", "<unk>", "<eos>", "<bos>", "ÉTÉ", "Σας", "x\0"]
)
BLANKS = st.sampled_from(["", " ", "  ", "\n", " \n", "\n\n", "\r\n", "\t", "\u2028", "\x85", "\ufeff"])
TEXTS = st.lists(st.tuples(BLANKS, WORDS, BLANKS), max_size=12).map(lambda parts: "".join("".join(p) for p in parts))
FILES = st.one_of(TEXTS.map(str.encode), TEXTS.map(lambda text: text.encode("utf-16")), st.binary(max_size=40))
NAMES = ["words", "regex", "characters", "bytes", "marked-characters"]


def pieces(text: str = TEXT, metaspaces: bool = False) -> Pieces:
    return Pieces("pieces", (metaspace(text) if metaspaces else byte_level(text)).to_str())


VOCABULARIES = {
    **{name: lambda name=name: vocabulary_of(name) for name in NAMES},
    **{
        f"{name}, lower case": lambda name=name: vocabulary_of(name, lowercase=True)
        for name in ("words", "regex", "characters")
    },
    "words, closed": lambda: vocabulary_of("words", closed=True),
    "rare words cut": lambda: vocabulary_of("regex", minimum_count=2),
    "byte-level pieces": lambda: vocabulary_of(pieces()),
    "metaspace pieces": lambda: vocabulary_of(pieces(metaspaces=True)),
    "byte-level pieces, lower case": lambda: vocabulary_of(pieces(), lowercase=True),
}


@pytest.fixture(scope="module", params=VOCABULARIES)
def vocabulary(request: pytest.FixtureRequest) -> Vocabulary:
    return VOCABULARIES[request.param]()


@given(FILES)
def test_units_are_the_file_and_come_back(vocabulary: Vocabulary, data: bytes) -> None:
    spelling = Spelling.of(vocabulary)
    units, rest = spelling.cut(data)
    assert b"".join(unit.gap + unit.text for unit in units) + rest == data
    encoder = Encoder()
    assert code(encoder, spelling, units, rest) == (units, rest)
    decoder = Decoder(encoder.finish())
    assert code(decoder, spelling, [Unit(unit.id, b"", b"") for unit in units], b"") == (units, rest)


def code(coder: Encoder | Decoder, spelling: Spelling, units: list[Unit], rest: bytes) -> tuple[list[Unit], bytes]:
    """Code all but the ids of the units."""
    speller, coded, before = Speller(spelling), [], 0
    for unit in units:
        assert speller.is_escaped(coder, unit) == (unit.id == ESCAPED)
        coded.append(Unit(unit.id, *speller.code(coder, unit.id, unit, before)))
        before = kind_of_last(coded[-1].gap + coded[-1].text, before)
    return coded, speller.rest(coder, rest)


@given(TEXTS)
def test_tokens_are_those_that_are_scored(vocabulary: Vocabulary, text: str) -> None:
    units, _ = Spelling.of(vocabulary).cut(text.encode())
    ids = [unit.id for unit in units]
    if ESCAPED not in ids:  # else the vocabulary has no tokens for it, or they do not say what it is
        assert ids == vocabulary.encode(text).tolist()


def test_plain_text_is_spelled_for_a_few_bits() -> None:
    vocabulary = vocabulary_of("regex", TEXT * 20)
    spelling, encoder = Spelling.of(vocabulary), Encoder()
    units, rest = spelling.cut(TEXT.encode() * 20)
    code(encoder, spelling, units, rest)
    assert len(units) > 600 and encoder.bits < len(units)
