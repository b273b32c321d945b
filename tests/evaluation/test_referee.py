"""The referee: honest predictors pass, each cheat fails its condition, and unusable predictors are one-line errors."""

import json
import re
import sys
import threading
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import cheating_predictors as zoo
import numpy as np
import pytest
import torch
from adapting import BASE, statistics
from cheating_predictors import CHEATS, TYPES, Bigrams
from small_models import TYPES as MODEL_TYPES
from small_models import lstm
from tiers import fast_then_full, several

import backstory as bs
from backstory.config.readers import CacheSettings
from backstory.evaluation import predictor_process, read
from backstory.evaluation.predictor_process import ProcessPredictor
from backstory.evaluation.predictors import ReaderPredictor
from backstory.readers import Reader, StaticReader
from backstory.readers.dynamic import DynamicEvaluation
from backstory.readers.neural_cache import NeuralCache
from backstory.results import RefereeFigures, result_at
from backstory.utils.errors import UserError

RARE = ("ahead at 1 in 100", "ahead at 1 in 500")
"""Cheats that some audits miss."""
EVERY_TOKEN = "ahead at 1 in 500, every token"
CERTAIN = [name for name in CHEATS if name not in (*RARE, EVERY_TOKEN)]


def refereed(predictor: Any, ids: np.ndarray, **options: Any) -> RefereeFigures:
    return bs.referee(predictor, ids, **{"types": TYPES, "seed": 1, **options}).figures


def test_a_reader_is_refereed_in_its_own_blocks() -> None:
    reader, ids = StaticReader(lstm()), np.random.default_rng(0).integers(0, MODEL_TYPES, 60)
    reader.block = 4
    assert bs.referee(reader, ids, types=MODEL_TYPES).figures.block == 4
    assert bs.referee(reader, ids, types=MODEL_TYPES, block=5).figures.block == 5


@pytest.mark.parametrize("block", [0, -3, 2.5, "16"])
def test_a_block_that_is_no_number_of_tokens_is_refused(block: Any) -> None:
    class Own(Bigrams):
        pass

    Own.block = np.int64(16)
    assert refereed(Own, zoo.text(60)).block == 16
    Own.block = block
    with pytest.raises(UserError, match=r"the predictor's block is .*; it must be a whole number of tokens"):
        refereed(Own, zoo.text(60))


# --- cheats ---


@pytest.mark.parametrize("name", CERTAIN)
def test_a_cheat_is_caught_by_its_condition(name: str) -> None:
    cheat = CHEATS[name]
    for seed in range(several(1, 4)):
        zoo.forget()
        figures = refereed(cheat.make, zoo.as_read(cheat.make), claim=cheat.claim(), seed=seed, **cheat.options)
        assert [v.condition for v in figures.violations if v.condition == cheat.condition], figures.violations
        assert not figures.audit.passed and figures.audit.checks and not figures.audit.checks[cheat.condition]


@pytest.mark.full
@pytest.mark.parametrize("name", RARE)
def test_a_rare_cheat_is_caught_if_its_tokens_are_decoded(name: str) -> None:
    options: dict[str, Any] = {"block": 32}
    for seed in range(4):
        assert not refereed(CHEATS[name].make, zoo.text(700), seed=seed, cuts=690, **options).audit.passed
    every = refereed(CHEATS[name].make, zoo.text(700), every_token=True, **options)
    assert not every.audit.passed and every.decoded == 700 and every.missed == 0
    assert refereed(CHEATS[name].make, zoo.text(700), cuts=1, **options).audit.passed


@pytest.mark.full
def test_wrong_byte_counts_are_not_as_reported(tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_bytes("naïve\r\n".encode() * 20)
    options: dict[str, Any] = {"seed": 1, "block": 16}
    plain = bs.referee(zoo.Bytes, tmp_path / "a.txt", **options).figures
    assert (plain.bytes, plain.tokens, plain.bits_per_byte) == (160, 160, pytest.approx(8))
    assert bs.referee(zoo.Bytes, tmp_path / "a.txt", claim={"bytes": 160, "bits_per_byte": 8.0}).figures.audit.passed
    assert bs.referee(zoo.Bytes, tmp_path / "a.txt", claim={"bits_per_byte": 8 * 0.9997}).figures.audit.passed
    for claim in ({"bytes": 140}, {"bits_per_byte": 8 * 0.999}, {"tokens": 159}):
        (violation,) = bs.referee(zoo.Bytes, tmp_path / "a.txt", claim=claim, **options).figures.violations
        assert violation.condition == "as_reported" and violation.token is None


def test_the_answer_has_the_token_and_the_evidence() -> None:
    class Doubled(Bigrams):
        def probabilities(self, tokens: np.ndarray) -> np.ndarray:
            p = super().probabilities(tokens)
            p[:, 40:43] *= 2
            return p

    (violation,) = refereed(Doubled, zoo.text(300), block=300).violations
    assert (violation.token, violation.times, violation.expected) == (40, 3, 1.0)
    assert violation.found == pytest.approx(2)
    assert violation.evidence == "the probabilities of all 12 types sum to 2, not 1"


def test_a_look_ahead_is_shown_with_both_scores() -> None:
    ids, naive = zoo.text(100)[1:], zoo.LooksAhead()
    (violation,) = refereed(zoo.LooksAhead, ids, block=50, every_token=True).violations
    whole = naive.predict(np.concatenate([[0], ids[:49]]))
    alone = naive.predict(np.array([0]))
    assert violation.condition == "causal" and violation.token == 0
    assert violation.found == pytest.approx(whole[0, ids[0]]) and violation.expected == pytest.approx(alone[0, ids[0]])


def test_a_predict_that_changes_the_predictor_is_no_single_pass() -> None:
    class Counts(Bigrams):
        def predict(self, tokens: np.ndarray) -> np.ndarray:
            table = super().predict(tokens)
            self.counts[0, 0, 0] += 1
            return table

    assert refereed(Counts, zoo.text(300), block=50).violations[0].condition == "one_pass"


# --- honest predictors ---


HONEST: dict[str, dict[str, Any]] = {
    "blocks": {},
    "one token at a time": {"block": 1},
    "rows": {"batch_size": 4},
    "rows that end early": {"batch_size": 3, "block": 50},
    "every token": {"every_token": True, "block": 20},
}


@pytest.mark.parametrize("name", HONEST)
def test_an_honest_predictor_passes_with_the_score_of_a_plain_loop(name: str) -> None:
    ids, options = zoo.text(400), HONEST[name]
    figures = refereed(Bigrams, ids, **options)
    assert figures.audit.passed and figures.violations == ()
    if "batch_size" not in options:
        assert figures.nats_per_token == pytest.approx(naive_score(ids, figures.block), rel=1e-12)
    assert figures.tokens == 400 and (figures.decoded == 400) == (name in ("one token at a time", "every token"))


def naive_score(ids: np.ndarray, block: int) -> float:
    """The score, computed with counts in a dictionary."""
    counts: dict[tuple[int, int], int] = {}
    nats, inputs = 0.0, [0, *ids[:-1].tolist()]
    for begin in range(0, len(ids), block):
        pairs = list(zip(inputs[begin : begin + block], ids[begin : begin + block].tolist(), strict=True))
        for token, target in pairs:
            total = TYPES + sum(counts.get((token, other), 0) for other in range(TYPES))
            nats -= np.log((1 + counts.get((token, target), 0)) / total)
        for pair in pairs:
            counts[pair] = counts.get(pair, 0) + 1
    return nats / len(ids)


READERS: dict[str, Callable[[], Reader]] = {
    "static": lambda: StaticReader(lstm()),
    "cache": lambda: NeuralCache(StaticReader(lstm()), CacheSettings(window=20, weight=0.3)),
    "dynamic": lambda: DynamicEvaluation(lstm(), BASE, statistics(lstm())),
}


@pytest.mark.parametrize("name", READERS)
def test_a_reader_of_ours_passes_with_the_score_of_its_reading(name: str, stream: Any) -> None:
    ids, reader = stream(120), READERS[name]()
    figures = bs.referee(reader, ids, seed=1, block=15, cuts=30).figures
    assert figures.violations == () and figures.types == MODEL_TYPES
    assert figures.nats_per_token == pytest.approx(read(READERS[name](), ids, 0, block=15).nats, rel=1e-6)


def test_several_rows_of_a_reader_pass(stream: Any) -> None:
    figures = bs.referee(StaticReader(lstm()), stream(120), seed=1, batch_size=3, block=15).figures
    assert figures.audit.passed
    assert figures == bs.referee(lstm(), stream(120), seed=1, batch_size=3, block=15).figures


def test_an_object_is_copied_and_never_read_with() -> None:
    predictor = Bigrams()
    assert refereed(predictor, zoo.text(200)) == refereed(Bigrams, zoo.text(200))
    assert predictor.counts.sum() == TYPES * TYPES


def test_tensors_and_lists_are_tables_too() -> None:
    class Tensors(Bigrams):
        def predict(self, tokens: np.ndarray) -> Any:
            return torch.from_numpy(super().predict(tokens)).requires_grad_()

    class Lists(Bigrams):
        def predict(self, tokens: np.ndarray) -> Any:
            return super().predict(tokens).tolist()

    scores = {refereed(kind, zoo.text(200)).nats_per_token for kind in (Bigrams, Tensors, Lists)}
    assert len(scores) == 1


def test_the_seed_comes_from_the_system_and_repeats_the_audit(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.undo()
    first = refereed(zoo.LooksAheadAtOneIn100, zoo.text(), seed=None, cuts=50)
    assert first == refereed(zoo.LooksAheadAtOneIn100, zoo.text(), seed=int(first.audit.seed or 0), cuts=50)
    assert first.missed == pytest.approx(0.99**50)


def test_the_result_is_written_and_read(tmp_path: Path) -> None:
    zoo.forget()
    result = bs.referee(zoo.NotANumberAtTimes, zoo.text(300), types=TYPES, out=tmp_path / "r", name="mine")
    saved = result_at(tmp_path / "r" / "result.json")
    assert saved.figures == result.figures and saved.name == "mine" and saved.kind == "referee"
    assert saved.figures.nats_per_token is not None or saved.figures.perplexity is None
    (tmp_path / "other").mkdir()
    (tmp_path / "other" / "result.json").write_text('{"kind": "training"}')
    with pytest.raises(UserError, match="holds a result of kind training, which would be lost"):
        bs.referee(Bigrams, zoo.text(300), out=tmp_path / "other")


# --- what cannot be refereed ---


SHARED = Bigrams()


class Wide(Bigrams):
    def predict(self, tokens: np.ndarray) -> Any:
        return super().predict(tokens)[:, 1:]


class Short(Bigrams):
    def predict(self, tokens: np.ndarray) -> Any:
        return super().predict(tokens)[1:]


class Words(Bigrams):
    def predict(self, tokens: np.ndarray) -> Any:
        return ["a", "b"]


class Ragged(Bigrams):
    def predict(self, tokens: np.ndarray) -> Any:
        return [[0.1], [0.1, 0.2]]


def answering(answer: Callable[[torch.Tensor], Any]) -> type:
    """A predictor whose tables are converted to other answers."""

    class Answers(Bigrams):
        def predict(self, tokens: np.ndarray) -> Any:
            return answer(torch.from_numpy(super().predict(tokens)))

    return Answers


class Odd:
    def __array__(self, *_: Any, **__: Any) -> np.ndarray:
        raise KeyError("no array")


class Breaks(Bigrams):
    def predict(self, tokens: np.ndarray) -> Any:
        return 1 / 0


class Locked(Bigrams):
    """A predictor that Python cannot copy."""

    def __init__(self) -> None:
        super().__init__()
        self.lock = threading.Lock()


@pytest.mark.parametrize(
    ("predictor", "message"),
    [
        (Wide, r"predict returned a table of shape \(32, 11\) for 32 tokens; it must be \(32, 12\)"),
        (Short, r"predict returned a table of shape \(31, 12\) for 32 tokens; it must be \(32, 12\)"),
        (Words, "predict returned .'a', 'b'.; it must be a table of log-probabilities"),
        (Ragged, "it must be a table of log-probabilities"),
        (answering(lambda t: [*t.requires_grad_()]), "it must be a table of log-probabilities"),
        (answering(lambda t: t.to_sparse()), "it must be a table of log-probabilities"),
        (answering(lambda t: t.to(torch.complex64)), "it must be a table of log-probabilities"),
        (answering(lambda t: t > 0), "predict returned a Tensor of type torch.bool; it must be a table of"),
        (
            answering(lambda t: t.numpy().astype(object)),
            "predict returned a ndarray of type object; it must be a table of",
        ),
        (answering(lambda t: t.to("meta")), "predict returned a Tensor of type torch.float64; it must be a table of"),
        (
            Locked(),
            "this one cannot be .TypeError: cannot pickle .*lock.*; give its class, or a function that makes it",
        ),
        (answering(lambda t: Odd()), "it must be a table of log-probabilities"),
        (answering(lambda t: sys.exit(0)), r"test_referee.py, line \d+: predict failed \(SystemExit: 0\)"),
        (lambda: sys.exit("bye"), r"the factory failed \(SystemExit: bye\)"),
        (Breaks, r"test_referee.py, line \d+: predict failed \(ZeroDivisionError: division by zero\)"),
        (lambda: 3, r"3 has no predict\(\); give an object with predict and observe"),
        ([1], r"\[1\] is not a predictor"),
        (lambda: SHARED, "the factory made the same object twice"),
    ],
)
def test_what_cannot_be_refereed_is_said(predictor: Any, message: str) -> None:
    with pytest.raises(UserError, match=message):
        refereed(predictor, zoo.text(200), block=32, cuts=1)


def test_a_token_without_a_type_is_said() -> None:
    with pytest.raises(UserError, match="the text holds the token 11, and predict gives 11 types; give every type"):
        refereed(Wide, zoo.text(200), types=None)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"claim": {"bits": 1.0}}, "there is no figure 'bits'"),
        (
            {"claim": {"bits_per_byte": 1.0}},
            "the referee cannot count the bytes of token ids; leave the claim bits_per_byte out",
        ),
        ({"claim": {"tokens": float("nan")}}, "a claim must be a number"),
        ({"types": 0}, "types must be 1 or more, not 0"),
        ({"cuts": 0}, "cuts must be 1 or more"),
        ({"batch_size": 300}, "the text has 200 tokens but batch_size is 300"),
    ],
)
def test_wrong_options_are_said(options: dict[str, Any], message: str) -> None:
    with pytest.raises(UserError, match=message):
        refereed(Bigrams, zoo.text(200), **options)


# --- processes ---

PAGE = (Path(__file__).parents[2] / "docs" / "referee.md").read_text(encoding="utf-8")
EXAMPLES = dict(re.findall(r"```python (\S+\.py)\n(.*?)```", PAGE, re.DOTALL))


def process(path: Path, code: str) -> str:
    path.write_text(code, encoding="utf-8")
    return f"{sys.executable} {path}"


def test_the_example_of_the_protocol_is_the_python_example(tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_text("the cat sat on the mat " * 2)
    names: dict[str, Any] = {}
    exec(EXAMPLES["bigrams.py"], names)
    command = process(tmp_path / "bigram_process.py", EXAMPLES["bigram_process.py"])
    assert len(EXAMPLES["bigram_process.py"].splitlines()) <= 20 and "import torch" not in EXAMPLES["bigram_process.py"]
    spoken = bs.referee(process=command, text=tmp_path / "a.txt", seed=1).figures
    called = bs.referee(names["Bigrams"], tmp_path / "a.txt", seed=1, block=1).figures
    assert spoken.violations == called.violations == () and spoken.decoded == spoken.tokens == 46
    assert spoken.nats_per_token == pytest.approx(called.nats_per_token, rel=1e-12)


ANSWER = """
import json, subprocess, sys, time
for line in sys.stdin:
    request = json.loads(line)
    {body}
"""
PROBLEMS: dict[str, tuple[str, str]] = {
    "dies": (
        "if 'predict' in request: raise ValueError('no more')\n    print('{}', flush=True)",
        r"the process ended before it answered predict \(exit code 1: ValueError: no more\); correct it",
    ),
    "hangs": ("time.sleep(60)", "the process did not answer start in 0.3 seconds; allow more with timeout"),
    "talks": (
        "print('loading the model', flush=True)",
        "the process answered start with 'loading the model', which is not a JSON object; standard output is for answers",
    ),
    "floods": (
        "print('x' * 20_000, flush=True)",
        "the process answered start with more than 10,000 characters",
    ),
    "forgets": ("print('{}', flush=True)", 'without "log_probs"'),
    "wrong shape": (
        "print(json.dumps({'log_probs': [[-1.0] * 3]}), flush=True)",
        r"the log_probs of the process are a table of shape \(1, 3\) for 1 tokens; it must be \(1, 256\)",
    ),
    "ragged": (
        "print(json.dumps({'log_probs': [[-1.0], [-1.0, -2.0]]}), flush=True)",
        r"the log_probs of the process are \[\[-1.0\], \[-1.0, -2.0\]\]; it must be a table of log-probabilities",
    ),
    "nothing": (
        "print(json.dumps({'log_probs': None}), flush=True)",
        "the log_probs of the process are None; it must be",
    ),
    "escapes": (
        "subprocess.Popen(['sleep', '30'], start_new_session=True)\n    sys.exit()",
        "the process did not answer start in 0.3 seconds; allow more with timeout",
    ),
}


@pytest.mark.parametrize("name", fast_then_full(list(PROBLEMS), ["dies", "hangs", "talks", "escapes"]))
def test_a_process_that_fails_is_said_in_a_line(name: str, tmp_path: Path) -> None:
    body, message = PROBLEMS[name]
    command = process(tmp_path / "p.py", ANSWER.format(body=body))
    timeout = 0.3 if name in ("hangs", "escapes") else 60
    with pytest.raises(UserError, match=message) as error:
        bs.referee(process=command, text=b_text(tmp_path), timeout=timeout)
    assert "\n" not in str(error.value)


def test_an_answer_may_come_in_pieces_and_with_the_next_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The process writes its second answer with the first; what is after a line is the beginning of the next."""
    monkeypatch.setattr(predictor_process, "PIECE", 7)
    body = (
        "if 'start' in request: print(json.dumps({}), json.dumps({'log_probs': [[-0.25, -1.5]]}), sep='\\n', flush=True)\n"
        "    elif 'observe' in request: print('{}', flush=True)"
    )
    spoken = ProcessPredictor(process(tmp_path / "p.py", ANSWER.format(body=body)), types=2)
    try:
        assert spoken.predict(np.zeros(1, np.int64)) == [[-0.25, -1.5]]
        spoken.observe(np.zeros(1, np.int64))
    finally:
        spoken.close()


def test_a_predictor_whose_attributes_fail_is_said_in_a_line(tmp_path: Path) -> None:
    class Asks(Bigrams):
        def __getattr__(self, name: str) -> None:
            raise RuntimeError(f"no {name}")

    with pytest.raises(UserError, match=r"test_referee.py, line \d+: .* failed \(RuntimeError: no .*\); correct it"):
        bs.referee(Asks, b_text(tmp_path))


def b_text(folder: Path) -> Path:
    (folder / "text").write_bytes(b"abcabcabc")
    return folder / "text"


def test_a_process_that_says_nan_fails_the_audit(tmp_path: Path) -> None:
    body = "print(json.dumps({'log_probs': [[float('nan')] * 256]}), flush=True)"
    figures = bs.referee(process=process(tmp_path / "p.py", ANSWER.format(body=body)), text=b_text(tmp_path)).figures
    (violation,) = figures.violations
    assert violation.in_words() == "at token 0: the log-probability of type 0 is not a number (and 8 more times)"
    assert replace(violation, times=2).in_words().endswith("(and 1 more time)")
    assert figures.nats_per_token is None and figures.perplexity is None
    assert json.loads(json.dumps(figures.to_dict(), allow_nan=False))


@pytest.mark.parametrize("command", ["no-such-program", "", "'unclosed"])
def test_a_process_that_cannot_start_is_said(command: str, tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"cannot start .*; give the command line of a program"):
        bs.referee(process=command, text=b_text(tmp_path))


def test_a_reader_predictor_leaves_its_reader_alone(stream: Any) -> None:
    reader = StaticReader(lstm())
    reader.start(1)
    state = reader._state
    ReaderPredictor(reader, 1).predict(stream(9).astype(np.int64))
    assert reader._state is state
