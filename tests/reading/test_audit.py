"""The audit: honest readers pass it, and every planted cheat is caught, at any seed."""

from collections.abc import Callable

import numpy as np
import pytest
import torch
from cheats import CHEATS, CHEATS_WITH_ROWS

from backstory.models import ComposedModel, Precision
from backstory.reading import Audit, AuditReport, Block, StaticReader, block_count, read

Stream = Callable[[int], np.ndarray]
LENGTH, BLOCK = 120, 15


def audited(reader: StaticReader, ids: np.ndarray, rows: int, seed: int, places: int = 3) -> AuditReport:
    audit = Audit(block_count(len(ids), rows, BLOCK), places, seed)
    read(reader, ids, 0, rows=rows, block=BLOCK, observer=audit)
    return audit.report


@pytest.mark.parametrize("rows", [1, 4])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_a_static_reader_passes(model: ComposedModel, stream: Stream, dtype: torch.dtype, rows: int) -> None:
    for seed in range(5):
        report = audited(StaticReader(model, Precision(dtype, "")), stream(LENGTH), rows, seed)
        assert report.failures == []
        assert report.passed and report.places == min(3, block_count(LENGTH, rows, BLOCK))


@pytest.mark.parametrize("scale", [3.0, 10.0])
def test_a_static_reader_passes_in_bfloat16_however_sure_it_is(
    model: ComposedModel, stream: Stream, scale: float
) -> None:
    # Logits of 30 are known to an eighth in bfloat16, and whole and pieces round them differently.
    with torch.no_grad():
        model.head.weight.mul_(scale)
    for seed in range(5):
        report = audited(StaticReader(model, Precision(torch.bfloat16, "")), stream(LENGTH), 2, seed)
        assert report.failures == []


@pytest.mark.parametrize("rows", [1, 3])
@pytest.mark.parametrize("cheat", CHEATS, ids=lambda cheat: cheat.__name__)
def test_a_cheat_is_caught(cheat: type[StaticReader], small_lstm: ComposedModel, stream: Stream, rows: int) -> None:
    for seed in range(5):
        report = audited(cheat(small_lstm), stream(LENGTH), rows, seed)
        assert not report.checks[CHEATS[cheat]], f"seed {seed}"
        assert not report.passed


@pytest.mark.parametrize("rows", [2, 3, 7])
@pytest.mark.parametrize("cheat", CHEATS_WITH_ROWS, ids=lambda cheat: cheat.__name__)
def test_a_cheat_between_rows_is_caught(
    cheat: type[StaticReader], small_lstm: ComposedModel, stream: Stream, rows: int
) -> None:
    for seed in range(5):
        report = audited(cheat(small_lstm), stream(LENGTH), rows, seed)
        assert not report.checks["causal"], f"seed {seed}"


def test_auditing_does_not_change_the_scores(model: ComposedModel, stream: Stream) -> None:
    plain = read(StaticReader(model), stream(LENGTH), 0, rows=2, block=BLOCK)
    audit = Audit(block_count(LENGTH, 2, BLOCK), places=100)
    watched = read(StaticReader(model), stream(LENGTH), 0, rows=2, block=BLOCK, observer=audit)
    assert watched.nats == plain.nats
    assert audit.report.passed and audit.report.places == block_count(LENGTH, 2, BLOCK)


def test_the_places_follow_the_seed() -> None:
    chosen = [Audit(1000, 8, seed)._chosen for seed in (1, 1, 2)]
    assert chosen[0] == chosen[1] != chosen[2]
    assert all(len(c) == 8 and max(c) < 1000 for c in chosen)


def test_blocks_read_twice_or_left_out_are_no_single_pass(model: ComposedModel, stream: Stream) -> None:
    tokens = torch.from_numpy(stream(2 * BLOCK).astype(np.int64)).view(2, BLOCK)
    scored = torch.ones_like(tokens, dtype=torch.bool)
    for order in ([0, 0], [0, 2], [1]):
        audit, reader = Audit(3, places=1), StaticReader(model)
        reader.start(2)
        for index in order:
            audit.before(reader, Block(tokens, tokens.roll(-1, 1), scored, index))
        assert not audit.report.checks["one_pass"]


def test_a_report_without_places_has_not_passed() -> None:
    assert not AuditReport().passed
    described = AuditReport(places=2).as_dict()
    assert described["passed"] is True
    assert set(described) == {"passed", "places", "checks", "failures"}


def test_blocks_of_one_token_can_be_audited(model: ComposedModel, stream: Stream) -> None:
    audit = Audit(5, places=5)
    read(StaticReader(model), stream(5), 0, block=1, observer=audit)
    assert audit.report.passed and audit.report.places == 5
