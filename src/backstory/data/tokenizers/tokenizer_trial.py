"""A script that tries a tokenizer.json in a process of its own, which may die of it, and says in JSON how far it came."""

import json
import sys
from collections.abc import Iterator
from itertools import islice
from typing import Any

PROBE = (
    'The quick brown fox, 1,234.5 times: it\'s "here" (and) [there] <unk> <s> {x} http://a.b/c?d=e&f#g_h-i@j\n\n'
    "\tfoo(bar);  \r\nLes œuvres dögs Übergröße İstanbul ΑΣ ß ﬁ Привет 漢字かな 한국어 שלום مرحبا हिन्दी ไทย é 😀\n"
    "👩\u200d👩\u200d👧 \u00a0\u3000\u200b\ufeff\ufffd\n"
)
PIECES = 1000
"""How many pieces are written out by themselves."""
RUN = 60
"""How often a character is repeated where repetitions are tried: what goes back over a text takes ever longer."""


def main() -> None:
    """Read {"tokenizer", "sample", "types", "seconds", "bytes"} from the standard input, and write a line for every step."""
    asked = json.load(sys.stdin)
    _limit(asked["seconds"], asked["bytes"])
    try:
        for told in _tried(asked["tokenizer"], asked["sample"]):
            print(json.dumps(told), flush=True)
            if told.get("types", 0) > asked["types"]:
                return
    except BaseException as error:  # a panic of the package is no Exception
        if not isinstance(error, MemoryError):
            print(json.dumps({"error": str(error)}), flush=True)


def _limit(seconds: int, size: int) -> None:
    """Be ended after so much processor time, and refused more memory than this."""
    try:
        import resource
    except ImportError:  # Windows: the one who waits has a limit as well
        return
    for what, most in ((resource.RLIMIT_CPU, seconds), (resource.RLIMIT_AS, size), (resource.RLIMIT_CORE, 0)):
        try:
            resource.setrlimit(what, (most, most + 1 if what == resource.RLIMIT_CPU else most))
        except (ValueError, OSError):  # a lower limit holds already, or the system has none
            continue


def _tried(text: str, sample: str) -> Iterator[dict[str, Any]]:
    import tokenizers

    data: Any = None
    try:
        data = json.loads(text)
        yield {"types": len(data["model"]["vocab"])}
    except (ValueError, LookupError, TypeError, RecursionError):  # the package says why it is none
        pass
    model = tokenizers.Tokenizer.from_str(text)
    model.no_truncation()
    model.no_padding()
    ids = model.get_vocab(with_added_tokens=True)
    yield {
        "step": "reading with it",
        "types": max([*ids.values(), -1]) + 1,
        "doubled": len(ids) - len(set(ids.values())),
        "random": bool(data["model"].get("dropout")),
        "moved": [t["content"] for t in data.get("added_tokens", []) if ids.get(t["content"]) != t["id"]],
    }
    found, grown = [], []
    for part in (PROBE, *_runs(data), sample):
        if model.normalizer is not None:
            grown.append((len(part), len(model.normalizer.normalize_str(part))))
        try:
            found.append(model.encode(part, add_special_tokens=False))
        except Exception:  # a text that it has no pieces for, which is said where such a text is given
            continue
        grown.append((len(part), len(found[-1].ids)))
    yield {"step": "writing with it", "grown": _most(grown)}
    pieces = [([i], [piece]) for piece, i in islice(ids.items(), PIECES)]
    decoded = [
        (len("".join(tokens)), len(model.decode(encoded, skip_special_tokens=False)))
        for encoded, tokens in (*((e.ids, e.tokens) for e in found), *pieces)
    ]
    yield {"step": "done", "grown": _most(decoded)}


def _runs(data: Any) -> list[str]:
    """Repetitions of letters, of a space, and of all that the patterns of a tokenizer name."""
    named = {c for pattern in _patterns(data) for c in pattern if c.isalnum()}
    return [c * RUN + "!" for c in sorted(named | set("ax1 .\n-"))[:100]] + ["ab" * RUN, "a " * RUN, " \n" * RUN]


def _patterns(node: Any) -> Iterator[str]:
    for part in ("normalizer", "pre_tokenizer", "decoder"):
        waiting = [node.get(part)]
        while waiting:
            value = waiting.pop()
            if isinstance(value, dict):
                yield from (p for p in (value.get("Regex"), value.get("String")) if isinstance(p, str))
                waiting += value.values()
            elif isinstance(value, list):
                waiting += value


def _most(grown: list[tuple[int, int]]) -> float:
    """How many times its length something of at least a line has become."""
    return max((after / max(before, 80) for before, after in grown), default=0.0)


if __name__ == "__main__":
    main()
