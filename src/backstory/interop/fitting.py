"""A Hugging Face tokenizer that makes sure it holds the text that it is given."""

import unicodedata
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from itertools import zip_longest

from backstory.config import UserError
from backstory.data.tokenizers.pieces import Pieces, parts


@dataclass(frozen=True)
class FittingPieces(Pieces):
    """Pieces that are refused for a text whose words they do not give back: a score of `<unk>` cannot be compared.

    White space, and ways to write the same character (NFKC), may differ.
    """

    def stream(self, blocks: Iterable[str]) -> Iterator[list[str]]:
        """The pieces of a text that comes in blocks cut anywhere. Raises UserError where they do not hold it."""
        for part in parts(blocks):
            found = self.encode(part)
            self._check(part, self.decode(found.ids))
            yield found.tokens

    def _check(self, text: str, back: str) -> None:
        if _written(text) == _written(back):
            return
        pairs = zip_longest(text.split(), back.split(), fillvalue="")
        # Where words are cut otherwise, the first that differs tells nothing; the text from there on does.
        word, other = next(((w, o) for w, o in pairs if _written(w) != _written(o)), (text, back))
        raise UserError(
            f"the tokenizer of {self.name} does not fit this text, as it reads {word[:40]!r} as {other[:40]!r}; choose a model "
            "whose tokenizer holds all of it, or another text"
        )


def _written(text: str) -> str:
    return "".join(unicodedata.normalize("NFKC", text).split())
