"""The number of threads of a reading: timed with the model, kept by a checkpoint, and without effect on a score."""

import shutil
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from small_models import lstm

import backstory as bs
from backstory.codec.code_file import unpack
from backstory.context import laboratory
from backstory.context.examination import SingleProcess
from backstory.evaluation import generation
from backstory.evaluation.opening import open_evaluation
from backstory.evaluation.session import Line, session
from backstory.models.devices import restored_threads
from backstory.models.state import flatten
from backstory.readers import StaticReader, reading_threads
from backstory.readers.reading_threads import choose_threads, resume_threads
from backstory.readers.registry import parse_stack
from backstory.runs.run import load_run
from backstory.tuning.preparation import collect_statistics, tune_reader


@pytest.fixture
def two_cores(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """A machine on which torch would use two threads."""
    monkeypatch.delenv("OMP_NUM_THREADS")
    with restored_threads():
        torch.set_num_threads(2)
        yield


@pytest.fixture
def fastest(monkeypatch: pytest.MonkeyPatch, two_cores: None) -> list[int]:
    """Numbers of threads that are fastest at each choice in turn, the last one from then on; 1 unless a test changes it."""
    numbers = [1]

    def timed(step: Callable[[], None], steps: float, most: int) -> int:
        step()
        return numbers.pop(0) if len(numbers) > 1 else numbers[0]

    monkeypatch.setattr(reading_threads, "_fastest", timed)
    return numbers


def threads_of(result: Any) -> str:
    return result.provenance.device.rpartition(", ")[2].rstrip(")")


class Clock:
    """A clock that a step moves on, by a time that depends on the threads."""

    def __init__(self, seconds: dict[int, float]) -> None:
        self.now, self.seconds, self.steps = 0.0, seconds, 0

    def thread_time(self) -> float:
        return self.now

    def step(self) -> None:
        self.steps += 1
        self.now += self.seconds[torch.get_num_threads()]


@pytest.mark.parametrize(
    ("seconds", "steps", "timed"),
    [(0.01, 5, True), (0.04, 5, False), (0.04, 199, False), (0.04, 200, True), (4.0, 200, True)],
    ids=["short and quick", "short", "nearly long enough", "long", "long and slow"],
)
def test_timing_is_short_beside_the_reading(
    two_cores: None, monkeypatch: pytest.MonkeyPatch, seconds: float, steps: int, timed: bool
) -> None:
    clock, called = Clock({1: seconds, 2: seconds}), []
    monkeypatch.setattr(reading_threads, "time", clock)
    monkeypatch.setattr(reading_threads, "fastest_threads", lambda *arguments: called.append(arguments) or (1, {}))
    assert reading_threads._fastest(clock.step, steps, 2) == (1 if timed else None)
    assert (clock.steps, len(called)) == (2, int(timed))


@pytest.mark.parametrize("device", ["cuda", "cpu"])
def test_nothing_is_timed_where_nothing_can_be_chosen(
    monkeypatch: pytest.MonkeyPatch, fastest: list[int], device: str
) -> None:
    fastest[:] = [3]
    reader, ids = StaticReader(lstm()), np.zeros(50, int)
    if device == "cuda":
        fake = SimpleNamespace(parameters=lambda: iter([SimpleNamespace(device=torch.device("cuda"))]))
        choose_threads(SimpleNamespace(model=fake), ids)  # type: ignore[arg-type]
        assert torch.get_num_threads() == 2
        return
    torch.set_num_threads(1)  # one core, or the choice of the calling program
    choose_threads(reader, ids)
    assert torch.get_num_threads() == 1
    torch.set_num_threads(2)
    with monkeypatch.context() as patch:
        patch.setenv("OMP_NUM_THREADS", "2")
        choose_threads(reader, ids)
    assert torch.get_num_threads() == 2
    choose_threads(reader, ids)
    assert torch.get_num_threads() == 3


@pytest.mark.parametrize(
    ("batch_size", "tokens", "shape"),
    [
        (1, 500, (1, 128)),
        (3, 500, (3, 42)),
        (100, 500, (100, 1)),
        (200, 500, (200, 1)),
        (80, 70, (70, 1)),
        (1, 20, (1, 20)),
    ],
)
def test_a_timed_step_has_the_rows_of_the_reading(
    fastest: list[int], batch_size: int, tokens: int, shape: tuple[int, int]
) -> None:
    reader, shapes = StaticReader(lstm()), []
    reader.model.register_forward_pre_hook(lambda _, inputs: shapes.append(tuple(inputs[0].shape)))
    choose_threads(reader, np.zeros(tokens, int), batch_size)
    assert shapes[0] == shape


@pytest.mark.parametrize(
    ("batch_size", "tokens", "shapes"),
    [
        (1, 49, []),
        (1, 50, [(1, 1)]),
        (1, 200, [(1, 1)] * 4),
        (1, 100_000, [(1, 1)] * 8),
        (4, 199, []),
        (4, 100_000, [(4, 1)] * 8),
        (200, 100_000, [(200, 1)] * 8),
    ],
)
def test_a_step_token_by_token_is_short_beside_the_reading(
    fastest: list[int], batch_size: int, tokens: int, shapes: list[tuple[int, int]]
) -> None:
    reader, seen = StaticReader(lstm()), []
    reader.model.register_forward_pre_hook(lambda _, inputs: seen.append(tuple(inputs[0].shape)))
    assert choose_threads(reader, np.zeros(2000, int), batch_size, tokens, by_token=True) == bool(shapes)
    assert seen == shapes and torch.get_num_threads() == (1 if shapes else 2)


@pytest.mark.parametrize("by_token", [False, True])
def test_the_number_stays_where_timing_would_take_long(
    two_cores: None, monkeypatch: pytest.MonkeyPatch, by_token: bool
) -> None:
    monkeypatch.setattr(reading_threads, "SECONDS", 0.0)
    assert not choose_threads(StaticReader(lstm()), np.zeros(200, int), by_token=by_token)
    assert torch.get_num_threads() == 2


@pytest.mark.parametrize(
    ("device", "number"),
    [
        ("cpu (AMD EPYC, 1 thread)", 1),
        ("cpu (AMD EPYC, 2 threads)", 2),
        ("cpu (AMD EPYC, 64 threads)", 2),
        ("cpu (AMD EPYC, 0 threads)", 2),
        ("cuda (1 thread)", 2),
        (None, 2),
    ],
)
def test_a_checkpoint_says_the_number(two_cores: None, device: object, number: int) -> None:
    resume_threads(device)
    assert torch.get_num_threads() == number


def test_a_checkpoint_does_not_change_a_number_that_is_fixed(monkeypatch: pytest.MonkeyPatch, two_cores: None) -> None:
    monkeypatch.setenv("OMP_NUM_THREADS", "2")
    resume_threads("cpu (AMD EPYC, 1 thread)")
    assert torch.get_num_threads() == 2


@pytest.mark.parametrize("options", [{}, {"batch_size": 3}, {"reader": "cache"}, {"each_line": True}], ids=str)
def test_timing_changes_no_score(
    fastest: list[int], tiny_run: Path, tiny_corpus: Path, options: dict[str, Any]
) -> None:
    text = tiny_corpus / "test.txt"
    timed = bs.evaluate(tiny_run, text=text, audit_seed=1, **options)
    assert torch.get_num_threads() == 2
    torch.set_num_threads(1)
    fixed = bs.evaluate(tiny_run, text=text, audit_seed=1, **options)
    assert (fixed.figures, threads_of(fixed)) == (timed.figures, threads_of(timed)) and fastest == [1]


def test_timing_leaves_a_reader_and_random_numbers_as_they_are(fastest: list[int]) -> None:
    ids = np.arange(200) % 7
    reader = StaticReader(lstm())
    reader.start(2)
    reader.predict(torch.zeros(2, 5, dtype=torch.long))
    reader.observe(torch.zeros(2, 5, dtype=torch.long))
    before, random = reader.snapshot(), torch.get_rng_state()
    reader.model.train()
    reader.model.register_forward_pre_hook(lambda *_: print(torch.rand(1)))
    choose_threads(reader, ids)
    assert torch.equal(torch.get_rng_state(), random) and reader.model.training
    after = flatten(reader.snapshot())
    assert all(torch.equal(tensor, after[name]) for name, tensor in flatten(before).items())


def test_a_resumed_evaluation_keeps_its_number(
    fastest: list[int], tiny_run: Path, tiny_corpus: Path, tmp_path: Path
) -> None:
    fastest[:] = [1, 2]
    text, out = tmp_path / "text.txt", tmp_path / "out"
    text.write_text((tiny_corpus / "train.txt").read_text() * 2)

    class Killed(Exception):
        pass

    def stop(done: int, total: int) -> None:
        if done >= 600:
            raise Killed

    with pytest.raises(Killed):
        bs.evaluate(tiny_run, text=text, out=out, save_every=1e-9, progress=stop)
    assert fastest == [2]
    assert threads_of(bs.evaluate(tiny_run, text=text, out=out, resume=True)) == "1 thread"
    assert torch.get_num_threads() == 2


def evaluated(run: Path, text: Path, out: Path) -> Any:
    return bs.evaluate(run, text=text, out=out)


def explained(run: Path, text: Path, out: Path) -> Any:
    return bs.explain(run, text=text, out=out)


def compared(run: Path, text: Path, out: Path) -> Any:
    return bs.compare(run, reader="cache", text=text, out=out)


def examined(run: Path, text: Path, out: Path) -> Any:
    return bs.examine(run, text=text, out=out, targets=20, maximum_context=20, context=10)


@pytest.mark.parametrize("work", [evaluated, explained, compared, examined])
def test_results_are_read_with_the_fastest_number_and_record_it(
    fastest: list[int], work: Callable[[Path, Path, Path], Any], tiny_run: Path, tiny_corpus: Path, tmp_path: Path
) -> None:
    assert threads_of(work(tiny_run, tiny_corpus / "test.txt", tmp_path / "out")) == "1 thread"
    assert torch.get_num_threads() == 2


def test_readers_are_prepared_with_the_fastest_number(fastest: list[int], tiny_run: Path, tmp_path: Path) -> None:
    own_run, seen = Path(shutil.copytree(tiny_run, tmp_path / "run")), []

    def note(done: int, total: int) -> None:
        seen.append(torch.get_num_threads())

    collect_statistics(open_evaluation(own_run, split="train"), "all", 200, 10, 5, note)
    assert set(seen) == {1} and torch.get_num_threads() == 2
    seen.clear()
    tune_reader(own_run, parse_stack("cache"), "valid", 200, progress=note)
    assert set(seen) == {1} and torch.get_num_threads() == 2


def test_processes_that_share_an_examination_keep_their_number(
    fastest: list[int], tiny_run: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Two of them might choose differently."""

    class Opened(Exception):
        pass

    def opened(*_: object) -> None:
        raise Opened(torch.get_num_threads())

    monkeypatch.setattr(laboratory, "subject_of_run", opened)
    for ranks, number in ((SingleProcess(), 1), (replace(SingleProcess(), world=2), 2)):
        with pytest.raises(Opened, match=str(number)):
            laboratory.examine_run(tiny_run, ranks=ranks)


# --- token by token ---

TEXT = b"ann saw the tea\nbob took more jam\n" * 20


@pytest.mark.full
@pytest.mark.parametrize("options", [{}, {"batch_size": 3}, {"reader": "cache"}], ids=str)
def test_a_file_is_coded_with_the_fastest_number_and_decoded_with_the_same(
    fastest: list[int], tiny_run: Path, options: dict[str, Any]
) -> None:
    code = bs.compress(TEXT, tiny_run, **options).data
    assert torch.get_num_threads() == 2
    seen, fastest[:] = [], [7]  # which would be recorded, or seen, if the decoder chose
    assert bs.decompress(code, tiny_run, progress=lambda *_: seen.append(torch.get_num_threads())) == TEXT
    assert set(seen) == {1} and torch.get_num_threads() == 2
    torch.set_num_threads(1)
    assert bs.compress(TEXT, tiny_run, **options).data == code
    assert unpack(code, "it")[0].machine["threads"] == 1


def test_a_reader_with_blocks_of_its_own_is_timed_in_blocks(fastest: list[int], tiny_run: Path) -> None:
    """It predicts a block again for each of its tokens."""
    run = load_run(tiny_run)
    run.model.capabilities = replace(run.model.capabilities, exact_state=False)
    shapes: list[tuple[int, int]] = []
    run.model.register_forward_pre_hook(lambda _, inputs: shapes.append(tuple(inputs[0].shape)))
    bs.compress(TEXT[:80], run)
    assert shapes[:4] == [(1, 24), (1, 1), (1, 2), (1, 3)]


def test_a_short_file_is_not_timed(fastest: list[int], tiny_run: Path) -> None:
    assert unpack(bs.compress(TEXT[:33], tiny_run).data, "it")[0].machine["threads"] == 2


@pytest.mark.full
def test_a_resumed_compression_keeps_its_number(fastest: list[int], tiny_run: Path, tmp_path: Path) -> None:
    fastest[:] = [1, 2]

    class Killed(Exception):
        pass

    def stop(done: int, total: int) -> None:
        if done >= 60:
            raise Killed

    with pytest.raises(Killed):
        bs.compress(TEXT, tiny_run, tmp_path / "out", save_every=1e-9, progress=stop)
    assert fastest == [2]
    resumed = bs.compress(TEXT, tiny_run, tmp_path / "out", resume=True).data
    assert unpack(resumed, "it")[0].machine["threads"] == 1 and torch.get_num_threads() == 2
    fastest[:] = [1]
    assert bs.compress(TEXT, tiny_run).data == resumed


def test_a_text_is_continued_with_a_number_that_no_clock_chooses(
    fastest: list[int], tiny_run: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Otherwise a seed could give two texts on one machine."""
    fastest[:] = [7]
    used, between, step = [], [], StaticReader.predict
    monkeypatch.setattr(StaticReader, "predict", lambda *given: used.append(torch.get_num_threads()) or step(*given))
    pieces = []
    for piece in bs.generate(tiny_run, "ann saw", tokens=60, seed=3):
        pieces.append(piece)
        between.append(torch.get_num_threads())
    assert used == [1] * 61 and set(between) == {2}  # the prompt, and the tokens that are drawn
    torch.set_num_threads(1)
    assert list(bs.generate(tiny_run, "ann saw", tokens=60, seed=3)) == pieces


@pytest.mark.parametrize("reason", ["fixed", "large"])
def test_a_text_is_continued_with_more_threads_where_their_number_is_fixed_or_the_model_large(
    two_cores: None, tiny_run: Path, monkeypatch: pytest.MonkeyPatch, reason: str
) -> None:
    if reason == "fixed":
        monkeypatch.setenv("OMP_NUM_THREADS", "2")
    else:
        monkeypatch.setattr(generation, "LARGE", 1000)
    used, step = [], StaticReader.predict
    monkeypatch.setattr(StaticReader, "predict", lambda *given: used.append(torch.get_num_threads()) or step(*given))
    list(bs.generate(tiny_run, "ann saw", tokens=3))
    assert set(used) == {2}


def read_lines(run: Path, text: bytes, path: Path, **options: Any) -> tuple[list[float], list[int]]:
    """Read a text in a session; return the score of each line, and the number of threads with which it was scored."""
    nats, numbers = [], []

    def note(line: Line) -> None:
        nats.append(sum(line.nats))
        numbers.append(torch.get_num_threads())

    path.write_bytes(text)
    with path.open("rb") as file, session(run, on_line=note, **options) as opened:
        opened.read(file.fileno())
    assert torch.get_num_threads() == 2
    return nats, numbers


@pytest.mark.full
def test_a_session_chooses_once_it_has_read_enough(fastest: list[int], tiny_run: Path, tmp_path: Path) -> None:
    nats, numbers = read_lines(tiny_run, TEXT * 8, tmp_path / "text")
    assert numbers.index(1) == 1024 // 5  # a line has five tokens
    assert set(numbers[numbers.index(1) :]) == {1}
    assert set(read_lines(tiny_run, TEXT * 5, tmp_path / "text")[1]) == {2}  # fewer tokens
    fastest[:] = [2]
    assert read_lines(tiny_run, TEXT * 8, tmp_path / "text")[0] == nats


def test_a_session_with_a_slow_model_chooses_later(
    two_cores: None, tiny_run: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    tried: list[float] = []

    def timed(step: Callable[[], None], steps: float, most: int) -> int | None:
        tried.append(steps)
        return 1 if len(tried) == 2 else None

    monkeypatch.setattr(reading_threads, "_fastest", timed)
    monkeypatch.setattr("backstory.evaluation.session.LONG", 1200)
    numbers = read_lines(tiny_run, TEXT * 9, tmp_path / "text")[1]
    assert tried == [1024 / 128, 1280 / 128] and {*numbers[:100]} == {2} and numbers[-1] == 1


@pytest.mark.full
def test_a_resumed_session_keeps_its_number(fastest: list[int], tiny_run: Path, tmp_path: Path) -> None:
    fastest[:] = [1, 2]
    parts = TEXT * 8, TEXT
    first, _ = read_lines(tiny_run, parts[0], tmp_path / "text", folder=tmp_path / "session")
    second, numbers = read_lines(tiny_run, parts[1], tmp_path / "text", folder=tmp_path / "session", resume=True)
    assert fastest == [2] and set(numbers) == {1}
    fastest[:] = [1]
    assert read_lines(tiny_run, b"".join(parts), tmp_path / "text")[0] == pytest.approx(first + second, rel=1e-6)
