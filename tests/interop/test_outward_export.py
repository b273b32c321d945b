"""`backstory export`: a folder that transformers loads, which reads and writes as the run does."""

import json
import math
import os
import re
import resource
import shlex
import shutil
import stat
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from outward import buffer, trained
from runs import with_model
from tiers import fast_then_full
from transformers import AutoModelForCausalLM, AutoTokenizer, pipeline

import backstory as bs
from backstory.cli.main import main
from backstory.config import NTMConfig, RunConfig
from backstory.data import encode_split
from backstory.evaluation.generation import encode_prompt
from backstory.interop import exporting
from backstory.interop.exported.model import CORES
from backstory.interop.exporting import causal_lm, export
from backstory.interop.hugging_face import load as load_export
from backstory.interop.modeling import composed
from backstory.runs.run import Run, load_run, weights, weights_hash
from backstory.utils.errors import UserError

TEXT = "ann saw the tea and ann sold more jam\nbob found the ink and dora took"
DOCS = Path(__file__).parent.parent.parent / "docs" / "export.md"
TOKENIZERS = ["words", "regex", "characters", "bytes", "pieces"]


@pytest.fixture(scope="module", params=fast_then_full(TOKENIZERS, ["words", "pieces"]))
def run(request: pytest.FixtureRequest, tiny_config: RunConfig, tmp_path_factory: pytest.TempPathFactory) -> Path:
    spans = buffer(size=24, span=4) if request.param in ("words", "bytes") else None
    return trained(tiny_config, tmp_path_factory.mktemp(request.param), request.param, spans)


@pytest.fixture(scope="module")
def folder(run: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return export(run, tmp_path_factory.mktemp("export") / "new" / "model")


def test_the_folder_holds_the_run(run: Path, folder: Path) -> None:
    loaded, model = load_run(run), AutoModelForCausalLM.from_pretrained(folder)
    assert {p.name for p in folder.iterdir()} == {
        "README.md", "backstory.json", "config.json", "generation_config.json", "model.safetensors", "modeling_backstory.py",
        "tokenizer.json", "tokenizer_config.json",
    }  # fmt: skip
    assert len({stat.S_IMODE(p.stat().st_mode) for p in folder.iterdir()}) == 1
    assert [p.name for p in folder.parent.iterdir()] == ["model"]
    found, wanted = weights(composed(model)), weights(loaded.model)
    assert found.keys() == wanted.keys() and all(torch.equal(found[name], wanted[name]) for name in wanted)
    assert model.config.vocab_size == len(loaded.vocabulary)
    assert model.model.head.weight is model.model.embedding.weight


def test_logits_are_those_of_the_run(run: Path, folder: Path) -> None:
    loaded, model, tokenizer = load_run(run), *opened(folder)
    text = TEXT + (
        "\n\n" if loaded.vocabulary.tokenizer.name == "regex" else "\n"
    )  # what ends the last line or paragraph
    ids = encode_split(loaded.vocabulary, text).ids.tolist()
    tokens = tokenizer(text, return_tensors="pt")
    assert tokens["input_ids"][0].tolist() == [loaded.vocabulary.start, *ids]
    with torch.no_grad():
        logits = model(**tokens).logits
        prediction, _ = loaded.model(tokens["input_ids"], loaded.model.start(1))
    assert torch.allclose(logits, prediction.log_probs(), atol=1e-6)
    figures = bs.evaluate(run, text=written(folder, text)).figures
    loss = model(**tokens, labels=tokens["input_ids"]).loss
    assert float(loss.detach()) == pytest.approx(figures.nats_per_token, rel=1e-5)
    assert math.isfinite(figures.perplexity)


def written(folder: Path, text: str) -> Path:
    path = folder.parent.parent / "text.txt"
    path.write_text(text)
    return path


def opened(folder: Path) -> tuple:
    return AutoModelForCausalLM.from_pretrained(folder), AutoTokenizer.from_pretrained(folder)


@pytest.mark.full
def test_it_is_read_here_again_as_the_run_is(run: Path, folder: Path, tiny_corpus: Path, tmp_path: Path) -> None:
    wanted = bs.evaluate(run, split="valid", out=tmp_path / "run").figures
    found = bs.evaluate(f"hf:{folder}", split="valid", corpus=str(tiny_corpus), out=tmp_path / "export").figures
    assert found.audit.passed
    # An export brings neither the settings of its training, which a policy's reward is of, nor the text that it was trained on.
    brought = {"policy": None, "overlap": None}
    assert found.to_dict() | brought == wanted.to_dict() | brought
    own = tmp_path / "own.txt"
    own.write_text("ann saw the zebra\n\nand bob took more tea")
    wanted, found = (bs.evaluate(which, text=own).figures for which in (run, f"hf:{folder}"))
    assert found.to_dict() | brought == wanted.to_dict() | brought
    assert (found.bits_per_byte is None) == (
        load_run(run).vocabulary.tokenizer.name in ("words", "regex", "characters")
    )


def test_it_is_examined_as_the_run_is(run: Path, folder: Path, tiny_corpus: Path, tmp_path: Path) -> None:
    how: dict[str, Any] = {"targets": 20, "maximum_context": 12, "precision": "float32", "by": ("frequency",)}
    wanted = bs.examine(run, None, "truncate", out=tmp_path / "run", **how).figures
    found = bs.examine(f"hf:{folder}", str(tiny_corpus), "truncate", out=tmp_path / "export", **how).figures
    assert found == wanted


def test_an_export_without_our_file_is_read_by_its_tokenizer(folder: Path, tiny_corpus: Path, tmp_path: Path) -> None:
    older = Path(shutil.copytree(folder, tmp_path / "older"))
    (older / "backstory.json").unlink()
    found = load_export(f"hf:{older}").vocabulary
    assert found.tokenizer.unit == "piece"
    (older / "backstory.json").write_text("{}")
    with pytest.raises(UserError, match=r"backstory\.json of .* is damaged"):
        load_export(f"hf:{older}")


@pytest.mark.parametrize("prompt", ["", "ann saw the", TEXT, "zebra ann\n"])
def test_generation_is_that_of_the_run(run: Path, folder: Path, prompt: str) -> None:
    model, tokenizer = opened(folder)
    tokens = tokenizer(prompt, return_tensors="pt")
    found = model.generate(**tokens, max_new_tokens=40, do_sample=False)[0, tokens["input_ids"].shape[1] :]
    text = "".join(bs.generate(run, prompt, tokens=40, temperature=0.0, echo=True))
    vocabulary = load_run(run).vocabulary
    assert vocabulary.decode([*encode_prompt(vocabulary, prompt), *found.tolist()]) == text
    assert len(found) == 40 and vocabulary.unknown not in found.tolist()


def test_a_batch_goes_on_as_its_rows_do(folder: Path) -> None:
    model, tokenizer = opened(folder)
    prompts = ["ann", TEXT, "", "bob took the oil"]
    tokens = tokenizer(prompts, return_tensors="pt", padding=True)
    found = model.generate(**tokens, max_new_tokens=20, do_sample=False)[:, tokens["input_ids"].shape[1] :]
    for prompt, row in zip(prompts, found, strict=True):
        alone = model.generate(**tokenizer(prompt, return_tensors="pt"), max_new_tokens=20, do_sample=False)
        assert row.tolist() == alone[0, -20:].tolist()


def test_a_pipeline_goes_on_with_texts(run: Path, folder: Path) -> None:
    go_on = pipeline("text-generation", model=str(folder), device="cpu")
    found = go_on(["ann saw the", "bob"], max_new_tokens=15, do_sample=False, batch_size=2)
    for prompt, (answer,) in zip(["ann saw the", "bob"], found, strict=True):
        wanted = prompt + "".join(bs.generate(run, prompt, tokens=15, temperature=0.0))
        assert answer["generated_text"].rstrip("\ufffd") == wanted.rstrip("\ufffd")


def test_what_is_drawn_from_leaves_the_unknown_out(run: Path, folder: Path) -> None:
    model, unknown = AutoModelForCausalLM.from_pretrained(folder), load_run(run).vocabulary.unknown
    ids = torch.tensor([[model.config.bos_token_id]] * 4)
    drawn = model.generate(ids, do_sample=True, temperature=50.0, max_new_tokens=60)
    assert drawn.shape == (4, 61) and unknown not in drawn[:, 1:].tolist()[0]


# --- the card, the command line, mistakes ---


@pytest.mark.full
def test_the_card_has_the_figures_and_its_code_runs(
    tiny_run: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    run = Path(shutil.copytree(tiny_run, tmp_path / "run"))
    test = bs.evaluate(run).figures
    cached = bs.evaluate(run, reader="cache").figures
    assert main(["export", str(run)]) == 0
    said = capsys.readouterr()
    assert said.out == f"{run / 'export'}; {run / 'export' / 'README.md'} says how to load it\n" and said.err == ""
    card = (run / "export" / "README.md").read_text()
    ours = weights_hash(load_run(run).model)
    assert f"`{ours}`" in card
    assert json.loads((run / "export" / "config.json").read_text())["weights"] == ours
    lines = [line for line in card.splitlines() if line.startswith("| tiny |")]
    assert f"{test.perplexity:.1f} per word" in lines[0] and " static " in lines[0]
    assert f"{cached.perplexity:.1f} per word" in lines[1] and " cache " in lines[1]
    trained = json.loads((run / "result.json").read_text())["figures"]
    assert f"{trained['valid_perplexity']:.1f} per word" in card and f"{trained['parameters']:,} parameters" in card
    (code,) = re.findall(r"```python\n(.*?)```", card, re.DOTALL)
    moved = shutil.copytree(run / "export", tmp_path / "moved")
    monkeypatch.chdir(moved)
    exec(compile(code, "README.md", "exec"), {})
    vocabulary = load_run(run).vocabulary
    frequent = max((w for w in vocabulary.words if w.isalpha()), key=lambda w: vocabulary.counts[vocabulary.index[w]])
    assert f'tokenizer("{frequent}"' in code and frequent in capsys.readouterr().out
    # An export within a run is no result of it.
    bs.report([run], tmp_path / "report.html")


def test_the_page_of_the_docs_does_what_it_says(
    tiny_run: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    shutil.copytree(tiny_run, "runs/demo")
    page = DOCS.read_text(encoding="utf-8")
    (command,) = re.findall(r"^backstory (.*)$", page, re.MULTILINE)
    assert main(shlex.split(command)) == 0
    code = next(block for block in re.findall(r"```python\n(.*?)```", page, re.DOTALL) if "lm_eval" not in block)
    capsys.readouterr()
    exec(compile(code, "export.md", "exec"), {})
    assert capsys.readouterr().out.count("the") >= 2


@pytest.mark.full
def test_an_exported_memory_is_read_with_another_addressing(
    tiny_config: RunConfig, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    core = NTMConfig(layers=(9,), slots=8, width=5, heads=1)
    run = trained(with_model(tiny_config, core=core), tmp_path, "words")
    exported, text = export(run), tmp_path / "own.txt"
    text.write_text(TEXT + "\n")
    nats = {}
    for addressing in ("dense", "localized:3"):
        (ours, theirs) = (bs.evaluate(place, text=text, addressing=addressing) for place in (run, f"hf:{exported}"))
        assert theirs.provenance.config["model"]["parts"]["core"]["addressing"] == addressing
        assert theirs.figures.addressing == addressing
        nats[addressing] = theirs.figures.nats_per_token
        assert nats[addressing] == pytest.approx(ours.figures.nats_per_token, rel=1e-6)
    assert nats["dense"] != nats["localized:3"]
    capsys.readouterr()
    assert main(["evaluate", f"hf:{exported}", str(text), "--addressing", "localized:4"]) == 2
    assert "give an odd number of slots" in capsys.readouterr().err


def test_a_run_without_results_has_a_card_without_figures(tiny_run: Path, tmp_path: Path) -> None:
    run = Path(shutil.copytree(tiny_run, tmp_path / "run"))
    (run / "result.json").unlink()
    assert "Figures" not in (export(run) / "README.md").read_text()


def test_a_core_without_an_exported_form_is_refused(tiny_run: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delitem(CORES, "lstm")
    with pytest.raises(UserError, match="a core of kind lstm has no exported form; export a run of mogrifier, "):
        causal_lm(load_run(tiny_run))


def test_a_model_is_had_without_a_folder(tiny_run: Path) -> None:
    loaded = load_run(tiny_run)
    model, before = causal_lm(loaded), weights(loaded.model)["embedding.weight"].clone()
    assert not model.training
    with torch.no_grad():
        model.model.embedding.weight.zero_()
    assert torch.equal(loaded.model.embedding.weight, before)


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["nowhere"], "there is no run folder nowhere"),
        (["other"], "other is not a run folder"),
        (["run", "--out", "other"], "other exists; choose another folder with --out, or remove it"),
        (["run", "--out", "file"], "file exists"),
        (["run", "--out", "file/below"], "cannot write to file"),
        (["run", "--ouf", "x"], "did you mean '--out'"),
        ([], "name the run's folder"),
    ],
)
def test_mistakes_are_told_in_one_line(
    arguments: list[str], says: str, tiny_run: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:  # fmt: skip
    monkeypatch.chdir(tmp_path)
    shutil.copytree(tiny_run, "run")
    Path("other").mkdir()
    Path("file").write_text("mine")
    assert main(["export", *arguments]) == 2
    said = capsys.readouterr()
    assert said.out == "" and said.err.count("\n") == 1 and says in said.err
    assert sorted(os.listdir()) == ["file", "other", "run"] and not os.listdir("other")


def test_nothing_is_left_of_an_export_that_fails(
    tiny_run: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from transformers import PreTrainedTokenizerFast

    def full(*_: object, **__: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(PreTrainedTokenizerFast, "save_pretrained", full)
    with pytest.raises(OSError, match="No space left"):
        export(tiny_run, tmp_path / "out")
    assert not os.listdir(tmp_path)


@pytest.mark.parametrize("largest", [100, 1000, 2500, 8000])
def test_an_export_that_meets_the_limit_on_sizes_names_its_folder(
    largest: int,
    tiny_run: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """The settings, the weights, the module, or the tokenizer of the model is the first file that is too large."""
    monkeypatch.setattr(sys, "dont_write_bytecode", True)  # Python keeps what it could write of a compiled module
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (largest, before[1]))
    try:
        code = main(["export", str(tiny_run), "--out", str(tmp_path / "out")])
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
    assert code == 2 and not os.listdir(tmp_path)
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith(f"backstory: cannot write to {tmp_path / 'out'}: File too large; raise the limit")


def test_an_error_of_the_system_in_the_words_of_a_library_is_one(
    tiny_run: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from transformers import PreTrainedTokenizerFast

    def full(*_: object, **__: object) -> None:
        raise Exception("No space left on device (os error 28)")  # as tokenizers does

    monkeypatch.setattr(PreTrainedTokenizerFast, "save_pretrained", full)
    with pytest.raises(OSError, match=r"No space left on device: .*out"):
        export(tiny_run, tmp_path / "out")
    assert not os.listdir(tmp_path)


def test_weights_that_are_not_finite_are_not_exported(
    tiny_run: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    broken = load_run(tiny_run)
    with torch.no_grad():
        next(broken.model.parameters()).view(-1)[3] = math.nan
    monkeypatch.setattr(exporting, "load_run", lambda _: broken)
    with pytest.raises(UserError, match=r"cannot be exported: not all numbers of \S+ are finite; train it again"):
        export(tiny_run, tmp_path / "out")
    assert not os.listdir(tmp_path)


MISSING = """
import sys
sys.modules["transformers"] = sys.modules["lm_eval"] = None
import backstory.interop
from backstory.cli.main import main
assert main(["export", sys.argv[1]]) == 2
from backstory.utils.errors import UserError
try:
    import backstory.interop.harness
except UserError as error:
    print(error, file=sys.stderr)
from backstory.interop.lm_eval import main
assert main() == 2
"""


def test_an_export_that_another_one_overtakes_is_refused(
    tiny_run: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def overtaken(run: Run) -> str:
        monkeypatch.undo()
        export(tiny_run, tmp_path / "model")
        return "late"

    monkeypatch.setattr(exporting, "model_card", overtaken)
    with pytest.raises(UserError, match=r"another export has made .*model meanwhile; choose another folder with --out"):
        export(tiny_run, tmp_path / "model")
    assert [path.name for path in tmp_path.iterdir()] == ["model"]
    assert (tmp_path / "model" / "README.md").read_text() != "late"


@pytest.mark.full
def test_without_the_extras_it_is_said_what_installs_them(tiny_run: Path) -> None:
    done = subprocess.run([sys.executable, "-c", MISSING, str(tiny_run)], capture_output=True, text=True, check=True)
    assert done.stderr.splitlines() == [
        f"backstory: exporting {tiny_run}",
        "backstory: export needs the package transformers; run `pip install -e '.[hf]'` in the clone of backstory",
        "the evaluation harness needs the package lm_eval; run `pip install -e '.[eval]'` in the clone of backstory",
        "backstory: the evaluation harness needs the package lm_eval; run `pip install -e '.[eval]'` in the clone of backstory",
    ]
