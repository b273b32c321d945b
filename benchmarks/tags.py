"""Agreement of PatternTagger with the published tags of a corpus, on the validation texts.

    python benchmarks/tags.py [--corpora ptb wikitext-2] [--split valid] [--out results/benchmark-tags.json]

Only words count, because `<eos>` and `<unk>` have fixed tags. `tag` is the share of words with the same tag, `class`
the share on which both agree whether they are content words, function words or neither, and `content` and `function`
the shares of the published content and function words that the tagger recognises as such. `content_share` is the share
of all tokens, also `<eos>` and `<unk>`, that are nouns, verbs, adjectives or adverbs by the published tags: the content
words of Khandelwal et al. 2018, section 5.2, to whom all other tokens are function words. With --out the table is also
written as JSON.
"""

import argparse
import time
from pathlib import Path
from typing import Any

import numpy as np
from figures import write

from backstory.config.schema import TextConfig
from backstory.data import prepare, tagged_by, tags_of, word_classes
from backstory.data.corpora.published_corpora import TAGS
from backstory.data.tokenizers.built_in import END, UNKNOWN

CONTENT = ("N", "V", "J", "RB")
"""Prefixes of the tags of nouns, verbs, adjectives and adverbs."""


def agreement(corpus: str, split: str, data_dir: Path | None) -> dict[str, Any]:
    """Shares of the words of a split on which the tagger and the files of tags agree."""
    dataset = prepare(TextConfig(corpus=corpus), data_dir)
    began = time.perf_counter()
    gold, made = (tags_of(dataset, split, tagger, data_dir) for tagger in ("gold", "pattern"))
    seconds = time.perf_counter() - began
    words = ~np.isin(gold, (END, UNKNOWN))
    content_share = sum(str(tag).startswith(CONTENT) for tag in gold) / len(gold)
    gold, made = gold[words], made[words]
    classes, found = word_classes(gold), word_classes(made)
    return {
        "split": split,
        "gold": tagged_by(dataset, split, "gold", data_dir),
        "tagger": tagged_by(dataset, split, "pattern", data_dir),
        "tokens": len(words),
        "unknown": int((~words).sum() - (dataset.splits[split].ids == dataset.vocabulary.index[END]).sum()),
        "words": len(gold),
        "content_share": content_share,
        "tag": float((gold == made).mean()),
        "class": float((classes == found).mean()),
        **{kind: float((found[classes == kind] == kind).mean()) for kind in ("content", "function")},
        "seconds": round(seconds, 2),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--corpora", nargs="+", choices=TAGS, default=list(TAGS))
    parser.add_argument("--split", choices=("valid", "test"), default="valid")
    parser.add_argument("--data-dir", type=Path)
    parser.add_argument("--out", type=Path)
    given = parser.parse_args()
    rows = {}
    for corpus in given.corpora:
        rows[corpus] = found = agreement(corpus, given.split, given.data_dir)
        shares = ", ".join(f"{name} {found[name]:.1%}" for name in ("tag", "class", "content", "function"))
        print(f"{corpus}: {found['words']:,} words, {shares}", flush=True)
    if given.out:
        write(given.out, "tags", rows=rows)


if __name__ == "__main__":
    main()
