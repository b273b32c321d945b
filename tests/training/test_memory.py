"""Memory that a run needs: estimated from its settings, close to what is measured, and refused before it is taken."""

import dataclasses
import json
import resource
import statistics
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from runs import with_model, with_training

from backstory.cli.main import main
from backstory.config import (
    DualConfig,
    LSTMConfig,
    MixtureConfig,
    RunConfig,
    TransformerConfig,
    TrellisConfig,
    from_dict,
    recipes,
    to_dict,
)
from backstory.models import Precision
from backstory.models.devices import available, choose_precision
from backstory.training import memory_estimate as memory
from backstory.training.memory_estimate import Text, check_memory, estimate
from backstory.utils.errors import UserError
from backstory.utils.free_memory import available_memory

CPU = torch.device("cpu")
FLOAT32, BFLOAT16 = (Precision(dtype, "the test says so") for dtype in (torch.float32, torch.bfloat16))
TEXT = Text(types=10_000, tokens=929_589)
CHARACTERS = Text(types=51, tokens=5_017_482)

NONE = {"kind": "none"}
TRANSFORMER = {"kind": "transformer", "layers": 3, "heads": 4, "hidden": 256}
TRELLIS = {"kind": "trellis", "levels": 30, "hidden": 400}
MEMORY = {"layers": [256, 128, 128], "slots": 64, "width": 32, "heads": 1}
BUFFER = {"kind": "span-buffer", "size": 2048, "span": 8}
POINTER = BUFFER | {"size": 8192, "vectors": "words", "values": "following", "attention": "bilinear"}
POINTER |= {"prediction": "pointer", "sentinel": True}

MEASURE = """
import json, os, resource, sys
import torch
from backstory.config import RunConfig, from_dict, recipes, to_dict
from backstory.models import Precision, build_model, detach
from backstory.training.objectives import build_objective
from backstory.models.devices import keep_freed_memory
from backstory.training.optimizers import build_optimizer

def now():
    return int(open("/proc/self/statm").read().split()[1]) * resource.getpagesize()

torch.set_num_threads(1)
keep_freed_memory()
torch.randn(8, 8) @ torch.randn(8, 8)
name, dtype, types, batch, segment = sys.argv[1], getattr(torch, sys.argv[2]), *map(int, sys.argv[3:6])
settings = to_dict(recipes.load(name))
settings["model"]["buffer"] = json.loads(sys.argv[8])
settings["model"]["core"] = json.loads(sys.argv[9]) or settings["model"]["core"]
config, before = from_dict(RunConfig, settings, "test"), now()
model = build_model(config.model, types).train()
optimizer, precision = build_optimizer(model.parameters(), config.training), Precision(dtype, "")
text, state = torch.randint(types, (batch, segment + 1)), model.start(batch)
objective = build_objective(config, float(sys.argv[6]), model.core.auxiliary_weight)
model.embedding.noise = float(sys.argv[7])
for _ in range(2):
    optimizer.zero_grad(set_to_none=True)
    with precision.context(torch.device("cpu")):
        prediction, state = model(text[:, :-1], detach(state))
        loss, _ = objective(prediction, text[:, 1:])
    loss.backward()
    torch.nn.utils.clip_grad_norm_(model.parameters(), 0.25, foreach=True)
    optimizer.step()
# Not ru_maxrss, which a process takes over from the one that started it.
peak = next(line.split()[1] for line in open("/proc/self/status") if line.startswith("VmHWM"))
print(int(peak) * 1024 - before, flush=True)
os._exit(0)  # without taking apart the modules of torch
"""


@pytest.mark.full
@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="measures as Linux does")
@pytest.mark.parametrize(
    ("recipe", "batch", "segment", "precision", "adversarial", "buffer", "core"),
    [
        ("ptb-small", 20, 35, FLOAT32, 0.0, NONE, None),
        ("ptb-small", 20, 1000, BFLOAT16, 0.0, NONE, None),
        ("ptb-awd-lstm", 20, 70, FLOAT32, 0.0, NONE, None),
        ("ptb-awd-lstm", 20, 70, BFLOAT16, 0.0, NONE, None),
        ("ptb-awd-lstm", 20, 70, FLOAT32, 0.005, NONE, None),
        ("ptb-mos", 12, 70, BFLOAT16, 0.0, NONE, None),
        ("ptb-dual-mogrifier", 32, 25, FLOAT32, 0.0, NONE, None),
        ("ptb-dual-mogrifier", 32, 25, BFLOAT16, 0.0, NONE, None),
        ("ptb-dual-mogrifier", 32, 150, BFLOAT16, 0.0, NONE, None),
        ("ptb-mos", 12, 70, BFLOAT16, 0.005, NONE, None),
        ("ptb-awd-lstm", 20, 70, BFLOAT16, 0.0, {"kind": "auxiliary-softmax"}, None),
        ("ptb-awd-lstm", 20, 70, BFLOAT16, 0.0, BUFFER, None),
        ("ptb-awd-lstm", 20, 70, FLOAT32, 0.0, BUFFER | {"alignment": "fixed"}, None),
        ("ptb-small", 20, 35, BFLOAT16, 0.0, BUFFER | {"size": 16384, "attention": "bilinear"}, None),
        ("ptb-small", 20, 35, BFLOAT16, 0.0, POINTER, None),
        ("ptb-small", 20, 70, FLOAT32, 0.0, NONE, TRANSFORMER),
        ("ptb-small", 20, 70, BFLOAT16, 0.0, NONE, TRANSFORMER),
        ("ptb-small", 20, 128, FLOAT32, 0.0, NONE, TRANSFORMER | {"layers": 6, "hidden": 512, "window": 512}),
        ("ptb-small", 20, 512, BFLOAT16, 0.0, NONE, TRANSFORMER | {"window": 512, "attention_dropout": 0.1}),
        ("ptb-small", 20, 70, FLOAT32, 0.0, NONE, TRELLIS),
        ("ptb-small", 20, 70, BFLOAT16, 0.0, NONE, TRELLIS),
        ("ptb-char-small", 32, 60, FLOAT32, 0.0, NONE, MEMORY | {"kind": "mdm"}),
        ("ptb-char-small", 32, 60, BFLOAT16, 0.0, NONE, MEMORY | {"kind": "mdm", "slots": 256}),
        ("ptb-char-small", 32, 60, BFLOAT16, 0.0, NONE, MEMORY | {"kind": "dnc", "heads": 4}),
        ("ptb-char-small", 6, 60, FLOAT32, 0.0, NONE, MEMORY | {"kind": "ntm", "slots": 1024, "width": 512}),
        (
            "ptb-char-small",
            6,
            60,
            FLOAT32,
            0.0,
            NONE,
            MEMORY | {"kind": "mdm", "link": False, "slots": 1024, "width": 512},
        ),
    ],
)
def test_the_estimate_is_near_what_a_step_takes(
    recipe: str,
    batch: int,
    segment: int,
    precision: Precision,
    adversarial: float,
    buffer: dict[str, Any],
    core: dict[str, Any] | None,
) -> None:
    if precision is BFLOAT16 and choose_precision("auto", CPU).name != "bfloat16":
        pytest.skip("bfloat16 without the processor's instructions: minutes a step, and other temporary copies")
    noise, text = 0.15 if adversarial else 0.0, CHARACTERS if "char" in recipe else TEXT
    sizes = [recipe, precision.name, *map(str, (text.types, batch, segment, adversarial, noise))]
    sizes += [json.dumps(buffer), json.dumps(core)]
    changes = {
        "batch_size": batch,
        "segment": segment,
        "segment_deviation": 0.0,
        "averaging": "none",
        "finetune_epochs": 0,
    }
    settings = to_dict(recipes.load(recipe))
    settings["model"] |= {"buffer": buffer, "core": core or settings["model"]["core"]}
    config = with_training(from_dict(RunConfig, settings, "test"), **changes)
    needed, measured = sum(estimate(config, text, precision).values()), [taken(sizes)]
    # Processes differ by up to a third for the same step, depending on their heaps, so the median counts. If the first
    # is well within the bounds, no others are started, because each takes half a minute.
    if not 0.7 < needed / measured[0] < memory.MARGIN - 0.1:
        measured += [taken(sizes), taken(sizes)]
    ratio = needed / statistics.median(measured)
    assert 0.6 < ratio < memory.MARGIN, f"{[size >> 20 for size in measured]} MiB, {ratio:.2f} estimated"


def taken(sizes: list[str]) -> int:
    """Bytes that two steps take in a process of their own."""
    return int(
        subprocess.run([sys.executable, "-c", MEASURE, *sizes], capture_output=True, text=True, check=True).stdout
    )


@pytest.mark.full
@pytest.mark.parametrize(
    ("flags", "setting"),
    [
        (["--model.core.hidden", "100000000"], "model.core.hidden (100000000)"),
        (["--model.core.hidden", "9000000000000000"], "model.core.hidden (9000000000000000)"),
        (["--model.core.layers", "1000", "--model.core.hidden", "20000"], "model.core.layers (1000)"),
        (["--model.embedding.size", "100000000"], "model.embedding.size (100000000)"),
        (["--model.head.kind", "mixture", "--model.head.experts", "100000000"], "model.head.experts (100000000)"),
        (
            ["--model.buffer.kind", "span-buffer", "--model.buffer.size", "80000000000"],
            "model.buffer.size (80000000000)",
        ),
        (["--training.batch-size", "1000000000"], "training.batch-size (1000000000)"),
        (
            ["--model.core.kind", "dnc", "--model.core.slots", "60000", "--model.head.no-tied"],
            "model.core.slots (60000), or set model.core.link to false (--model.core.no-link)",
        ),
    ],
)
def test_a_run_that_cannot_fit_is_refused_by_the_setting_to_lower(
    flags: list[str], setting: str, tiny_corpus: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    line = ["train", "demo", "--corpus", str(tiny_corpus), "--out", str(tmp_path / "run"), *flags]
    assert main(line) == 2
    told = capsys.readouterr().err
    assert told.startswith("backstory: this run needs ") and told.count("\n") == 1, told
    assert told.endswith(f"free; lower --{setting}\n")
    assert not (tmp_path / "run").exists()
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 200 << 10


def test_a_segment_as_long_as_the_text_counts_as_long_as_its_rows() -> None:
    long = with_training(recipes.load("ptb-awd-lstm"), segment=100_000_000)
    assert estimate(long, TEXT, FLOAT32) == estimate(with_training(long, segment=929_589), TEXT, FLOAT32)
    assert memory._to_lower(long, TEXT, FLOAT32) == ("training.segment", "100000000")
    needed = estimate(long, TEXT, FLOAT32)
    assert max(needed, key=lambda k: needed[k]) == "activations" and needed["activations"] > 50 << 30


def test_a_vocabulary_that_is_too_large_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(memory, "available", lambda device: 1 << 30)
    with pytest.raises(UserError, match=r"1 GiB are free; lower text\.maximum_size \(2000000\)"):
        check_memory(recipes.load("ptb-small"), dataclasses.replace(TEXT, types=2_000_000), FLOAT32, CPU)


def test_what_fits_is_taken_and_one_byte_less_is_not(tiny_config: RunConfig, monkeypatch: pytest.MonkeyPatch) -> None:
    needed = sum(estimate(tiny_config, TEXT, FLOAT32).values()) / memory.MARGIN
    for free, fits in ((needed + 1, True), (needed - 1, False), (None, True)):
        monkeypatch.setattr(memory, "available", lambda device, free=free: free)
        if fits:
            check_memory(tiny_config, TEXT, FLOAT32, CPU)
        else:
            with pytest.raises(UserError, match="this run needs about"):
                check_memory(tiny_config, TEXT, FLOAT32, CPU)


def test_more_of_anything_needs_more(tiny_config: RunConfig) -> None:
    base = sum(estimate(tiny_config, TEXT, FLOAT32).values())
    core = LSTMConfig(layers=3, hidden=tiny_config.model.core.hidden)
    for config in (
        with_training(tiny_config, batch_size=4),
        with_training(tiny_config, segment=20),
        with_training(tiny_config, optimizer="adam"),
        with_model(tiny_config, core=core),
        with_model(tiny_config, core=TransformerConfig(hidden=16)),
        with_model(tiny_config, core=TrellisConfig(hidden=16)),
        with_model(tiny_config, dual=DualConfig()),
        with_model(tiny_config, head=MixtureConfig(experts=2)),
    ):
        assert sum(estimate(config, TEXT, FLOAT32).values()) > base
    assert sum(estimate(tiny_config, TEXT, BFLOAT16).values()) < base


@pytest.mark.parametrize(
    ("core", "changes"),
    [
        (TransformerConfig(), {"window": 1024}),
        (TransformerConfig(), {"attention_dropout": 0.1}),
        (TransformerConfig(), {"layers": 6}),
        (TrellisConfig(), {"levels": 140}),
    ],
)
def test_what_a_core_keeps_of_a_token_counts(
    core: TransformerConfig | TrellisConfig, changes: dict[str, Any], tiny_config: RunConfig
) -> None:
    small, large = (with_model(tiny_config, core=one) for one in (core, dataclasses.replace(core, **changes)))
    needed = [estimate(config, TEXT, FLOAT32)["activations"] for config in (small, large)]
    assert needed[1] > 1.2 * needed[0]


def test_an_estimate_draws_no_random_numbers(tiny_config: RunConfig) -> None:
    state = torch.get_rng_state()
    estimate(tiny_config, TEXT, FLOAT32)
    assert torch.equal(torch.get_rng_state(), state)


def write(folder: Path, **files: object) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    for name, text in files.items():
        (folder / name.replace("__", ".")).write_text(str(text))
    return folder


def test_what_is_free_is_the_least_of_machine_and_groups(tmp_path: Path) -> None:
    proc, groups = tmp_path / "proc", tmp_path / "groups"
    assert available_memory(proc, groups) is None
    write(proc, meminfo="MemTotal: 900 kB\nMemFree: 1 kB\nMemAvailable:      500 kB\n")
    assert available_memory(proc, groups) == 500 * 1024
    write(proc / "self", cgroup="0::/a/b\n")
    write(groups / "a" / "b", memory__max="max\n", memory__current="5\n")
    assert available_memory(proc, groups) == 500 * 1024
    write(groups / "a", memory__max="1000\n", memory__current="700\n", memory__stat="anon 3\ninactive_file 50\n")
    assert available_memory(proc, groups) == 350
    write(groups / "a" / "b", memory__max="10\n", memory__current="20\n")
    assert available_memory(proc, groups) == 0


def test_older_groups_are_read_too(tmp_path: Path) -> None:
    proc, groups = tmp_path / "proc", tmp_path / "groups"
    write(proc, meminfo="MemAvailable: 500 kB\n")
    write(proc / "self", cgroup="4:cpu,cpuacct:/x\n3:memory:/job\n")
    write(groups / "memory" / "job", memory__limit_in_bytes="4096\n", memory__usage_in_bytes="96\n")
    assert available_memory(proc, groups) == 4000


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="Linux alone says")
def test_this_machine_has_some_memory() -> None:
    free = available(CPU)
    assert free is not None and 1 << 20 < free < 1 << 50
