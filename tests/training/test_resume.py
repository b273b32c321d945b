"""A run that was stopped, or broken off, and resumed ends bit for bit as one that ran through."""

import dataclasses
import hashlib
import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
import yaml
from runs import (
    ADVERSARIAL,
    checkpoints,
    contents,
    events,
    outcome,
    saved_progress,
    with_model,
    with_settings,
    with_training,
)
from tiers import fast_then_full

from backstory.config import (
    AlgorithmConfig,
    AuxiliarySoftmaxConfig,
    GateConfig,
    MixtureConfig,
    RecallConfig,
    RewardConfig,
    RunConfig,
    SoftmaxConfig,
    SpanBufferConfig,
    TextConfig,
    to_yaml,
)
from backstory.models.kernels import recurrence
from backstory.results import result_at
from backstory.storage.checkpoint import read_checkpoint, write_checkpoint
from backstory.training import Stopped
from backstory.utils.errors import UserError

Train = Callable[..., dict]
StopAfter = Callable[[int], None]
Change = Callable[[RunConfig], RunConfig]

FRESH = TextConfig(
    "recall",
    recall=RecallConfig(entities=20, cast=4, words=10, length=60, documents=10, held_out=3, new_each_epoch=True),
)
VARIANTS: dict[str, Change] = {
    # A learning rate that is too high for the last epochs to be better, so that averaging is triggered.
    "sgd, averaging triggered": lambda c: with_training(c, epochs=5, learning_rate=40.0, trigger=1),
    "sgd, always averaged": lambda c: with_training(c, epochs=3, averaging="always"),
    "adam, mixture": lambda c: with_model(
        with_training(c, epochs=3, optimizer="adam", learning_rate=0.01, averaging="none"),
        head=MixtureConfig(experts=3),
    ),
    # And here for some epoch, after which the schedule lowers it; for which one depends on how the processor rounds.
    "adamw in parts, warm-up, cosine": lambda c: with_training(
        c,
        epochs=3,
        optimizer="adamw",
        learning_rate=0.01,
        accumulate=2,
        warmup_steps=9,
        schedule="cosine",
        averaging="none",
    ),
    "nadam, plateau": lambda c: with_training(
        c, epochs=6, optimizer="nadam", learning_rate=3.0, schedule="plateau", averaging="none"
    ),
    "partial shuffle": lambda c: with_training(c, epochs=3, partial_shuffle=True, averaging="none"),
    "fine-tuned": lambda c: with_training(c, epochs=2, finetune_epochs=2, finetune_learning_rate=1.0),
    "span buffer, gate that waits": lambda c: with_model(
        with_training(c, epochs=3),
        buffer=SpanBufferConfig(size=12, span=4, gate=GateConfig(rate=0.5, after=1, reward=RewardConfig(weight=0.01))),
    ),
    "span buffer, grid, adam": lambda c: with_model(
        with_training(c, epochs=3, optimizer="adam", learning_rate=0.01, averaging="none"),
        buffer=SpanBufferConfig(size=12, span=4, alignment="fixed", gate=GateConfig(rate=0.5)),
    ),
    "second softmax": lambda c: with_model(with_training(c, epochs=3), buffer=AuxiliarySoftmaxConfig()),
    "bfloat16": lambda c: with_training(c, epochs=3, precision="bfloat16"),
    "fresh documents": lambda c: dataclasses.replace(with_training(c, epochs=3, partial_shuffle=True), text=FRESH),
    "adversarial, fine-tuned": lambda c: with_settings(
        with_training(c, epochs=2, finetune_epochs=2, finetune_learning_rate=1.0), ADVERSARIAL
    ),
}
FAST = [
    "sgd, averaging triggered", "nadam, plateau", "fine-tuned", "span buffer, gate that waits", "bfloat16",
    "fresh documents",
]  # fmt: skip


@pytest.fixture(params=fast_then_full(VARIANTS, FAST))
def config(request: pytest.FixtureRequest, tiny_config: RunConfig, monkeypatch: pytest.MonkeyPatch) -> RunConfig:
    monkeypatch.setattr(recurrence, "OWN_FROM", 1)  # in bfloat16, the library's own recurrence
    return VARIANTS[request.param](tiny_config)


def is_as_named(config: RunConfig, folder: Path) -> None:
    """Check that the run exercised the subject of its variant."""
    settings, epochs = config.training, events(folder, "epoch")
    if settings.trigger == 1:
        assert not epochs[0]["averaging"] and epochs[-1]["averaging"]
    if settings.averaging == "always":
        assert all(e["averaging"] for e in epochs)
    if settings.schedule == "plateau":
        assert epochs[-1]["learning_rate"] < settings.learning_rate
    if settings.finetune_epochs:
        assert [e["finetuning"] for e in epochs] == [e["averaging"] for e in epochs] == [False, False, True, True]
        assert [e["learning_rate"] for e in epochs] == [2.0, 2.0, 1.0, 1.0]
    assert (checkpoints(folder, "last")[0] / "average.safetensors").exists() == epochs[-1]["averaging"]


@pytest.mark.full
def test_stopped_and_resumed_is_straight_through(
    config: RunConfig, quietly: Train, stop_after: StopAfter, tmp_path: Path
) -> None:
    straight, broken = tmp_path / "straight", tmp_path / "broken"
    quietly(config, straight)
    is_as_named(config, straight)
    ends = [0, *(e["step"] for e in events(straight, "epoch"))]
    # In the middle of the second epoch, right at its end, and in the middle of the last.
    stops = [(ends[1] + ends[2]) // 2, ends[2], (ends[-2] + ends[-1]) // 2]
    done = 0
    for step in stops:
        stop_after(step - done)
        with pytest.raises(Stopped, match="--resume"):
            quietly(config, broken, mode="resume" if done else "new")
        assert saved_progress(broken)["step"] == step
        assert not (broken / "result.json").exists()
        done = step
    quietly(config, broken, mode="resume")
    assert outcome(broken) == outcome(straight)


class Crash(BaseException):
    """The process ends here."""


def crash(optimizer: torch.optim.Optimizer) -> None:
    raise Crash


@pytest.mark.parametrize("minutes", [10.0, 1e-9], ids=["saved per epoch", "saved per step"])
def test_broken_off_and_resumed_is_straight_through(
    tiny_config: RunConfig, quietly: Train, at_step: Callable, tmp_path: Path, minutes: float
) -> None:
    straight, broken = tmp_path / "straight", tmp_path / "broken"
    config = with_training(tiny_config, epochs=2, batch_size=12, save_minutes=minutes)
    quietly(config, straight)
    end = events(straight, "epoch")[0]["step"]
    at_step(end + 3, crash)
    with pytest.raises(Crash):
        quietly(config, broken)
    # Saved before the step that was broken off; what the log says of later steps is cut off on resuming.
    assert saved_progress(broken)["step"] == (end if minutes == 10.0 else end + 2)
    with open(broken / "metrics.jsonl", "a") as log:
        log.write('{"event": "steps", "step": 10000')
    quietly(config, broken, mode="resume")
    assert outcome(broken) == outcome(straight)


def test_a_run_broken_off_before_its_first_checkpoint_begins_again(
    tiny_config: RunConfig, quietly: Train, at_step: Callable, tmp_path: Path
) -> None:
    at_step(3, crash)
    with pytest.raises(Crash):
        quietly(tiny_config, tmp_path / "broken")
    quietly(tiny_config, tmp_path / "broken", mode="resume")
    quietly(tiny_config, tmp_path / "straight")
    assert outcome(tmp_path / "broken") == outcome(tmp_path / "straight")


@pytest.mark.parametrize(
    ("key", "value"),
    [("command", 5), ("command", "\ud800"), ("started", []), ("init_from", "x"), ("init_from", {"run": 5})],
)
def test_a_damaged_record_of_the_start_does_not_end_a_resumed_training(
    key: str, value: object, tiny_config: RunConfig, quietly: Train, stop_after: StopAfter, tmp_path: Path
) -> None:
    stop_after(3)
    with pytest.raises(Stopped):
        quietly(tiny_config, tmp_path)
    record = json.loads((tmp_path / "run.json").read_text(encoding="utf-8"))
    (tmp_path / "run.json").write_text(json.dumps(record | {key: value}), encoding="utf-8")
    quietly(tiny_config, tmp_path, mode="resume")
    provenance = result_at(tmp_path / "result.json").provenance
    assert provenance.started is not None and provenance.init_from is None


def test_resuming_a_finished_run_changes_nothing(
    tiny_config: RunConfig, tiny_run: Path, quietly: Train, tmp_path: Path
) -> None:
    folder = tmp_path / "tiny"
    shutil.copytree(tiny_run, folder)
    quietly(tiny_config, folder, mode="resume")
    assert outcome(folder) == outcome(tiny_run)


def test_what_a_kill_left_of_removed_checkpoints_is_swept(
    tiny_config: RunConfig, tiny_run: Path, quietly: Train, tmp_path: Path
) -> None:
    folder = Path(shutil.copytree(tiny_run, tmp_path / "tiny"))
    last, best = checkpoints(folder, "last")[0], checkpoints(folder, "best")[0]
    for origin, name in ((last, f"{last.name}-replaced"), (last, "last-1"), (best, f"{best.name}-replaced")):
        copy = Path(shutil.copytree(origin, folder / "checkpoints" / name))
        if origin == last:  # the removal had begun
            (copy / "manifest.json").unlink()
    quietly(tiny_config, folder, mode="resume")
    assert {p.name for p in (folder / "checkpoints").iterdir()} == {last.name, best.name}


def test_a_replaced_checkpoint_is_kept_where_its_replacement_is_damaged(
    tiny_config: RunConfig, tiny_run: Path, quietly: Train, tmp_path: Path
) -> None:
    folder = Path(shutil.copytree(tiny_run, tmp_path / "tiny"))
    last = checkpoints(folder, "last")[0]
    shutil.copytree(last, replaced := last.with_name(f"{last.name}-replaced"))
    (last / "manifest.json").unlink()
    with pytest.warns(UserWarning, match="skipping a damaged checkpoint"):
        quietly(tiny_config, folder, mode="resume")
    assert replaced.is_dir() and last.is_dir()


# --- damaged checkpoints ---


@pytest.fixture
def stopped(tiny_config: RunConfig, stopped_once: Path, tmp_path: Path) -> tuple[RunConfig, Path]:
    """A run that was stopped in its second epoch, with two checkpoints."""
    folder = Path(shutil.copytree(stopped_once, tmp_path / "run"))
    assert len(checkpoints(folder, "last")) == 2
    return with_training(tiny_config, epochs=2), folder


def flip(path: Path) -> None:
    data = bytearray(path.read_bytes())
    data[-1] ^= 1
    path.write_bytes(data)


@pytest.mark.full
def test_a_damaged_newest_checkpoint_falls_back_to_the_one_before(
    stopped: tuple[RunConfig, Path], quietly: Train, not_stopped: dict[str, Any]
) -> None:
    config, folder = stopped
    flip(checkpoints(folder, "last")[0] / "weights.safetensors")
    with pytest.warns(UserWarning, match="damaged checkpoint: .*last-35"):
        quietly(config, folder, mode="resume")
    assert outcome(folder) == not_stopped


def test_a_run_that_fell_back_can_stop_before_the_damaged_checkpoint(
    stopped: tuple[RunConfig, Path], quietly: Train, stop_after: StopAfter, not_stopped: dict[str, Any]
) -> None:
    config, folder = stopped
    flip(checkpoints(folder, "last")[0] / "weights.safetensors")
    stop_after(3)
    with pytest.warns(UserWarning, match="last-35"), pytest.raises(Stopped):
        quietly(config, folder, mode="resume")
    # Checkpoints after the one it fell back to are gone now that a newer one is complete.
    assert not (folder / "checkpoints" / "last-35").exists()
    quietly(config, folder, mode="resume")
    assert outcome(folder) == not_stopped


# --- what resuming refuses ---


def refused(quietly: Train, config: RunConfig, folder: Path, match: str, **options: object) -> None:
    before = contents(folder)
    with pytest.raises(UserError, match=match) as told:
        quietly(config, folder, mode="resume", **options)
    assert "\n" not in str(told.value)
    assert contents(folder) == before


def test_other_settings_are_refused_unless_accepted(stopped: tuple[RunConfig, Path], quietly: Train) -> None:
    config, folder = stopped
    changed = with_training(config, learning_rate=0.5, clip=0.3)
    told = r"training.clip: 1.0 there, 0.3 here, training.learning_rate: 2.0 there, 0.5 here"
    refused(quietly, changed, folder, told)
    refused(quietly, changed, folder, told, accept=frozenset({"corpus"}))
    quietly(changed, folder, mode="resume", accept=frozenset({"config"}))
    assert [e["learning_rate"] for e in events(folder, "epoch")] == [2.0, 0.5]


@pytest.mark.parametrize(("before", "after"), [("none", "always"), ("always", "none")])
def test_averaging_begins_and_ends_where_it_is_accepted(
    tiny_config: RunConfig, quietly: Train, stop_after: StopAfter, tmp_path: Path, before: str, after: str
) -> None:
    config = with_training(tiny_config, epochs=2, averaging=before)
    stop_after(5)
    with pytest.raises(Stopped):
        quietly(config, tmp_path / "run")
    accepted = with_training(config, averaging=after)
    quietly(accepted, tmp_path / "run", mode="resume", accept=frozenset({"config"}))
    assert {e["averaging"] for e in events(tmp_path / "run", "epoch")} == {after == "always"}


@pytest.mark.full
def test_a_finished_run_goes_on_when_more_epochs_are_accepted(
    tiny_config: RunConfig, tiny_run: Path, quietly: Train, tmp_path: Path
) -> None:
    shutil.copytree(tiny_run, tmp_path / "run")
    longer = with_training(tiny_config, epochs=2)
    refused(quietly, longer, tmp_path / "run", "training.epochs: 1 there, 2 here")
    quietly(longer, tmp_path / "run", mode="resume", accept=frozenset({"config"}))
    quietly(longer, tmp_path / "straight")
    assert events(tmp_path / "run") == events(tmp_path / "straight")


@pytest.fixture
def at_most(at_step: Callable) -> Callable[[int], None]:
    """Abort the test after this many more steps, in case the run never ends."""
    return lambda steps: at_step(steps, crash)


@pytest.mark.full
def test_a_sampled_softmax_goes_on_with_the_words_it_would_have_drawn(
    tiny_config: RunConfig, quietly: Train, at_step: Callable, tmp_path: Path
) -> None:
    model = with_model(tiny_config, head=SoftmaxConfig(sampled=5, frequent=5))
    config = with_training(model, epochs=2, save_minutes=1e-9)
    quietly(config, tmp_path / "straight")
    at_step(5, crash)
    with pytest.raises(Crash):
        quietly(config, tmp_path / "broken")
    quietly(config, tmp_path / "broken", mode="resume")
    assert outcome(tmp_path / "broken") == outcome(tmp_path / "straight")
    whole = with_training(tiny_config, epochs=2, save_minutes=1e-9)
    quietly(whole, tmp_path / "whole")
    assert outcome(tmp_path / "whole") != outcome(tmp_path / "straight")


@pytest.mark.full
@pytest.mark.parametrize("segments", [0, 3], ids=["between epochs", "inside one"])
def test_a_run_that_is_past_the_accepted_epochs_is_finished(
    tiny_config: RunConfig,
    tiny_run: Path,
    quietly: Train,
    stop_after: StopAfter,
    at_most: Callable,
    tmp_path: Path,
    segments: int,
) -> None:
    folder, config = tmp_path / "run", with_training(tiny_config, epochs=5)
    end = events_end(tiny_run)
    stop_after(2 * end + segments)
    with pytest.raises(Stopped):
        quietly(config, folder)
    at_most(200)
    accept = frozenset({"config"})
    result = quietly(with_training(config, epochs=1), folder, mode="resume", accept=accept)
    assert result.figures.epochs == len(events(folder, "epoch")) >= 1
    assert saved_progress(folder)["finished"]
    # And back: the epoch goes on where it was left.
    quietly(config, folder, mode="resume", accept=accept)
    quietly(config, tmp_path / "straight")
    assert events(folder, "epoch") == events(tmp_path / "straight", "epoch")


def events_end(folder: Path) -> int:
    """Steps of an epoch, about: lengths are drawn."""
    return events(folder, "epoch")[0]["step"]


@pytest.mark.full
def test_fine_tuning_past_the_accepted_epochs_is_finished(
    tiny_config: RunConfig, quietly: Train, stop_after: StopAfter, at_most: Callable, tmp_path: Path
) -> None:
    config = with_training(tiny_config, finetune_epochs=6, finetune_learning_rate=1.0, trigger=9)
    stop_after(100)
    with pytest.raises(Stopped):
        quietly(config, tmp_path / "run")
    assert len(saved_progress(tmp_path / "run")["history"]) > 1
    at_most(200)
    shorter = with_training(config, finetune_epochs=1)
    quietly(shorter, tmp_path / "run", mode="resume", accept=frozenset({"config"}))
    assert saved_progress(tmp_path / "run")["finished"]


@pytest.mark.full
@pytest.mark.parametrize("before", [0, 1], ids=["trained", "fine-tuned"])
def test_a_finished_run_goes_on_when_more_fine_tuning_is_accepted(
    tiny_config: RunConfig, quietly: Train, tmp_path: Path, before: int
) -> None:
    def config(finetune_epochs: int) -> RunConfig:
        return with_training(tiny_config, finetune_epochs=finetune_epochs, finetune_learning_rate=1.0)

    quietly(config(before), tmp_path / "run")
    quietly(config(2), tmp_path / "run", mode="resume", accept=frozenset({"config"}))
    quietly(config(2), tmp_path / "straight")
    assert [e["finetuning"] for e in events(tmp_path / "run", "epoch")] == [False, True, True]
    assert outcome(tmp_path / "run") == outcome(tmp_path / "straight")


def newer(best: Path) -> None:
    manifest = best / "manifest.json"
    manifest.write_text(json.dumps({**json.loads(manifest.read_text()), "schema": 2}))


def of_other_sizes(best: Path) -> None:
    saved = read_checkpoint(best)
    changed = {name: tensor[:1].clone() for name, tensor in saved.tensors["weights"].items()}
    write_checkpoint(best.parent, best.name, {"weights": changed}, saved.documents)


@pytest.mark.parametrize(
    ("damage", "says"),
    [
        (
            lambda best: (best / "weights.safetensors").write_bytes(b""),
            r"put them back in .*checkpoints, or start again",
        ),
        (of_other_sizes, r"has shape.*put them back in .*checkpoints, or start again with --overwrite$"),
        (newer, r"has a schema.*; use the version of backstory that wrote it$"),
    ],
    ids=["damaged", "of other sizes", "of a later version"],
)
def test_fine_tuning_needs_the_best_weights(
    tiny_config: RunConfig, tiny_run: Path, quietly: Train, tmp_path: Path, damage: Callable[[Path], object], says: str
) -> None:
    folder = Path(shutil.copytree(tiny_run, tmp_path / "run"))
    damage(checkpoints(folder, "best")[0])
    config = with_training(tiny_config, finetune_epochs=2, finetune_learning_rate=1.0)
    with pytest.raises(UserError, match=says):
        quietly(config, folder, mode="resume", accept=frozenset({"config"}))


@pytest.mark.full
def test_fewer_epochs_and_fine_tuning_accepted_inside_an_epoch(
    tiny_config: RunConfig, tiny_run: Path, quietly: Train, stop_after: StopAfter, tmp_path: Path
) -> None:
    stop_after(events_end(tiny_run) + 7)
    with pytest.raises(Stopped):
        quietly(with_training(tiny_config, epochs=3), tmp_path / "run")
    changed = with_training(tiny_config, finetune_epochs=2)
    quietly(changed, tmp_path / "run", mode="resume", accept=frozenset({"config"}))
    epochs = events(tmp_path / "run", "epoch")
    assert [e["finetuning"] for e in epochs] == [False, True, True]
    # The epoch that was left counts for nothing: each window is of one stage.
    tokens = [sum(w["tokens"] for w in events(tmp_path / "run", "steps") if w["epoch"] == n) for n in (1, 2, 3)]
    assert tokens[0] == tokens[1] == tokens[2]


def test_what_was_accepted_need_not_be_accepted_again(
    stopped: tuple[RunConfig, Path], quietly: Train, at_step: Callable
) -> None:
    config, folder = stopped
    changed = with_training(config, learning_rate=0.5)
    at_step(2, crash)
    with pytest.raises(Crash):
        quietly(changed, folder, mode="resume", accept=frozenset({"config"}))
    quietly(changed, folder, mode="resume")
    assert [e["learning_rate"] for e in events(folder, "epoch")] == [2.0, 0.5]


def test_settings_edited_in_the_folder_are_refused_unless_accepted(
    stopped: tuple[RunConfig, Path], quietly: Train
) -> None:
    config, folder = stopped
    edited = with_training(config, learning_rate=0.5)
    (folder / "config.yaml").write_text(to_yaml(edited))
    refused(quietly, edited, folder, r"config.yaml is not what last-35 was trained with; .*--accept config")
    quietly(edited, folder, mode="resume", accept=frozenset({"config"}))
    assert [e["learning_rate"] for e in events(folder, "epoch")] == [2.0, 0.5]


def as_an_earlier_version(folder: Path, hashed: bool) -> None:
    """Make the run one of a version without `training.decay_patience` and `text.algorithm`; once a hash was saved."""
    settings = yaml.safe_load((folder / "config.yaml").read_text())
    del settings["training"]["decay_patience"], settings["text"]["algorithm"]
    (folder / "config.yaml").write_text(yaml.safe_dump(settings, sort_keys=False))
    digest = hashlib.sha256(json.dumps(settings, sort_keys=True).encode()).hexdigest()
    for path in checkpoints(folder, "last"):
        saved = read_checkpoint(path)
        saved.documents["progress"]["config"] = digest if hashed else settings
        write_checkpoint(path.parent, path.name, saved.tensors, saved.documents)


@pytest.mark.parametrize("hashed", [True, False])
def test_a_run_of_a_version_without_some_settings_goes_on_with_their_defaults(
    stopped: tuple[RunConfig, Path], quietly: Train, at_step: Callable, not_stopped: dict[str, Any], hashed: bool
) -> None:
    config, folder = stopped
    as_an_earlier_version(folder, hashed)
    refused(quietly, with_training(config, clip=0.3), folder, "training.clip: 1.0 there, 0.3 here")
    refused(quietly, with_training(config, decay_patience=1), folder, "decay_patience: 0 there, 1 here")
    at_step(2, crash)
    with pytest.raises(Crash):
        quietly(config, folder, mode="resume")  # broken off before there is a checkpoint of this version
    quietly(config, folder, mode="resume")
    assert outcome(folder) == not_stopped


def test_a_run_that_was_begun_with_settings_of_another_corpus_goes_on(
    stopped: tuple[RunConfig, Path], quietly: Train, tmp_path: Path
) -> None:
    config, folder = stopped
    config = dataclasses.replace(config, text=dataclasses.replace(config.text, algorithm=AlgorithmConfig(bits=3)))
    (folder / "config.yaml").write_text(to_yaml(config))
    for path in checkpoints(folder, "last"):
        saved = read_checkpoint(path)
        saved.documents["progress"]["config"]["text"]["algorithm"]["bits"] = 3
        write_checkpoint(path.parent, path.name, saved.tensors, saved.documents)
    quietly(config, folder, mode="resume")
    with pytest.raises(UserError, match=r"text\.algorithm\.bits is for the corpus copy or .* leave it out"):
        quietly(config, tmp_path / "new")
    assert not (tmp_path / "new").exists()


@pytest.mark.parametrize("hashed", [True, False])
@pytest.mark.parametrize("edit", [{"clip": 0.3}, {"decay_patience": 1}], ids=str)
def test_settings_edited_in_a_run_of_an_earlier_version_are_refused(
    stopped: tuple[RunConfig, Path], quietly: Train, hashed: bool, edit: dict
) -> None:
    config, folder = stopped
    as_an_earlier_version(folder, hashed)
    settings = yaml.safe_load((folder / "config.yaml").read_text())
    settings["training"] |= edit
    (folder / "config.yaml").write_text(yaml.safe_dump(settings))
    edited = with_training(config, **edit)
    refused(quietly, edited, folder, "config.yaml is not what last-35 was trained with")


def test_a_damaged_settings_file_is_replaced_by_those_that_are_accepted(
    stopped: tuple[RunConfig, Path], quietly: Train
) -> None:
    config, folder = stopped
    (folder / "config.yaml").write_text("training: [")
    refused(quietly, config, folder, "config.yaml is not valid YAML")
    quietly(config, folder, mode="resume", accept=frozenset({"config"}))
    assert (folder / "config.yaml").read_text() == to_yaml(config)


@pytest.mark.parametrize("damage", ["absent", "empty", "shorter"])
def test_a_log_that_lost_what_the_checkpoint_knew_is_refused(
    stopped: tuple[RunConfig, Path], quietly: Train, not_stopped: dict[str, Any], damage: str
) -> None:
    config, folder = stopped
    whole = (folder / "metrics.jsonl").read_bytes()
    if damage == "absent":
        (folder / "metrics.jsonl").unlink()
    else:
        (folder / "metrics.jsonl").write_bytes(whole[: len(whole) - 1 if damage == "shorter" else 0])
    refused(quietly, config, folder, r"metrics.jsonl is (missing|shorter).*restore the file.*--overwrite")
    (folder / "metrics.jsonl").write_bytes(whole)
    quietly(config, folder, mode="resume")
    assert outcome(folder) == not_stopped


@pytest.mark.parametrize(
    "change",
    [
        lambda d: d["progress"].update(mood=1),
        lambda d: d["progress"].pop("epoch_tokens"),
        lambda d: d.pop("progress"),
        lambda d: d.pop("config"),
    ],
    ids=["more", "fewer", "none", "no hash"],
)
def test_a_checkpoint_of_another_version_is_refused(
    stopped: tuple[RunConfig, Path], quietly: Train, change: Callable[[dict], object]
) -> None:
    config, folder = stopped
    newest = checkpoints(folder, "last")[0]
    saved = read_checkpoint(newest)
    change(saved.documents["progress"])
    write_checkpoint(newest.parent, newest.name, saved.tensors, saved.documents)
    refused(quietly, config, folder, r"last-35 was saved by another version of backstory((?!--overwrite).)*--out$")


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("epoch", 0),
        ("epoch", 10**15),
        ("epoch", 2.0),
        ("epoch", "2"),
        ("segment", -1),
        ("segment", 10**6),
        ("step", True),
        ("rate_factor", 1.5),
        ("best_nats", None),
        ("best_epoch", 7),
        ("history", []),
        ("history", ["1.0"]),
        ("history", [1e308]),
        ("epoch_sums", {"nats": "1"}),
        ("epoch_sums", {}),
        ("epoch_tokens", 0),
        ("window_tokens", -1),
        ("finetuning", True),
        ("averaged", 0.5),
        ("log_bytes", -1),
        ("log_bytes", 7),
        ("finished", 0),
    ],
)
def test_progress_that_no_run_can_have_made_is_refused(
    stopped: tuple[RunConfig, Path], quietly: Train, name: str, value: object
) -> None:
    config, folder = stopped
    newest = checkpoints(folder, "last")[0]
    saved = read_checkpoint(newest)
    saved.documents["progress"]["progress"][name] = value
    write_checkpoint(newest.parent, newest.name, saved.tensors, saved.documents)
    refused(quietly, config, folder, r"damaged \(the saved \w+ is|metrics.jsonl does not record|it sums")


@pytest.mark.parametrize("file", ["weights", "optimizer", "average", "random", "state"])
def test_tensors_of_another_kind_are_refused(
    tiny_config: RunConfig, quietly: Train, stop_after: StopAfter, tmp_path: Path, file: str
) -> None:
    changes = {"optimizer": "adam", "learning_rate": 0.01} if file == "optimizer" else {"averaging": "always"}
    config = with_training(tiny_config, epochs=2, **changes)
    stop_after(35)
    with pytest.raises(Stopped):
        quietly(config, tmp_path / "run")
    newest = checkpoints(tmp_path / "run", "last")[0]
    saved = read_checkpoint(newest)
    name, tensor = next(iter(saved.tensors[file].items()))
    for other in ({}, {name: tensor.double()}, {name: tensor[None]}, {"x": tensor}):
        kept = {k: v for k, v in saved.tensors[file].items() if k != name}
        write_checkpoint(newest.parent, newest.name, saved.tensors | {file: kept | other}, saved.documents)
        refused(quietly, config, tmp_path / "run", "does not fit")


def test_a_run_of_another_device_is_refused(stopped: tuple[RunConfig, Path], quietly: Train) -> None:
    """On a GPU a checkpoint holds the state of the GPU's generator as well."""
    config, folder = stopped
    newest = checkpoints(folder, "last")[0]
    saved = read_checkpoint(newest)
    random = saved.tensors["random"] | {"cuda": torch.zeros(16, dtype=torch.uint8)}
    write_checkpoint(newest.parent, newest.name, saved.tensors | {"random": random}, saved.documents)
    refused(quietly, config, folder, "this run was trained on a GPU, whose random numbers a CPU cannot continue")


def test_a_run_whose_checkpoints_are_all_damaged_does_not_begin_again(
    stopped: tuple[RunConfig, Path], quietly: Train
) -> None:
    config, folder = stopped
    for path in checkpoints(folder, "last"):
        flip(path / "weights.safetensors")
    refused(quietly, config, folder, "last-35/weights.safetensors does not have the SHA-256.*--overwrite")


@pytest.mark.parametrize(
    "change",
    [
        lambda c: with_model(c, core=type(c.model.core)(layers=1, hidden=9)),
        lambda c: with_model(c, head=MixtureConfig(experts=2)),
        lambda c: with_training(c, batch_size=4),
    ],
    ids=["core", "head", "batch"],
)
def test_accepted_settings_of_another_model_are_refused(
    stopped: tuple[RunConfig, Path], quietly: Train, change: Change
) -> None:
    config, folder = stopped
    refused(quietly, change(config), folder, "does not fit", accept=frozenset({"config"}))


def test_accepted_settings_of_an_optimizer_that_cannot_go_on_are_refused(
    tiny_config: RunConfig, quietly: Train, tmp_path: Path
) -> None:
    quietly(with_training(tiny_config, optimizer="adam", learning_rate=0.01), tmp_path / "run")
    other = with_training(tiny_config, optimizer="nadam", learning_rate=0.01, epochs=2)
    refused(quietly, other, tmp_path / "run", r"does not fit .*no mu_product", accept=frozenset({"config"}))


@pytest.fixture
def own_corpus(tiny_config: RunConfig, tiny_corpus: Path, tmp_path: Path) -> tuple[RunConfig, Path]:
    """Settings of two epochs over a copy of the tiny corpus, which a test may change."""
    folder = tmp_path / "corpus"
    shutil.copytree(tiny_corpus, folder)
    text = type(tiny_config.text)(corpus=str(folder))
    return with_training(type(tiny_config)(text, tiny_config.model, tiny_config.training), epochs=2), folder


@pytest.mark.parametrize("kept", [1.0, 0.5], ids=["as long", "shorter"])
def test_another_corpus_is_refused_unless_accepted(
    own_corpus: tuple[RunConfig, Path], quietly: Train, stop_after: StopAfter, tmp_path: Path, kept: float
) -> None:
    config, corpus = own_corpus
    stop_after(38)
    with pytest.raises(Stopped):
        quietly(config, tmp_path / "run")
    lines = (corpus / "train.txt").read_text().splitlines(keepends=True)
    (corpus / "train.txt").write_text("".join(lines[::-1][: int(kept * len(lines))]))
    refused(quietly, config, tmp_path / "run", "trained on other text")
    refused(quietly, config, tmp_path / "run", "trained on other text", accept=frozenset({"config"}))
    result = quietly(config, tmp_path / "run", mode="resume", accept=frozenset({"corpus"}))
    assert result.figures.epochs == 2


def test_an_accepted_corpus_with_another_vocabulary_is_refused(
    own_corpus: tuple[RunConfig, Path], quietly: Train, stop_after: StopAfter, tmp_path: Path
) -> None:
    config, corpus = own_corpus
    stop_after(38)
    with pytest.raises(Stopped):
        quietly(config, tmp_path / "run")
    with open(corpus / "train.txt", "a") as file:
        file.write("some words that were never there\n")
    refused(quietly, config, tmp_path / "run", "does not fit", accept=frozenset({"corpus"}))
