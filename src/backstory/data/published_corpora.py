"""Published corpora: the files of each, the public homes that serve them, and what they must be byte for byte.

The SHA-256 of archives, of enwik8 and of text8 are those that many independent projects record for the same addresses;
those of the files of ptb and wikitext-2 are of the canonical files. The unpacked files of wikitext-103 have none on
record: their archive has, and what was unpacked first is what they must stay.
"""

from dataclasses import dataclass


@dataclass(frozen=True)
class File:
    """What is known of a file: the most bytes it may have, and its SHA-256 (hex) where that is known."""

    most: int
    sha256: str | None = None


@dataclass(frozen=True)
class Download:
    """One thing to download: the addresses that serve it byte for byte alike, tried in turn.

    `files` names the corpus files in it: of a zip archive, which `archive` describes, each with its member; a download
    that is itself the file names it with an empty member.
    """

    urls: tuple[str, ...]
    files: dict[str, str]
    archive: File | None = None


@dataclass(frozen=True)
class Published:
    """The files of a corpus in the folder of its name, and the downloads that bring them (none: they cannot be had so)."""

    files: dict[str, File]
    downloads: tuple[Download, ...] = ()

    @property
    def megabytes(self) -> int:
        """The most that is downloaded, in millions of bytes."""
        most = sum(d.archive.most if d.archive else sum(self.files[f].most for f in d.files) for d in self.downloads)
        return -(-most // 1_000_000)


def _ptb(name: str) -> Download:
    homes = ("wojzaremba", "tomsercu")
    return Download(
        tuple(f"https://raw.githubusercontent.com/{home}/lstm/master/data/{name}" for home in homes), {name: ""}
    )


def _wikitext(name: str, archive: File) -> Download:
    members = {f"wiki.{split}.tokens": f"{name}/wiki.{split}.tokens" for split in ("train", "valid", "test")}
    return Download((f"https://wikitext.smerity.com/{name}-v1.zip",), members, archive)


def _mahoney(name: str, archive: File) -> Download:
    urls = (
        f"https://mattmahoney.net/dc/{name}.zip",
        f"http://mattmahoney.net/dc/{name}.zip",
        f"https://data.deepai.org/{name}.zip",
    )
    return Download(urls, {name: name}, archive)


PUBLISHED: dict[str, Published] = {
    "ptb": Published(
        {
            "ptb.train.txt": File(5_101_618, "fcea919f6cf83f35d4d00c6cbf08040d13d4155226340912e2fef9c9c4102cbf"),
            "ptb.valid.txt": File(399_782, "c9fe6985fe0d4ccb578183407d7668fc6066c20700cb4cf87d8ff1cc34df1bf2"),
            "ptb.test.txt": File(449_945, "dd65dff31e70846b2a6030a87482edcd5d199130cdcfa1f3dccbb033728deee0"),
        },
        (_ptb("ptb.train.txt"), _ptb("ptb.valid.txt"), _ptb("ptb.test.txt")),
    ),
    "wikitext-2": Published(
        {
            "wiki.train.tokens": File(10_797_148, "9e9fa1ad55b1c2c95b08e37dd8e653f638fac2c6de904b79e813611eefbc985f"),
            "wiki.valid.tokens": File(1_121_681, "f0737ed31fc1329026e95cb8b98e19c2a182c39c240ab909dc31abf2f8af58e8"),
            "wiki.test.tokens": File(1_256_449, "d790b833ef8cf03a90db7bf1271b7520b83c45ce07ba3c1a9699df81e239eca0"),
        },
        (_wikitext("wikitext-2", File(5_000_000, "92675f1d63015c1c8b51f1656a52d5bdbc33aafa60cc47a218a66e7ee817488c")),),
    ),
    "wikitext-103": Published(
        {
            "wiki.train.tokens": File(700_000_000),
            "wiki.valid.tokens": File(2_000_000),
            "wiki.test.tokens": File(2_000_000),
        },
        (
            _wikitext(
                "wikitext-103", File(200_000_000, "242ba0f20b329cfdf1ccc61e9e9e5b59becf189db7f7a81cd2a0e2fc31539590")
            ),
        ),
    ),
    "enwik8": Published(
        {"enwik8": File(100_000_000, "2b49720ec4d78c3c9fabaee6e4179a5e997302b3a70029f30f2d582218c024a8")},
        (_mahoney("enwik8", File(36_445_475, "547994d9980ebed1288380d652999f38a14fe291a6247c157c3d33d4932534bc")),),
    ),
    "enwik8-prefix": Published(
        {"enwik8.prefix": File(4_154_399, "d502ac7ecb9dd47a062e7d19b8dcd3c753b07c142e48b13dcd521cb747116bdd")}
    ),
    "text8": Published(
        {"text8": File(100_000_000, "6e890197040d37d85beb962ae1f041ff1d9a9ca8d20c7d99c85027eebf51dca7")},
        (_mahoney("text8", File(31_344_016, "a6640522afe85d1963ad56c05b0ede0a0c000dddc9671758a6cc09b7a38e5232")),),
    ),
}
"""The corpora that are published, by name."""

TAGS: dict[str, dict[str, str]] = {
    "ptb": {split: f"pos/penn/{split}.txt" for split in ("train", "valid", "test")},
    "wikitext-2": {split: f"pos/wt2/{split}.txt" for split in ("valid", "test")},
}
"""Files of part-of-speech tags by corpus and split, in the data folder: a line for a line, a tag for a word, no `<eos>`."""
