"""Bits per byte that account for every byte: the score of the tokens plus the codec's length of what they leave open.

    (nats / ln 2 + spelling) / bytes

compares models of all vocabularies. It is the length that `backstory compress` gives the text, without header and checksums.
"""

import hashlib
import json
import math
import warnings
from pathlib import Path

import numpy as np

from backstory.codec.range_coder import Coder, Cumulative
from backstory.codec.setting import ids_hash, vocabulary_hash
from backstory.codec.spelling import Speller, Spelling, kind_of_last
from backstory.data import Vocabulary
from backstory.data.corpora.text_files import raw_blocks
from backstory.evaluation.opening import EvalSetup
from backstory.storage import disk_cache
from backstory.storage.atomic import write_atomically
from backstory.storage.documents import json_digest
from backstory.utils.errors import UserError
from backstory.utils.scores import bits
from backstory.utils.small_file import read_small
from backstory.utils.terminal import preparing

FORMAT = 1
"""Raised when the spelling changes: lengths that are cached are measured again."""
MOST_BYTES = 1 << 24
"""Longer texts are not spelled, because it takes minutes."""
SHOW_EVERY = 1024
"""Tokens between two updates of the progress."""


class Meter(Coder):
    """Measures choices without writing them."""

    def choose(self, cumulative: Cumulative, choice: int) -> int:
        self.bits += math.log2(int(cumulative[-1]) / (int(cumulative[choice + 1]) - int(cumulative[choice])))
        return choice

    def bit(self, ones: int, total: int, bit: int) -> int:
        self.bits += math.log2(total / (ones if bit else total - ones))
        return bit

    def number(self, bits: int, number: int) -> int:
        self.bits += bits
        return number


def open_bits_per_byte(setup: EvalSetup, nats: float) -> float | None:
    """Return the bits per byte of the text whose tokens took so many nats in all.

    None where the original bytes are not there (a synthetic corpus, standard input, a file of records), are too many, or do
    not give the tokens that were scored, and for lines that are read one by one, as their lengths are not coded.
    """
    sources = setup.dataset.files.get(setup.split.name, ())
    if (
        setup.lines is not None
        or not sources
        or any(source.documents is not None or not source.path.is_file() for source in sources)
    ):
        return None
    size, files = 0, []
    for source in sources:
        blocks = []
        for block in raw_blocks(source):
            blocks.append(block)
            if (size := size + len(block)) > MOST_BYTES:
                return None
        files.append(b"".join(blocks))
    spelling, ids = spelled(setup.dataset.vocabulary, files, sources[0].path.name)
    return (bits(nats) + spelling) / size if size and ids == ids_hash(setup.split.ids) else None


def spelled(vocabulary: Vocabulary, files: list[bytes], name: str = "a text") -> tuple[float, str]:
    """Return the bits that files take besides their tokens, and the tokens' hash; from the cache if measured before.

    The work is shown in a block that shows progress, where it has this name.
    """

    def write(folder: Path) -> None:
        write_atomically(folder / "spelling.json", json.dumps(measure(vocabulary, files, name)))

    content = [hashlib.sha256(file).hexdigest() for file in files]
    key = json_digest([FORMAT, vocabulary_hash(vocabulary), content])
    try:
        with warnings.catch_warnings(action="ignore"):  # of a cache that cannot be written: it only saves time here
            entry = disk_cache.fetch(f"spelling-{key[:32]}", write)
        length, ids = json.loads(read_small(entry / "spelling.json", inside=entry))
    except UserError:
        length, ids = measure(vocabulary, files, name)
    return float(length), str(ids)


def measure(vocabulary: Vocabulary, files: list[bytes], name: str) -> tuple[float, str]:
    """Measure what `spelled` returns, with progress."""
    spelling, meter, size = Spelling.of(vocabulary), Meter(), sum(map(len, files))
    speller, ids, before, done = Speller(spelling), [], 0, 0
    with preparing(name, size, "spelling") as progress:
        for file in files:
            units, rest = spelling.cut(file)
            for unit in units:
                speller.is_escaped(meter, unit)
                gap, text = speller.code(meter, unit.id, unit, before)
                before, done = kind_of_last(gap + text, before), done + len(gap) + len(text)
                ids.append(unit.id)
                if len(ids) % SHOW_EVERY == 0:
                    progress(done, size)
            speller.rest(meter, rest)
            done += len(rest)
    return meter.bits, ids_hash(np.array(ids, np.int32))
