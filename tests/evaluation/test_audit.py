"""The audit: honest readers pass it, and every planted cheat is caught, at any seed."""

import json
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from cheats import (
    CHEATS,
    CHEATS_WITH_ROWS,
    HIDDEN_CHEATS,
    HIDDEN_CHEATS_WITH_ROWS,
    RARE_CHEATS,
    InflatesALittle,
    InflatesALot,
    KnowsSeed0,
    PeeksAtOneIn100,
    StartsAfresh,
)
from tiers import fast_then_full, several

import backstory.evaluation.audit as audits
from backstory.evaluation import Audit, AuditReport, Block, block_count, read
from backstory.evaluation.audit import system_seed
from backstory.models import ComposedModel, Precision
from backstory.readers import StaticReader

Stream = Callable[[int], np.ndarray]
LENGTH, BLOCK = 120, 15


def audited(reader: StaticReader, ids: np.ndarray, batch_size: int, seed: int, places: int = 3) -> AuditReport:
    audit = Audit(block_count(len(ids), batch_size, BLOCK), places, seed)
    read(reader, ids, 0, batch_size=batch_size, block=BLOCK, observer=audit)
    return audit.report


@pytest.mark.parametrize("batch_size", [1, 4])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_a_static_reader_passes(model: ComposedModel, stream: Stream, dtype: torch.dtype, batch_size: int) -> None:
    for seed in range(several(2, 5)):
        report = audited(StaticReader(model, Precision(dtype, "")), stream(LENGTH), batch_size, seed)
        assert report.failures == []
        assert report.passed and report.places == min(3, block_count(LENGTH, batch_size, BLOCK))


@pytest.mark.parametrize("scale", fast_then_full([3.0, 10.0], [10.0]))
def test_a_static_reader_passes_in_bfloat16_however_sure_it_is(
    model: ComposedModel, stream: Stream, scale: float
) -> None:
    # Logits of 30 are known to an eighth in bfloat16, and whole and pieces round them differently.
    with torch.no_grad():
        model.head.weight.mul_(scale)
    for seed in range(several(2, 5)):
        report = audited(StaticReader(model, Precision(torch.bfloat16, "")), stream(LENGTH), 2, seed)
        assert report.failures == []


@pytest.mark.parametrize("batch_size", fast_then_full([1, 3], [3]))
@pytest.mark.parametrize("cheat", CHEATS, ids=lambda cheat: cheat.__name__)
def test_a_cheat_is_caught(
    cheat: type[StaticReader], small_lstm: ComposedModel, stream: Stream, batch_size: int
) -> None:
    for seed in range(several(1, 5)):
        report = audited(cheat(small_lstm), stream(LENGTH), batch_size, seed)
        assert not report.checks[CHEATS[cheat]], f"seed {seed}"
        assert not report.passed


@pytest.mark.parametrize("batch_size", fast_then_full([2, 3, 7], [3]))
@pytest.mark.parametrize("cheat", CHEATS_WITH_ROWS, ids=lambda cheat: cheat.__name__)
def test_a_cheat_between_rows_is_caught(
    cheat: type[StaticReader], small_lstm: ComposedModel, stream: Stream, batch_size: int
) -> None:
    for seed in range(several(1, 5)):
        report = audited(cheat(small_lstm), stream(LENGTH), batch_size, seed)
        assert not report.checks["causal"], f"seed {seed}"


LATER_OR_OTHER_ROWS = [
    *(c for c, check in CHEATS.items() if check == "causal"),
    *CHEATS_WITH_ROWS,
    *HIDDEN_CHEATS_WITH_ROWS,
]


@pytest.mark.parametrize("cheat", LATER_OR_OTHER_ROWS, ids=lambda cheat: cheat.__name__)
def test_a_cheat_is_caught_where_tokens_share_products(
    cheat: type[StaticReader], small_lstm: ComposedModel, stream: Stream
) -> None:
    small_lstm.capabilities = replace(small_lstm.capabilities, shares_products=True)
    for seed in range(several(1, 3)):
        assert not audited(cheat(small_lstm), stream(LENGTH), 3, seed).checks["causal"], f"seed {seed}"


@pytest.mark.parametrize("cheat", [c for c in HIDDEN_CHEATS if c is not KnowsSeed0], ids=lambda cheat: cheat.__name__)
def test_a_cheat_that_hides_is_caught(cheat: type[StaticReader], small_lstm: ComposedModel, stream: Stream) -> None:
    for seed in range(several(1, 3)):
        report = audited(cheat(small_lstm), stream(LENGTH), 1, seed)
        assert not report.checks[HIDDEN_CHEATS[cheat]] and not report.passed, f"seed {seed}"


@pytest.mark.parametrize("cheat", HIDDEN_CHEATS_WITH_ROWS, ids=lambda cheat: cheat.__name__)
def test_what_passes_between_rows_when_they_are_observed_is_caught(
    cheat: type[StaticReader], small_lstm: ComposedModel, stream: Stream
) -> None:
    for batch_size in (2, 5):
        report = audited(cheat(small_lstm), stream(LENGTH), batch_size, seed=1)
        assert not report.checks["causal"], f"batch {batch_size}"


@pytest.mark.full
@pytest.mark.parametrize("cheat", RARE_CHEATS, ids=lambda cheat: cheat.__name__)
def test_a_rare_cheat_is_caught_where_there_are_cuts_enough(
    cheat: type[StaticReader], small_lstm: ComposedModel, stream: Stream
) -> None:
    audit = Audit(3, 3, seed=1, cuts=256)
    read(cheat(small_lstm), stream(3 * 256), 0, block=256, observer=audit)
    assert not audit.report.checks["causal"]


@pytest.mark.parametrize(("cuts", "tried"), [(None, 4), (1, 1), (9, 9)])
def test_a_number_of_cuts_that_is_given_holds_for_a_model_that_rereads_too(
    cuts: int | None, tried: int, model: ComposedModel, stream: Stream
) -> None:
    model.capabilities = replace(model.capabilities, rereads=True)
    audit = Audit(2, 1, seed=1, cuts=cuts)
    read(StaticReader(model), stream(2 * 32), 0, block=32, observer=audit)
    assert audit.report.passed and audit.report.cuts == tried + 1  # one is altered after


@pytest.mark.full
def test_a_look_at_one_position_in_twenty_is_caught_with_the_usual_cuts(
    small_lstm: ComposedModel, stream: Stream
) -> None:
    cheat = next(c for c in RARE_CHEATS if c.__name__ == "PeeksAtOneIn20")
    for seed in range(3):  # 128 cuts miss it once in 700 times
        audit = Audit(8, 8, seed)
        read(cheat(small_lstm), stream(8 * 64), 0, block=64, observer=audit)
        assert audit.report.cuts == 8 * 17 and not audit.report.checks["causal"], f"seed {seed}"


@pytest.mark.parametrize("cheat", [InflatesALot, InflatesALittle], ids=lambda cheat: cheat.__name__)
def test_a_distribution_that_is_inflated_is_caught_in_bfloat16(
    cheat: type[StaticReader], model: ComposedModel, stream: Stream
) -> None:
    for seed in range(several(1, 3)):
        report = audited(cheat(model, Precision(torch.bfloat16, "")), stream(LENGTH), 2, seed)
        assert not report.checks["distribution"], f"seed {seed}"


@pytest.mark.full
def test_who_knows_seed_0_does_not_know_the_seed(small_lstm: ComposedModel, stream: Stream) -> None:
    reader, ids = KnowsSeed0(small_lstm), stream(KnowsSeed0.blocks * BLOCK)
    reader.size = BLOCK
    honest = read(StaticReader(small_lstm), ids, 0, block=BLOCK).nats
    for seed in (0, 1, 2):
        audit = Audit(KnowsSeed0.blocks, KnowsSeed0.places, seed)
        assert read(reader, ids, 0, block=BLOCK, observer=audit).nats < honest
        assert audit.report.passed == (seed == 0)


def test_a_seed_comes_from_the_system_and_repeats_the_audit(
    small_lstm: ComposedModel, stream: Stream, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(audits, "system_seed", system_seed)
    first, second = Audit(1000), Audit(1000)
    assert first.report.seed != second.report.seed and int(first.report.seed) > 1 << 32
    reports = []
    for seed in (None, int(first.report.seed), int(first.report.seed)):
        audit = Audit(1000 if seed is None else 8, 2, seed)
        if seed is not None:
            read(PeeksAtOneIn100(small_lstm), stream(8 * BLOCK), 0, block=BLOCK, observer=audit)
            reports.append(audit.report)
    assert reports[0] == reports[1] and reports[0].seed == first.report.seed
    assert Audit(1000, 8, int(first.report.seed))._audited_blocks == first._audited_blocks


def test_an_audit_that_was_saved_goes_on_with_its_seed(small_lstm: ComposedModel) -> None:
    saved = json.loads(json.dumps(Audit(1000, 8).state_dict()))
    again = Audit(1000, 8)
    again.load_state_dict(saved)
    assert (
        again.state_dict() == saved
        and again._audited_blocks == Audit(1000, 8, int(saved["report"]["seed"]))._audited_blocks
    )


def test_the_reader_that_reads_is_never_called_by_the_audit(small_lstm: ComposedModel, stream: Stream) -> None:
    called: list[str] = []

    class Noted(StaticReader):
        def snapshot(self) -> Any:
            called.append("snapshot")
            return super().snapshot()

        def __deepcopy__(self, memo: dict[int, Any]) -> StaticReader:
            other = StaticReader(self.model)  # what copies do is not noted
            other.restore(self._state)
            return other

    tokens = torch.from_numpy(stream(BLOCK).astype(np.int64))[None]
    reader, audit = Noted(small_lstm), Audit(1, 1)
    reader.start(1)
    block = Block(tokens, tokens.roll(-1, 1), torch.ones_like(tokens, dtype=torch.bool), 0)
    state = reader._state
    audit.before(reader, block)
    assert called == [] and reader._state is state


def test_auditing_does_not_change_the_scores(model: ComposedModel, stream: Stream) -> None:
    plain = read(StaticReader(model), stream(LENGTH), 0, batch_size=2, block=BLOCK)
    audit = Audit(block_count(LENGTH, 2, BLOCK), places=100)
    watched = read(StaticReader(model), stream(LENGTH), 0, batch_size=2, block=BLOCK, observer=audit)
    assert watched.nats == plain.nats
    assert audit.report.passed and audit.report.places == block_count(LENGTH, 2, BLOCK)


def test_the_places_follow_the_seed() -> None:
    chosen = [Audit(1000, 8, seed)._audited_blocks for seed in (1, 1, 2)]
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


@pytest.mark.parametrize("slides", [True, False])
def test_a_window_is_named_where_a_sliding_one_may_be_at_fault(
    model: ComposedModel, stream: Stream, slides: bool
) -> None:
    model.capabilities = replace(model.capabilities, slides=slides)
    failures = audited(StartsAfresh(model), stream(LENGTH), 1, seed=0).failures
    assert [("--window" in failure) for failure in failures if "cut into blocks" in failure] == [slides]


def test_a_report_without_places_has_not_passed() -> None:
    assert not AuditReport().passed
    described = AuditReport(places=2).record().to_dict()
    assert described["passed"] is True
    assert set(described) == {"passed", "places", "cuts", "steps", "seed", "checks", "failures"}


def test_blocks_of_one_token_can_be_audited(model: ComposedModel, stream: Stream) -> None:
    audit = Audit(5, places=5)
    read(StaticReader(model), stream(5), 0, block=1, observer=audit)
    assert audit.report.passed and audit.report.places == 5
