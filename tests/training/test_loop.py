"""The training loop on a tiny run: learning rates, schedules, the averaging trigger, what is logged, saved and stopped."""

import dataclasses
import itertools
import json
import math
import time
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from runs import ADVERSARIAL, checkpoints, contents, events, outcome, with_settings, with_training

from backstory.config import RecallConfig, RunConfig, TextConfig
from backstory.data import Dataset, Recall, prepare, rows, segment_bounds
from backstory.evaluation import read
from backstory.models import ComposedModel, Prediction, clone, flatten
from backstory.readers import StaticReader
from backstory.results.run_listing import summary
from backstory.runs.run import load_run
from backstory.storage.checkpoint import read_checkpoint
from backstory.training import Likelihood, Stopped, loop
from backstory.training.loop import Trainer
from backstory.training.optimizers import non_monotonic
from backstory.utils.errors import NonFiniteError
from backstory.utils.process import StopRequest

Train = Callable[..., dict]
Segments = list[tuple[torch.Tensor, dict, dict]]


@pytest.fixture
def each_step(monkeypatch: pytest.MonkeyPatch) -> None:
    """Every step has its own line in the log."""
    monkeypatch.setattr(loop, "WINDOW", 1)


@pytest.mark.usefixtures("each_step")
def test_the_learning_rate_follows_the_length_of_the_segment(
    tiny_config: RunConfig, tiny_dataset: Dataset, quietly: Train, tmp_path: Path
) -> None:
    config = with_training(tiny_config, epochs=2, short_probability=0.3)
    quietly(config, tmp_path / "run")
    steps, settings = events(tmp_path / "run", "steps"), config.training
    length = rows(tiny_dataset.splits["train"].ids, settings.batch_size).shape[1]
    lengths = []
    for epoch in (1, 2):
        plan = segment_bounds(length, 10, 2.0, 5, 0.3, np.random.default_rng([config.seed, epoch]))
        lengths += [last - first for first, last in plan]
    assert [s["tokens"] for s in steps] == [n * settings.batch_size for n in lengths]
    assert [s["learning_rate"] for s in steps] == pytest.approx([2.0 * n / 10 for n in lengths], rel=1e-12)
    assert len(set(lengths)) > 4


@pytest.mark.usefixtures("each_step")
def test_the_rate_that_is_logged_is_the_one_that_was_used(
    tiny_config: RunConfig, quietly: Train, at_step: Callable, tmp_path: Path
) -> None:
    used: dict[int, float] = {}
    for step in (1, 5, 12):
        at_step(step, lambda optimizer, step=step: used.update({step: optimizer.param_groups[0]["lr"]}))
    quietly(with_training(tiny_config, schedule="step", decay_epochs=(1,)), tmp_path / "run")
    logged = {s["step"]: s["learning_rate"] for s in events(tmp_path / "run", "steps")}
    assert used == {step: logged[step] for step in (1, 5, 12)}


def test_the_step_schedule_decays_after_the_chosen_epochs(
    tiny_config: RunConfig, quietly: Train, tmp_path: Path
) -> None:
    quietly(with_training(tiny_config, epochs=4, schedule="step", decay_epochs=(1, 3)), tmp_path / "run")
    assert [e["learning_rate"] for e in events(tmp_path / "run", "epoch")] == [2.0, 0.5, 0.5, 0.125]


@pytest.mark.full
@pytest.mark.parametrize("patience", [0, 1])
def test_the_plateau_schedule_decays_when_validation_stops_improving(
    tiny_config: RunConfig, quietly: Train, tmp_path: Path, patience: int
) -> None:
    changes = {"schedule": "plateau", "decay_patience": patience, "decay_factor": 0.5, "learning_rate": 20.0}
    quietly(with_training(tiny_config, epochs=7, averaging="none", **changes), tmp_path / "run")
    epochs = events(tmp_path / "run", "epoch")
    rate, waited, best, expected = 20.0, 0, math.inf, []
    for epoch in epochs:
        expected.append(rate)
        waited = 0 if epoch["valid_nats"] < best else waited + 1
        best = min(best, epoch["valid_nats"])
        if waited > patience:
            rate, waited = 0.5 * rate, 0
    assert [e["learning_rate"] for e in epochs] == expected
    assert expected[-1] < 20.0


@pytest.mark.full
@pytest.mark.parametrize("averaging", ["triggered", "always"])
def test_the_average_is_the_mean_of_every_iterate_since_it_began(
    averaging: str, tiny_config: RunConfig, quietly: Train, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    iterates: list[list[torch.Tensor]] = []
    step, trainers = Trainer._step, []

    def noted(self: Trainer, *arguments: Any) -> dict[str, float]:
        figures = step(self, *arguments)
        if self.average is not None:
            iterates.append([parameter.detach().double() for parameter in self.parameters])
        trainers[:] = [self]
        return figures

    monkeypatch.setattr(Trainer, "_step", noted)
    quietly(with_training(tiny_config, epochs=6, learning_rate=40.0, averaging=averaging, trigger=1), tmp_path / "run")
    [trainer] = trainers
    assert 10 < len(iterates) < trainer.progress.step or averaging == "always"
    with trainer.average.applied():
        for parameter, *values in zip(trainer.parameters, *iterates, strict=True):
            mean = torch.stack(values).mean(0)
            assert torch.allclose(parameter.double(), mean, rtol=0, atol=1e-5 * float(mean.abs().max()))


def test_a_checkpoint_is_due_after_minutes(tiny_config: RunConfig) -> None:
    config = with_training(tiny_config, save_minutes=0.5)
    for seconds, due in ((29.0, False), (31.0, True)):
        trainer: Any = SimpleNamespace(saved_at=time.monotonic() - seconds, config=config)
        assert Trainer._checkpoint_is_due(trainer) == due


@pytest.mark.full
def test_fine_tuning_begins_with_the_best_weights(
    tiny_config: RunConfig, quietly: Train, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    step, first = Trainer._step, {}

    def noted(self: Trainer, *arguments: Any) -> dict[str, float]:
        if self.progress.finetuning and not first:
            first.update({name: tensor.clone() for name, tensor in self.model.state_dict().items()})
            [best] = checkpoints(tmp_path / "run", "best")
            assert best.name != "best-5", "the last ones are others"
            first["best"] = read_checkpoint(best).tensors["weights"]
        return step(self, *arguments)

    monkeypatch.setattr(Trainer, "_step", noted)
    config = with_training(tiny_config, epochs=5, learning_rate=40.0, averaging="none", finetune_epochs=1)
    quietly(config, tmp_path / "run")
    best = first.pop("best")
    assert best.keys() <= first.keys() and all(torch.equal(first[name], best[name]) for name in best)


@pytest.mark.full
def test_averaging_begins_with_the_epoch_after_the_trigger(
    tiny_config: RunConfig, quietly: Train, tmp_path: Path
) -> None:
    quietly(with_training(tiny_config, epochs=6, learning_rate=40.0, trigger=1), tmp_path / "run")
    epochs = events(tmp_path / "run", "epoch")
    values = [e["valid_nats"] for e in epochs]
    stalled = [non_monotonic(values[:i], value, 1) for i, value in enumerate(values)]
    first = stalled.index(True)
    assert first < 5
    assert [e["averaging"] for e in epochs] == [number > first for number in range(6)]


def test_the_best_weights_are_those_that_were_validated(
    tiny_config: RunConfig, tiny_dataset: Dataset, quietly: Train, tmp_path: Path
) -> None:
    result = quietly(with_training(tiny_config, epochs=3, averaging="always"), tmp_path / "run")
    epochs = events(tmp_path / "run", "epoch")
    best = min(epochs, key=lambda e: e["valid_nats"])
    assert [e["best"] for e in epochs] == [
        e["valid_nats"] == min(x["valid_nats"] for x in epochs[:i]) for i, e in enumerate(epochs, 1)
    ]
    assert (result.figures.best_epoch, result.figures.valid_nats) == (best["epoch"], best["valid_nats"])
    assert [p.name for p in checkpoints(tmp_path / "run", "best")] == [f"best-{best['epoch']}"]
    # With averaging these are the averages, not the weights that training goes on with.
    run = load_run(tmp_path / "run")
    ids, start = tiny_dataset.splits["valid"].ids, tiny_dataset.vocabulary.start
    assert read(StaticReader(run.model), ids, start, batch_size=10).nats == best["valid_nats"]
    last = read_checkpoint(checkpoints(tmp_path / "run", "last")[0])
    saved = read_checkpoint(checkpoints(tmp_path / "run", "best")[0]).tensors["weights"]
    assert best["epoch"] == 3
    assert all(torch.equal(saved[n], last.tensors["average"][n]) for n in saved)
    assert not all(torch.equal(saved[n], last.tensors["weights"][n]) for n in saved)


@pytest.mark.parametrize(("keep", "epoch"), [("last", 4), ("best", 2)])
def test_the_last_weights_are_kept_if_that_is_set(
    keep: str,
    epoch: int,
    tiny_config: RunConfig,
    quietly: Train,
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
) -> None:
    """The decay depends on the best validation so far all the same."""
    values = [5.0, 4.0, 4.5, 4.3]
    monkeypatch.setattr(Trainer, "read_validation", lambda self: (values[self.progress.epoch - 1], {}))
    changes = {"schedule": "plateau", "decay_factor": 0.5, "averaging": "none", "segment_deviation": 0.0}
    config = with_training(tiny_config, epochs=4, short_probability=0.0, keep=keep, **changes)
    result = quietly(config, tmp_path / "run")
    epochs = events(tmp_path / "run", "epoch")
    assert [e["best"] for e in epochs] == [True, True, False, False]
    assert [e["learning_rate"] for e in epochs] == [2.0, 2.0, 2.0, 1.0]
    assert (result.figures.best_epoch, result.figures.valid_nats) == (epoch, values[epoch - 1])
    assert [p.name for p in checkpoints(tmp_path / "run", "best")] == [f"best-{epoch}"]
    assert summary(tmp_path / "run", "run").valid_nats == values[epoch - 1]
    if keep == "last":
        last = read_checkpoint(checkpoints(tmp_path / "run", "last")[0]).tensors["weights"]
        saved = read_checkpoint(checkpoints(tmp_path / "run", "best")[0]).tensors["weights"]
        assert all(torch.equal(saved[name], last[name]) for name in saved)


def test_the_log_accounts_for_every_token(
    tiny_config: RunConfig, tiny_dataset: Dataset, quietly: Train, tmp_path: Path
) -> None:
    quietly(with_training(tiny_config, epochs=2), tmp_path / "run")
    length = rows(tiny_dataset.splits["train"].ids, 3).shape[1]
    for epoch in events(tmp_path / "run", "epoch"):
        windows = [w for w in events(tmp_path / "run", "steps") if w["epoch"] == epoch["epoch"]]
        assert sum(w["tokens"] for w in windows) == 3 * (length - 1)
        assert windows[-1]["step"] == epoch["step"]
        total = sum(w["nats"] * w["tokens"] for w in windows)
        assert epoch["train_nats"] == pytest.approx(total / (3 * (length - 1)), rel=1e-9)


@pytest.mark.full
def test_training_learns(tiny_config: RunConfig, quietly: Train, tmp_path: Path) -> None:
    changes = {"optimizer": "adam", "learning_rate": 0.03, "averaging": "none", "activation_l2": 0.0}
    result = quietly(with_training(tiny_config, epochs=5, **changes), tmp_path / "run")
    curve = [e.valid_nats for e in result.figures.curve]
    assert curve[-1] < 0.8 * math.log(17)  # 17 types
    assert result.figures.valid_perplexity == pytest.approx(math.exp(min(curve)))


@pytest.fixture
def segments(monkeypatch: pytest.MonkeyPatch) -> Segments:
    """Tokens of every segment trained on, and the states before and after it."""
    found: Segments = []
    forward = ComposedModel.forward

    def note(self: ComposedModel, tokens: torch.Tensor, state: object) -> tuple:
        prediction, after = forward(self, tokens, state)
        if self.training:
            assert not any(t.requires_grad for t in flatten(state).values())
            found.append((tokens, flatten(clone(state)), flatten(clone(after))))
        return prediction, after

    monkeypatch.setattr(ComposedModel, "forward", note)
    return found


def by_epoch(segments: Segments) -> tuple[Segments, Segments]:
    """Settings of two epochs with segments of fixed length."""
    return segments[: len(segments) // 2], segments[len(segments) // 2 :]


def test_segments_are_the_text_read_from_state_to_state(
    tiny_config: RunConfig, tiny_dataset: Dataset, quietly: Train, segments: Segments, tmp_path: Path
) -> None:
    quietly(with_training(tiny_config, epochs=2, segment_deviation=0.0, short_probability=0.0), tmp_path / "run")
    text = torch.from_numpy(rows(tiny_dataset.splits["train"].ids, 3).astype(np.int64))
    for epoch in by_epoch(segments):
        assert torch.equal(torch.cat([tokens for tokens, _, _ in epoch], 1), text[:, :-1])
        assert not any(t.any() for t in epoch[0][1].values())  # each epoch begins afresh
        for (_, _, ended), (_, began, _) in itertools.pairwise(epoch):
            assert all(torch.equal(ended[name], began[name]) and ended[name].any() for name in ended)


def test_documents_are_fresh_in_every_epoch(
    tiny_config: RunConfig, quietly: Train, segments: Segments, tmp_path: Path
) -> None:
    recall = RecallConfig(entities=20, cast=4, words=10, length=60, documents=10, held_out=3, new_each_epoch=True)
    config = dataclasses.replace(tiny_config, text=TextConfig("recall", recall=recall))
    changes = {"segment_deviation": 0.0, "short_probability": 0.0}
    result = quietly(with_training(config, epochs=2, **changes), tmp_path / "run")
    drawn, dataset = Recall(recall), prepare(config.text)
    for number, epoch in enumerate(by_epoch(segments), start=1):
        text = rows(np.concatenate([*drawn.draw("train", number)]), 3).astype(np.int64)
        assert torch.equal(torch.cat([tokens for tokens, _, _ in epoch], 1), torch.from_numpy(text[:, :-1]))
    assert result.provenance.corpus.fingerprint == dataset.fingerprint


def test_partial_shuffle_rotates_every_row_anew_each_epoch(
    tiny_config: RunConfig, tiny_dataset: Dataset, quietly: Train, segments: Segments, tmp_path: Path
) -> None:
    changes = {"segment_deviation": 0.0, "short_probability": 0.0, "partial_shuffle": True}
    quietly(with_training(tiny_config, epochs=2, **changes), tmp_path / "run")
    text = rows(tiny_dataset.splits["train"].ids, 3).astype(np.int64)
    turns = []
    for epoch in by_epoch(segments):
        found = torch.cat([tokens for tokens, _, _ in epoch], 1).numpy()
        for row, whole in zip(found, text, strict=True):
            turn = [t for t in range(len(whole)) if np.array_equal(np.roll(whole, -t)[:-1], row)]
            assert len(turn) == 1
            turns += turn
    assert len(set(turns)) > 4  # of six


def test_the_seed_makes_the_run(tiny_config: RunConfig, tiny_run: Path, quietly: Train, tmp_path: Path) -> None:
    quietly(tiny_config, tmp_path / "same")
    quietly(type(tiny_config)(tiny_config.text, tiny_config.model, tiny_config.training, seed=2), tmp_path / "other")
    assert events(tmp_path / "same") == events(tiny_run) != events(tmp_path / "other")


def test_clipping_bounds_the_step(tiny_config: RunConfig, quietly: Train, at_step: Callable, tmp_path: Path) -> None:
    norms: dict[float, float] = {}
    for clip in (0.0, 1e-3):

        def note(optimizer: torch.optim.Optimizer, clip: float = clip) -> None:
            gradients = [p.grad for group in optimizer.param_groups for p in group["params"]]
            norms[clip] = torch.cat([g.flatten() for g in gradients]).norm().item()

        at_step(1, note)
        quietly(with_training(tiny_config, clip=clip), tmp_path / str(clip))
    assert norms[0.0] > 0.01
    assert norms[1e-3] == pytest.approx(1e-3, rel=1e-2)


# --- what the stages ask of objective and model ---


def test_each_stage_trains_with_its_own_radius_and_noise(
    tiny_config: RunConfig, quietly: Train, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen: list[tuple[bool, float, float]] = []
    step = Trainer._step

    def noting(trainer: Trainer, text: torch.Tensor, asked: torch.Tensor | None, rate: float) -> dict[str, float]:
        objective = trainer.gradient.objective  # type: ignore[attr-defined]
        seen.append((trainer.progress.finetuning, objective.adversarial, trainer.model.embedding.noise))
        return step(trainer, text, asked, rate)

    monkeypatch.setattr(Trainer, "_step", noting)
    config = with_settings(with_training(tiny_config, finetune_epochs=1), ADVERSARIAL)
    quietly(config, tmp_path / "run")
    assert list(dict.fromkeys(seen)) == [(False, 0.005, 0.15), (True, 0.028, 0.0)]


@pytest.mark.parametrize(("setting", "value"), [("model.head.adversarial", 0.5), ("model.embedding.noise", 0.5)])
def test_training_sees_it_and_validation_does_not(
    setting: str, value: float, tiny_config: RunConfig, tiny_dataset: Dataset, quietly: Train, tmp_path: Path
) -> None:
    quietly(tiny_config, tmp_path / "plain")
    quietly(with_settings(tiny_config, {setting: value}), tmp_path / "run")
    plain, found = (events(tmp_path / name, "epoch")[0] for name in ("plain", "run"))
    assert found["train_nats"] != plain["train_nats"]
    run = load_run(tmp_path / "run")
    ids, start = tiny_dataset.splits["valid"].ids, tiny_dataset.vocabulary.start
    assert read(StaticReader(run.model), ids, start, batch_size=10).nats == found["valid_nats"]


# --- parts with a rate of their own, figures of an objective's own ---


def in_groups(model: torch.nn.Module) -> list[dict[str, Any]]:
    """The last parameters in front, at a tenth of the rate."""
    listed = list(model.parameters())
    return [{"params": listed[3:], "scale": 0.1}, {"params": listed[:3]}]


class Telling(Likelihood):
    """A likelihood with figures of its own."""

    figures = ("nats", "first", "length")

    def __call__(
        self, prediction: Prediction, targets: torch.Tensor, asked: torch.Tensor | None = None
    ) -> tuple[torch.Tensor, dict[str, torch.Tensor]]:
        loss, figures = super().__call__(prediction, targets, asked)
        return loss, {**figures, "first": targets.float().mean(), "length": torch.tensor(float(targets.shape[1]))}


@pytest.mark.full
def test_a_group_has_its_own_rate_and_resumes(
    tiny_config: RunConfig,
    quietly: Train,
    at_step: Callable,
    resumes_exactly: Callable,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(loop, "parameter_groups", in_groups)
    used: list[list[float]] = []
    at_step(1, lambda optimizer: used.append([group["lr"] for group in optimizer.param_groups]))
    config = with_training(tiny_config, optimizer="adam", learning_rate=0.01, averaging="none", segment_deviation=0.0)
    quietly(with_training(config, short_probability=0.0), tmp_path / "one")
    assert used == [pytest.approx([0.001, 0.01])]
    resumes_exactly(config, 9)


@pytest.mark.full
def test_every_figure_of_the_objective_is_logged_by_its_name(
    tiny_config: RunConfig, quietly: Train, stop_after: Callable, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    config = with_training(tiny_config, epochs=2, short_probability=0.3)
    quietly(config, tmp_path / "plain")
    monkeypatch.setattr(loop, "build_objective", lambda *_: Telling(2.0, 1.0))
    monkeypatch.setattr(loop, "WINDOW", 5)
    quietly(config, tmp_path / "straight")
    windows, epochs = events(tmp_path / "straight", "steps"), events(tmp_path / "straight", "epoch")
    for epoch, plain in zip(epochs, events(tmp_path / "plain", "epoch"), strict=True):
        assert {k: v for k, v in epoch.items() if k not in ("first", "length")} == plain
        inside = [w for w in windows if w["epoch"] == epoch["epoch"]]
        tokens = sum(w["tokens"] for w in inside)
        for name, total in (("nats", epoch["train_nats"]), ("first", epoch["first"]), ("length", epoch["length"])):
            assert total == pytest.approx(sum(w[name] * w["tokens"] for w in inside) / tokens, rel=1e-9)
    stop_after(8)  # in the middle of a window
    with pytest.raises(Stopped):
        quietly(config, tmp_path / "broken")
    quietly(config, tmp_path / "broken", mode="resume")
    assert outcome(tmp_path / "broken") == outcome(tmp_path / "straight")


@pytest.mark.usefixtures("each_step")
def test_figures_are_weighted_by_tokens(
    tiny_config: RunConfig, quietly: Train, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(loop, "build_objective", lambda *_: Telling(2.0, 1.0))
    quietly(with_training(tiny_config, short_probability=0.3), tmp_path / "run")
    lengths = [w["tokens"] / 3 for w in events(tmp_path / "run", "steps")]
    assert [w["length"] for w in events(tmp_path / "run", "steps")] == lengths
    weighted = sum(n * n for n in lengths) / sum(lengths)
    assert weighted != pytest.approx(sum(lengths) / len(lengths), rel=1e-3)
    assert events(tmp_path / "run", "epoch")[0]["length"] == pytest.approx(weighted, rel=1e-9)


# --- numbers that are none ---


def poison(optimizer: torch.optim.Optimizer) -> None:
    with torch.no_grad():
        optimizer.param_groups[0]["params"][0][0, 0] = torch.nan


def infect(optimizer: torch.optim.Optimizer) -> None:
    """The loss stays finite; the gradient does not."""
    optimizer.param_groups[0]["params"][0].register_hook(lambda gradient: gradient * torch.inf)


@pytest.mark.parametrize(("damage", "what"), [(poison, "loss nan"), (infect, "norm of the gradient (nan|inf)")])
def test_a_number_that_is_none_stops_before_the_update(
    tiny_config: RunConfig, quietly: Train, at_step: Callable, tmp_path: Path, damage: Callable, what: str
) -> None:
    config, folder, later = with_training(tiny_config, epochs=2), tmp_path / "run", []
    kept: dict[str, object] = {}

    def strike(optimizer: torch.optim.Optimizer) -> None:
        damage(optimizer)
        parameters = optimizer.param_groups[0]["params"]
        kept.update(
            parameters=parameters,
            values=[p.detach().clone() for p in parameters],
            files=contents(folder / "checkpoints"),
        )

    at_step(25, strike)
    at_step(26, later.append)
    with pytest.raises(NonFiniteError, match=f"step 26: .*{what}.*; stopped before the update"):
        quietly(config, folder)
    assert later == []
    for parameter, value in zip(kept["parameters"], kept["values"], strict=True):  # type: ignore[arg-type]
        assert torch.equal(torch.nan_to_num(parameter), torch.nan_to_num(value))
    assert contents(folder / "checkpoints") == kept["files"] != {}
    tensors = read_checkpoint(checkpoints(folder, "last")[0]).tensors["weights"]
    assert all(t.isfinite().all() for t in tensors.values())
    assert not (folder / "result.json").exists()


@pytest.mark.full
def test_weights_that_are_none_are_not_saved_and_the_checkpoint_before_is_gone_on_from(
    tiny_config: RunConfig, quietly: Train, at_step: Callable, tmp_path: Path
) -> None:
    config, folder = with_training(tiny_config, save_minutes=1e-9), tmp_path / "run"
    at_step(8, poison)
    with pytest.raises(NonFiniteError, match=r"step 8: the update left weights that are not finite.*--resume"):
        quietly(config, folder)
    assert [p.name for p in checkpoints(folder, "last")] == ["last-7", "last-6"]
    quietly(config, folder, mode="resume")
    quietly(config, tmp_path / "straight")
    assert outcome(folder) == outcome(tmp_path / "straight")


def test_a_checkpoint_that_would_break_down_at_once_goes_if_there_is_one_before(
    tiny_config: RunConfig, quietly: Train, at_step: Callable, tmp_path: Path
) -> None:
    config, folder = with_training(tiny_config, save_minutes=1e-9), tmp_path / "run"

    def spoil(optimizer: torch.optim.Optimizer) -> None:
        with torch.no_grad():
            optimizer.param_groups[0]["params"][0].fill_(1e38)  # finite, and saved; the loss of the next step is not

    at_step(8, spoil)
    with pytest.raises(NonFiniteError, match=r"step 9: .*The last good checkpoint is whole: go on with --resume"):
        quietly(config, folder)
    assert [p.name for p in checkpoints(folder, "last")] == ["last-7"]
    quietly(with_training(config, learning_rate=0.1), folder, mode="resume", accept=frozenset({"config"}))
    assert all(math.isfinite(e["valid_nats"]) for e in events(folder, "epoch"))


def test_a_validation_that_is_no_number_saves_nothing(
    tiny_config: RunConfig, quietly: Train, at_step: Callable, tiny_run: Path, tmp_path: Path
) -> None:
    at_step(events(tiny_run, "epoch")[0]["step"], poison)
    with pytest.raises(NonFiniteError, match="epoch 1: the validation loss is nan"):
        quietly(tiny_config, tmp_path / "run")
    assert contents(tmp_path / "run" / "checkpoints") == {}


def test_the_log_holds_no_numbers_that_are_none(tiny_run: Path) -> None:
    def refuse(name: str) -> float:
        raise AssertionError(name)

    for line in (tiny_run / "metrics.jsonl").read_text().splitlines():
        json.loads(line, parse_constant=refuse)


def test_a_signal_that_comes_while_ranks_agree_counts_the_next_time() -> None:
    stop = StopRequest()

    def largest(signal: float, due: float) -> list[float]:
        stop.signal = 15 if stop.signal is None else stop.signal  # as a handler does, at any moment
        return [signal, due]

    trainer: Any = SimpleNamespace(ranks=SimpleNamespace(largest=largest), callbacks=SimpleNamespace(error=None))
    assert Trainer._agreed(trainer, stop) == (False, False)
    assert Trainer._agreed(trainer, stop) == (True, False) and stop.signal == 15
