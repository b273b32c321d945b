"""A script that tries a tokenizer.json in a process of its own, which may crash, and prints its progress as JSON."""

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
"""Number of pieces that are decoded one by one."""
RUN = 60
"""Length of runs of one character, which slow down backtracking patterns."""


def main() -> None:
    """Read {"tokenizer", "sample", "types", "seconds", "bytes"} from the standard input, and write a line for every step."""
    request = json.load(sys.stdin)
    _limit(request["seconds"], request["bytes"])
    try:
        for findings in _try(request["tokenizer"], request["sample"]):
            print(json.dumps(findings), flush=True)
            if findings.get("types", 0) > request["types"]:
                return
    except BaseException as error:  # a panic of the package is no Exception
        if not isinstance(error, MemoryError):
            print(json.dumps({"error": str(error)}), flush=True)


def _limit(seconds: int, size: int) -> None:
    """Limit the processor time and the memory of this process."""
    try:
        import resource
    except ImportError:  # Windows: the parent has a time limit as well
        return
    for kind, limit in ((resource.RLIMIT_CPU, seconds), (resource.RLIMIT_AS, size), (resource.RLIMIT_CORE, 0)):
        try:
            resource.setrlimit(kind, (limit, limit + 1 if kind == resource.RLIMIT_CPU else limit))
        except (ValueError, OSError):  # a lower limit holds already, or the system has none
            continue


def _try(text: str, sample: str) -> Iterator[dict[str, Any]]:
    """Yield the findings of each step: loading the tokenizer, encoding texts, decoding pieces."""
    import tokenizers

    data: Any = None
    try:
        data = json.loads(text)
        yield {"types": len(data["model"]["vocab"])}
    except (ValueError, LookupError, TypeError, RecursionError):  # the package reports a better reason
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
    encodings, growth = [], []
    for part in (PROBE, *_runs(data), sample):
        if model.normalizer is not None:
            growth.append((len(part), len(model.normalizer.normalize_str(part))))
        try:
            encodings.append(model.encode(part, add_special_tokens=False))
        except Exception:  # it has no pieces for this text, which is reported when such a text is encoded
            continue
        growth.append((len(part), len(encodings[-1].ids)))
    yield {"step": "writing with it", "grown": _largest(growth)}
    pieces = [([i], [piece]) for piece, i in islice(ids.items(), PIECES)]
    decoded = [
        (len("".join(tokens)), len(model.decode(encoded, skip_special_tokens=False)))
        for encoded, tokens in (*((e.ids, e.tokens) for e in encodings), *pieces)
    ]
    yield {"step": "done", "grown": _largest(decoded)}


def _runs(data: Any) -> list[str]:
    """Return repetitions of letters, of a space, and of all characters in the patterns of a tokenizer."""
    named = {c for pattern in _patterns(data) for c in pattern if c.isalnum()}
    return [c * RUN + "!" for c in sorted(named | set("ax1 .\n-"))[:100]] + ["ab" * RUN, "a " * RUN, " \n" * RUN]


def _patterns(data: Any) -> Iterator[str]:
    waiting = [data.get(part) for part in ("normalizer", "pre_tokenizer", "decoder")]
    while waiting:
        value = waiting.pop()
        if isinstance(value, dict):
            yield from (p for p in (value.get("Regex"), value.get("String")) if isinstance(p, str))
            waiting += value.values()
        elif isinstance(value, list):
            waiting += value


def _largest(growth: list[tuple[int, int]]) -> float:
    """Return the largest growth in length, where a text counts as a line of 80 characters at least."""
    return max((after / max(before, 80) for before, after in growth), default=0.0)


if __name__ == "__main__":
    main()
