"""`hf:PATH` wherever a run is named: readings, their results, and every kind of mistake."""

import json
import math
import shutil
import sys
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import foreign
import numpy as np
import pytest
import torch

import backstory as bs
from backstory.cli.main import main
from backstory.interop.hugging_face import check_one_device, load
from backstory.runs.run import weights_hash
from backstory.utils.errors import UserError

TEXT = "the cat sat on the mat .\nthe dog ran after the cat .\n" * 60


@pytest.fixture(autouse=True)
def no_hub(monkeypatch: pytest.MonkeyPatch) -> None:
    hub = pytest.importorskip("huggingface_hub", reason="needs the extra hf")
    monkeypatch.setattr(hub.constants, "HF_HUB_OFFLINE", True)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("models") / "tiny"
    foreign.saved(path, text=TEXT, n_positions=64)
    return path


@pytest.fixture(scope="module")
def text(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("texts") / "cats.txt"
    path.write_text(TEXT)
    return path


@pytest.fixture
def broken(folder: Path, tmp_path: Path) -> Iterator[Path]:
    """A copy that may be damaged."""
    yield Path(shutil.copytree(folder, tmp_path / "broken"))


@torch.no_grad()
def plain_loop(folder: Path, text: str) -> float:
    """Mean nats per token with transformers alone, half windows of 64 as they slide, the first token after the start."""
    hf = pytest.importorskip("transformers")
    model, tokenizer = hf.AutoModelForCausalLM.from_pretrained(folder), hf.AutoTokenizer.from_pretrained(folder)
    ids = tokenizer(text, add_special_tokens=False)["input_ids"]
    inputs, total = [tokenizer.eos_token_id, *ids], 0.0
    for place, target in enumerate(ids):
        first = 0 if place < 64 else ((place - 64) // 32 + 1) * 32
        logits = model(input_ids=torch.tensor([inputs[first : place + 1]])).logits[0, -1]
        total -= torch.log_softmax(logits.double(), -1)[target].item()
    return total / len(ids)


@pytest.mark.full
def test_an_evaluation_has_the_score_of_a_plain_loop(folder: Path, tmp_path: Path) -> None:
    short = tmp_path / "short.txt"
    short.write_text(TEXT[:700])
    figures = bs.evaluate(f"hf:{folder}", text=short).figures
    assert figures.nats_per_token == pytest.approx(plain_loop(folder, TEXT[:700]), abs=1e-5)
    assert figures.window == 64 and figures.audit.passed
    total = figures.nats_per_token * figures.tokens
    assert figures.unit == "piece"
    assert figures.nats_per_word == pytest.approx(total / figures.words)
    assert figures.words == len(TEXT[:700].split()) + TEXT[:700].count("\n") + 1
    assert figures.bits_per_byte == pytest.approx(total / math.log(2) / 700)


def test_a_corpus_is_named_and_nothing_is_written_without_a_place(folder: Path, text: Path, tmp_path: Path) -> None:
    before = {p: p.stat().st_mtime_ns for p in folder.rglob("*")}
    result = bs.evaluate(f"hf:{folder}", split="valid", corpus=str(text), out=tmp_path / "out")
    assert result.name == "hf:tiny" and result.figures.split == "valid"
    assert result.to_dict() == json.loads((tmp_path / "out" / "result.json").read_text())
    assert result.provenance.weights == weights_hash(bs.load(f"hf:{folder}")[0])
    assert result.provenance.weights_file is None  # no checkpoint of ours
    config = result.provenance.config
    assert config["model"]["model_type"] == "gpt2" and config["read"] == {"way": "blocks", "maximum_length": 64}
    assert bs.evaluate(f"hf:{folder}", split="valid", corpus=str(text)).figures == result.figures
    assert {p: p.stat().st_mtime_ns for p in folder.rglob("*")} == before


@pytest.mark.full
def test_a_revision_is_read_and_recorded(
    folder: Path, text: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    cache = tmp_path / "models--some--tiny"  # as the hub's own cache lies on the disk
    for commit, reference in (("a" * 40, "main"), ("b" * 40, "v1")):
        (cache / "refs").mkdir(parents=True, exist_ok=True)
        (cache / "refs" / reference).write_text(commit)
        shutil.copytree(folder, cache / "snapshots" / commit)
    foreign.causal("GPT2", 320, spread=0.5, n_positions=64).save_pretrained(cache / "snapshots" / ("b" * 40))
    hub = pytest.importorskip("huggingface_hub")
    monkeypatch.setattr(hub.constants, "HF_HUB_CACHE", str(tmp_path))
    main_one, other = (bs.evaluate("hf:some/tiny", text=text, **given) for given in ({}, {"revision": "v1"}))
    assert main_one.figures != other.figures
    assert main_one.figures.nats_per_token == bs.evaluate(f"hf:{folder}", text=text).figures.nats_per_token
    recorded = other.provenance.config
    assert recorded["revision"] == "v1" and recorded["commit"] == "b" * 40
    assert "revision" not in main_one.provenance.config
    with pytest.raises(UserError, match="hf:some/tiny is not on this machine"):
        bs.evaluate("hf:some/tiny", text=text, revision="v2")
    with pytest.raises(UserError, match="revision is for a name on the hub"):
        bs.evaluate(f"hf:{folder}", text=text, revision="v1")


@pytest.mark.full
@pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
def test_weights_are_read_in_their_own_type(folder: Path, text: Path, tmp_path: Path, dtype: str) -> None:
    wide = bs.evaluate(f"hf:{folder}", text=text)
    model = pytest.importorskip("transformers").AutoModelForCausalLM.from_pretrained(folder, dtype=dtype)
    half = Path(shutil.copytree(folder, tmp_path / dtype))
    model.save_pretrained(half)
    own, rounded = bs.evaluate(f"hf:{half}", text=text), bs.evaluate(f"hf:{folder}", text=text, dtype=dtype)
    assert own.figures.nats_per_token != wide.figures.nats_per_token
    for result in (own, rounded):
        assert result.figures.audit.passed, result.figures.audit.failures
        assert result.provenance.config["read"]["dtype"] == result.provenance.precision == dtype
        assert result.figures.nats_per_token == pytest.approx(wide.figures.nats_per_token, rel=0.02)
    cast = bs.evaluate(f"hf:{half}", text=text, dtype="float32").provenance
    assert cast.precision == "float32" and "dtype" not in cast.config["read"]


@pytest.mark.full
def test_a_window_moves_by_the_stride(folder: Path, tmp_path: Path) -> None:
    short = tmp_path / "short.txt"
    short.write_text(TEXT[:300])
    hf = pytest.importorskip("transformers")
    model, tokenizer = hf.AutoModelForCausalLM.from_pretrained(folder), hf.AutoTokenizer.from_pretrained(folder)
    ids = tokenizer(TEXT[:300], add_special_tokens=False)["input_ids"]
    inputs, total = [tokenizer.eos_token_id, *ids], 0.0
    with torch.no_grad():
        for place, target in enumerate(ids):
            first = 0 if place < 20 else ((place - 20) // 5 + 1) * 5
            logits = model(input_ids=torch.tensor([inputs[first : place + 1]])).logits[0, -1]
            total -= torch.log_softmax(logits.double(), -1)[target].item()
    result = bs.evaluate(f"hf:{folder}", text=short, window=20, stride=5)
    assert result.figures.nats_per_token == pytest.approx(total / len(ids), abs=1e-5)
    assert (result.figures.window, result.figures.window_keeps) == (20, 15) and result.figures.audit.passed
    assert result.provenance.config["read"] == {"way": "blocks", "maximum_length": 20, "stride": 5}
    for given, message in (({"window": 65}, "use window=64 or less"), ({"stride": 65}, "stride=65 would skip")):
        with pytest.raises(UserError, match=message):
            bs.evaluate(f"hf:{folder}", text=short, **given)


@pytest.mark.full
def test_a_reading_with_another_window_or_stride_is_not_taken_up(folder: Path, text: Path, tmp_path: Path) -> None:
    def stop(done: int, total: int) -> None:
        if done > 300:
            raise KeyboardInterrupt

    first = {"window": 16, "stride": 4, "out": tmp_path / "out"}
    with pytest.raises(KeyboardInterrupt):
        bs.evaluate(f"hf:{folder}", text=text, **first, save_every=1e-9, progress=stop)
    for other in ({"stride": 16}, {"window": 20}):
        with pytest.raises(UserError, match=r"was saved with the window 16 \(12 kept\), not"):
            bs.evaluate(f"hf:{folder}", text=text, **{**first, **other}, resume=True)


@pytest.mark.full
@pytest.mark.filterwarnings("ignore:hf.roberta cannot be read on from its cache")
def test_positions_begin_behind_the_padding(text: Path, tmp_path: Path) -> None:
    """RoBERTa's numbers do: of 66 it has 64 to give."""
    changes = {"intermediate_size": 32, "max_position_embeddings": 66, "pad_token_id": 1, "is_decoder": True}
    foreign.saved(tmp_path / "roberta", "Roberta", TEXT, **changes)
    figures = bs.evaluate(f"hf:{tmp_path / 'roberta'}", text=text).figures
    assert figures.window == 64 and figures.audit.passed


@pytest.mark.full
def test_a_device_map_reads_the_same(folder: Path, text: Path) -> None:
    pytest.importorskip("accelerate")
    mapped, plain = bs.evaluate(f"hf:{folder}", text=text, device_map="auto"), bs.evaluate(f"hf:{folder}", text=text)
    if not torch.cuda.is_available():
        assert mapped.figures.nats_per_token == plain.figures.nats_per_token


@pytest.mark.parametrize("layer", ["lm_head", "transformer.h"])
def test_a_model_that_does_not_fit_on_one_device_is_refused(
    layer: str, folder: Path, text: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("accelerate")
    automatic = pytest.importorskip("transformers").AutoModelForCausalLM
    load_mapped = automatic.from_pretrained
    parts = ("transformer.wte", "transformer.wpe", "transformer.drop", "transformer.h", "transformer.ln_f", "lm_head")
    device_map = {part: "disk" if part == layer else "cpu" for part in parts}

    def with_little_memory(source: str, **how: Any) -> Any:
        assert how["device_map"] == "sequential"
        return load_mapped(source, **how | {"device_map": device_map, "offload_folder": str(tmp_path / "disk")})

    monkeypatch.setattr(automatic, "from_pretrained", with_little_memory)
    with pytest.raises(
        UserError, match=r"tiny does not fit on one device, and was spread over cpu and disk; use dtype=.bfloat16. or"
    ):
        bs.evaluate(f"hf:{folder}", text=text, device_map="auto")


@pytest.mark.parametrize(
    ("places", "spread"), [((0, 0), None), ((0, 1), "cuda:0 and cuda:1"), ((0, "cpu"), "cpu and cuda:0")]
)
def test_weights_on_two_devices_are_refused(places: tuple[int | str, ...], spread: str | None) -> None:
    device_map = dict(zip(("layers", "head"), places, strict=True))
    if spread is None:
        check_one_device(device_map, "hf:tiny")
        return
    with pytest.raises(
        UserError, match=f"hf:tiny does not fit on one device, and was spread over {spread}; use --dtype"
    ):
        check_one_device(device_map, "hf:tiny")


@pytest.mark.full
def test_models_are_loaded_in_several_threads(folder: Path, tmp_path: Path) -> None:
    folders = [Path(shutil.copytree(folder, tmp_path / str(i))) for i in range(4)]
    with ThreadPoolExecutor(4) as pool:
        hashes = set(pool.map(lambda one: load(f"hf:{one}").weights_hash, folders * 3))
    assert hashes == {load(f"hf:{folder}").weights_hash}


def test_contexts_begin_with_the_start_token(folder: Path, text: Path) -> None:
    numbers: dict[str, Any] = {"targets": 20, "maximum_context": 12, "split": "train", "word_score": "sum"}
    plain, begun = (
        bs.examine(f"hf:{folder}", str(text), start_token=given, **numbers).figures for given in (False, True)
    )
    assert begun.start_token and not plain.start_token
    assert all(one.nats != other.nats for one, other in zip(plain.conditions, begun.conditions, strict=True))
    assert begun.baseline.nats == plain.baseline.nats or begun.baseline.context is not None


def test_options_of_other_models_are_refused_for_a_run(tiny_run: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["evaluate", str(tiny_run), "--revision", "v1"]) == 2
    assert "--revision is for models from elsewhere (hf:...)" in capsys.readouterr().err


@pytest.mark.full
@pytest.mark.parametrize("reader", ["cache", "dynamic:rule=sgd,rate=0.05", "dynamic:rule=nadam,rate=0.003+cache"])
def test_readers_go_around_it(folder: Path, text: Path, reader: str) -> None:
    figures = bs.evaluate(f"hf:{folder}", split="valid", corpus=str(text), reader=reader).figures
    assert figures.audit.passed, figures.audit.failures
    gains = [gain.perplexity for gain in figures.gains]
    assert len(gains) == reader.count("+") + 2 and gains == sorted(gains, reverse=True)


@pytest.mark.full
def test_statistics_and_settings_are_kept_in_the_cache(
    folder: Path, text: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    name = f"hf:{folder}"
    small = ["--batch-size", "4", "--segment", "5", "--tokens", "400"]
    assert main(["reader", "statistics", name, "--corpus", str(text), *small]) == 0
    figures = bs.evaluate(name, split="valid", corpus=str(text), reader="dynamic:rate=0.01").figures
    assert figures.gains[1].perplexity < figures.gains[0].perplexity
    assert main(["reader", "tune", name, "--corpus", str(text), "--reader", "cache", "--tokens", "100"]) == 0
    assert load(name).folder.joinpath("readers", "cache.json").is_file()
    assert not (folder / "readers").exists()


@pytest.mark.full
def test_an_examination_folds_pieces_into_words(
    folder: Path, text: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    options = ["--corpus", str(text), "--maximum-context", "20", "--targets", "30", "--split", "train"]
    assert main(["examine", f"hf:{folder}", *options, "--precision", "float32", "--json"]) == 0
    result = json.loads(capsys.readouterr().out)
    figures = result["figures"]
    assert figures["unit"] == "word" and figures["window"] == 64 and figures["pieces_per_word"] >= 1
    assert [c["context"] for c in figures["conditions"]] == [5, 10, 13, 20]
    assert main(["examine", f"hf:{folder}", *options]) == 0
    assert "contexts are in words" in capsys.readouterr().out
    # Two of them are a set, although nobody knows the seeds that they were trained with.
    other = shutil.copytree(folder, tmp_path / "other")
    assert main(["examine", f"hf:{folder}", f"hf:{other}", *options, "--json"]) == 0
    together = json.loads(capsys.readouterr().out)
    assert [one["nats"] for one in together["figures"]["models"]] == [figures["baseline"]["nats"]] * 2
    assert together["provenance"]["seed"] == [None, None]


@pytest.mark.full
@pytest.mark.filterwarnings("default:.*longer, and cut")
def test_cut_contexts_are_reported_with_the_longest_that_fits(
    text: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    foreign.saved(tmp_path / "bytes", text="zzz " * 40, n_positions=64)  # its words of the text are bytes
    options = ["examine", f"hf:{tmp_path / 'bytes'}", "--corpus", str(text), "--targets", "60", "--split", "train"]
    assert main([*options, "--maximum-context", "25"]) == 0
    out, err = capsys.readouterr()
    assert "60 of 60 targets are longer, and cut; a maximum context of 17 words fits for all of them" in err
    assert "at most 64 pieces; the contexts of 60 of 60 targets were longer, and cut\n" in out
    assert main([*options, "--maximum-context", "17"]) == 0
    out, err = capsys.readouterr()
    assert "at most 64 pieces\n" in out and "cut" not in err
    assert main([*options, "--maximum-context", "18"]) == 0
    assert "targets are longer, and cut" in capsys.readouterr().err


@pytest.mark.parametrize("more", [[], ["--experiment", "shuffle"], ["--start-token"]])
@pytest.mark.filterwarnings("default:.*longer, and cut")
def test_by_default_contexts_are_as_long_as_the_window_holds(
    more: list[str], text: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    foreign.saved(tmp_path / "bytes", text="zzz " * 40, n_positions=64)  # its words of the text are bytes
    options = ["examine", f"hf:{tmp_path / 'bytes'}", "--corpus", str(text), "--targets", "60", "--split", "train"]
    assert main([*options, *more, "--json"]) == 0
    figures = json.loads(capsys.readouterr().out)["figures"]
    assert 10 < figures["maximum_context"] < 20 and figures["cut_contexts"] <= 2
    assert figures["context"] in (None, figures["maximum_context"])
    ids = np.arange(500) % 17
    examined = bs.examine(foreign.causal("GPT2", n_positions=64), ids, targets=20, experiment="shuffle").figures
    assert (examined.maximum_context, examined.context) == (64, 64)


@pytest.mark.full
def test_several_corpora_give_what_each_gives(folder: Path, text: Path, tmp_path: Path, capsys: Any) -> None:
    other = tmp_path / "dogs.txt"
    other.write_text("the dog sat on the dog .\n" * 90)
    name, out = f"hf:{folder}", tmp_path / "out"
    arguments = ["evaluate", name, "--corpus", str(text), "--corpus", str(other), "--split", "valid"]
    assert main([*arguments, "--out", str(out), "--json"]) == 0
    printed = json.loads(capsys.readouterr().out)
    assert sorted(path.name for path in out.iterdir()) == ["cats.txt", "dogs.txt"]
    for result, corpus in zip(printed, (text, other), strict=True):
        assert json.loads((out / corpus.name / "result.json").read_text()) == result
        alone = bs.evaluate(name, corpus=corpus, split="valid", audit_seed=int(result["figures"]["audit"]["seed"]))
        assert alone.to_dict()["figures"] == result["figures"]
    assert main(arguments) == 0
    head, columns, *rows = capsys.readouterr().out.splitlines()
    assert head == "hf:tiny, valid split, static reader, scored per piece" and columns.split()[0] == "corpus"
    assert [row.split()[0] for row in rows[:2]] == ["cats.txt", "dogs.txt"]
    assert f"{printed[1]['figures']['nats_per_token']:.4f}" in rows[1]
    assert [r.corpus.title() for r in bs.evaluate(name, corpus=[other], split="valid")] == ["dogs.txt"]


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ({"per_token": "tokens.tsv"}, "per_token goes with one corpus at most"),
        ({"resume": True}, "resume=True goes with one corpus at most"),
        ({"text": "a b"}, "TEXT goes with one corpus at most"),
        ({"corpus": []}, "no corpus is named"),
        ({"corpus": ["a/cats.txt", "b/cats.txt"]}, "two corpora are called cats.txt"),
        ({"corpus": ["cats.txt", "nowhere.txt"]}, "nowhere.txt"),
    ],
)
def test_corpora_that_cannot_be_read_together(
    options: dict, says: str, folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("cats.txt").write_text("the cat sat on the mat .\n" * 200)
    with pytest.raises(UserError, match=says):
        bs.evaluate(f"hf:{folder}", **{"corpus": ["recall", "stdlib"], "out": tmp_path / "out"} | options)
    assert not (tmp_path / "out").exists()


@pytest.mark.full
@torch.no_grad()
def test_lines_are_scored_as_transformers_scores_each(folder: Path, tmp_path: Path) -> None:
    hf, pandas = pytest.importorskip("transformers"), pytest.importorskip("pandas")
    model, tokenizer = hf.AutoModelForCausalLM.from_pretrained(folder), hf.AutoTokenizer.from_pretrained(folder)
    lines = ["the cat sat .", "", "the dog ran after the cat on the mat .", "mat", "a dog sat on the dog ."]
    (tmp_path / "lines.txt").write_text("\n".join(lines))
    for batch_size in (1, 3):
        path = tmp_path / f"{batch_size}.tsv"
        options = {"each_line": True, "batch_size": batch_size, "per_line": path}
        assert bs.evaluate(f"hf:{folder}", tmp_path / "lines.txt", **options).figures.audit.passed
        frame = pandas.read_csv(path, sep="\t", keep_default_na=False)
        assert frame["line"].tolist() == [1, 3, 4, 5] and frame["text"].tolist() == list(filter(None, lines))
        for line, tokens, nats in zip(frame["text"], frame["tokens"], frame["nats"], strict=True):
            ids = tokenizer(line, add_special_tokens=False, return_tensors="pt")["input_ids"]
            inputs = torch.cat([torch.tensor([[tokenizer.eos_token_id]]), ids[:, :-1]], 1)
            scores = model(input_ids=inputs).logits.double().log_softmax(-1).gather(2, ids[:, :, None])
            assert tokens == ids.shape[1] and nats == pytest.approx(-scores.sum().item(), abs=1e-4)


@pytest.mark.parametrize("experiment", ["truncate", "shuffle", "replace"])
def test_a_model_at_hand_is_examined_as_by_its_name(experiment: str, folder: Path, text: Path) -> None:
    from backstory.config.options import EvalOptions
    from backstory.evaluation.opening import open_evaluation

    name, numbers = f"hf:{folder}", {"targets": 20, "maximum_context": 12, "context": 8, "split": "train"}
    opened = open_evaluation(name, EvalOptions(split="train", corpus=str(text), allow_unknown=True))
    by_name = bs.examine(name, str(text), experiment, precision="float32", **numbers).figures
    at_hand = bs.examine(opened.run.model, opened.dataset, experiment, **numbers).figures
    for key in ("unit", "window", "pieces_per_word", "baseline", "conditions"):
        assert getattr(at_hand, key) == getattr(by_name, key), key
    assert by_name.unit == "word" and by_name.baseline.context is not None, "a window has no infinite context"


def test_words_of_pieces_are_split_by_frequency_and_tag(folder: Path, text: Path) -> None:
    def tagger(words: list[str]) -> list[str]:
        return ["DT" if word == "the" else "IN" if word == "on" else "NN" for word in words]

    numbers: dict[str, Any] = {"targets": 40, "maximum_context": 12, "context": 8, "split": "train", "tagger": tagger}
    dropped = bs.examine(f"hf:{folder}", str(text), "drop", by=("tag", "frequency"), **numbers)
    groups = {(group.by, group.group): group.targets for group in dropped.figures.groups}
    assert dropped.figures.tagger == "tagger" and sum(n for (by, _), n in groups.items() if by == "tag") == 40
    assert groups["tag", "DT"] and groups["tag", "IN"] and groups["frequency", "infrequent"] == 40
    content, function = (
        next(c for c in dropped.figures.conditions if c.words == kind and not c.control)
        for kind in ("content", "function")
    )
    assert content.dropped > function.dropped > 0
    replaced = bs.examine(f"hf:{folder}", str(text), "replace-target", **numbers)
    assert [c.replacement for c in replaced.figures.conditions] == ["similar"], "the text has no <unk>"


@pytest.mark.parametrize(("case", "window"), [("success", 20), ("failure", 3)])
def test_a_case_of_its_cache_is_a_word_of_one_piece(
    case: str,
    window: int,
    folder: Path,
    text: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(tmp_path)
    options = ["--corpus", str(text), "--split", "train", "--reader", f"cache:window={window},theta=3", "--find", case]
    assert main(["explain", "cache", f"hf:{folder}", *options, "--json"]) == 0
    figures = json.loads(capsys.readouterr().out)["figures"]
    found, run = figures["found"], load(f"hf:{folder}")
    ids = np.asarray(run.dataset(str(text), None).splits["train"].ids)
    assert run.vocabulary.decode(ids[[found["target"]]]).strip() == found["word"] != ""
    assert figures["at"] + figures["tokens"] == found["target"] + 1 and figures["unit"] == "piece"
    held = (ids[found["target"] - window : found["target"]] == ids[found["target"]]).any()
    assert held == (case == "success") and (found["share"] > 0.5) == (case == "success")
    assert not list(tmp_path.iterdir()), "a model from elsewhere has no folder to write to"


def test_its_readers_are_compared_on_a_corpus(folder: Path, text: Path, tmp_path: Path) -> None:
    options = [
        "--corpus",
        str(text),
        "--split",
        "train",
        "--tokens",
        "200",
        "--block",
        "50",
        "--out",
        str(tmp_path / "out"),
    ]
    assert main(["explain", "reading", f"hf:{folder}", "--reader", "cache", *options]) == 0
    result = json.loads((tmp_path / "out" / "result.json").read_text())
    assert result["name"] == f"hf:{folder.name}" and result["figures"]["tokens"] == 200


@pytest.mark.full
def test_losses_of_a_model_with_other_settings_are_not_taken_over(broken: Path, text: Path, tmp_path: Path) -> None:
    numbers: dict[str, Any] = {"targets": 20, "maximum_context": 12, "split": "train", "precision": "float32"}

    def taken_over() -> int:
        found = bs.examine(f"hf:{broken}", str(text), "truncate", out=tmp_path / "out", **numbers)
        return found.provenance.taken_over

    assert (taken_over(), taken_over()) == (0, 3)
    config = json.loads((broken / "config.json").read_text())
    (broken / "config.json").write_text(json.dumps(config | {"layer_norm_epsilon": 0.1}))
    assert taken_over() == 0


def test_it_writes_and_reads_on(folder: Path, text: Path) -> None:
    found = "".join(bs.generate(f"hf:{folder}", "the cat", tokens=5, temperature=0.0))
    hf = pytest.importorskip("transformers")
    model, tokenizer = hf.AutoModelForCausalLM.from_pretrained(folder), hf.AutoTokenizer.from_pretrained(folder)
    ids = [tokenizer.eos_token_id, *tokenizer("the cat", add_special_tokens=False)["input_ids"]]
    length = len(ids)
    for _ in range(5):
        ids.append(model(input_ids=torch.tensor([ids])).logits[0, -1].argmax().item())
    assert found == tokenizer.decode(ids[length:])


def test_bfloat16_is_close(folder: Path, text: Path) -> None:
    exact, rounded = (
        bs.evaluate(f"hf:{folder}", split="valid", corpus=str(text), precision=p).figures.nats_per_token
        for p in ("float32", "bfloat16")
    )
    assert exact != rounded and rounded == pytest.approx(exact, abs=0.05)


def test_from_python_it_is_a_model_and_a_vocabulary(folder: Path) -> None:
    model, vocabulary = bs.load(f"hf:{folder}")
    assert model.vocabulary_size == len(vocabulary) and not model.training
    assert np.array_equal(vocabulary.encode("the cat"), vocabulary.encode("the cat"))


# --- mistakes ---


def mistake(capsys: pytest.CaptureFixture[str], *arguments: str) -> str:
    capsys.readouterr()
    assert main([str(a) for a in arguments]) == 2
    found = capsys.readouterr()
    assert found.out == "" and found.err.count("\n") == 1 and found.err.startswith("backstory: "), found.err
    return found.err


@pytest.mark.parametrize(
    ("name", "told"),
    [
        ("hf:", "there is no folder ''"),
        ("hf:/no/where", "there is no folder '/no/where'"),
        ("hf:./no", "there is no folder './no'"),
        ("hf:gpt2", "hf:gpt2 is not on this machine, and the hub cannot be reached"),
        ("hf:nobody/nothing", "hf:nobody/nothing is not on this machine"),
    ],
)
def test_names_that_lead_nowhere(name: str, told: str, text: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert told in mistake(capsys, "evaluate", name, text)


def without_config(path: Path) -> None:
    (path / "config.json").unlink()


def without_tokenizer(path: Path) -> None:
    for file in path.glob("*token*"):
        file.unlink()


def without_weights(path: Path) -> None:
    (path / "model.safetensors").unlink()


def pickled(path: Path) -> None:
    (path / "model.safetensors").rename(path / "pytorch_model.bin")


def damaged(path: Path) -> None:
    (path / "model.safetensors").write_bytes(b"nothing of the kind")


def incomplete(path: Path) -> None:
    from safetensors.torch import load_file, save_file

    tensors = load_file(path / "model.safetensors")
    save_file({k: v for k, v in tensors.items() if ".h.1.mlp" not in k}, path / "model.safetensors", {"format": "pt"})


def configured(**changes: Any) -> Callable[[Path], None]:
    def change(path: Path) -> None:
        known = json.loads((path / "config.json").read_text())
        (path / "config.json").write_text(json.dumps(known | changes))

    return change


@pytest.mark.parametrize(
    ("damage", "told"),
    [
        (without_config, "holds no Hugging Face model (no config.json)"),
        (without_tokenizer, "has no tokenizer"),
        (without_weights, "holds no weights (*.safetensors)"),
        (pickled, "holds weights as a pickle (.bin), which could run any code"),
        (damaged, "cannot be loaded"),
        (incomplete, "has no weights for transformer.h.1.mlp"),
        (configured(model_type="t5"), "is not a causal language model"),
        (
            configured(model_type="weird", auto_map={"AutoConfig": "x.Z", "AutoModelForCausalLM": "x.Y"}),
            "code that comes with its weights",
        ),
        (configured(model_type="weird"), "cannot be loaded"),
        (
            configured(n_layer=1),
            "has weights for layer 1 of transformer.h, and its settings ask for 1 (counted from 0)",
        ),
        (configured(n_positions=7), "has weights of other sizes than its settings say; save the model again"),
    ],
)
def test_folders_that_cannot_be_read(
    damage: Callable[[Path], None], told: str, broken: Path, text: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    damage(broken)
    assert told in mistake(capsys, "evaluate", f"hf:{broken}", text)


def test_layers_of_a_model_without_its_head_are_counted(broken: Path) -> None:
    hf = pytest.importorskip("transformers")
    hf.GPT2Model.from_pretrained(broken).save_pretrained(broken)
    assert load(f"hf:{broken}").vocabulary
    configured(n_layer=1)(broken)
    with pytest.raises(UserError, match="has weights for layer 1 of h, and its settings ask for 1"):
        load(f"hf:{broken}")


def test_weights_that_are_not_used_are_named(broken: Path) -> None:
    hf = pytest.importorskip("transformers")
    hf.GPT2ForSequenceClassification.from_pretrained(broken).save_pretrained(broken)
    with pytest.warns(UserWarning, match="has 1 tensor of weights that the model has no place for: score.weight"):
        load(f"hf:{broken}")


def test_an_encoder_is_refused(tmp_path: Path, text: Path, capsys: pytest.CaptureFixture[str]) -> None:
    foreign.saved(tmp_path / "bert", "Bert", TEXT, intermediate_size=32)
    assert "hf:bert is not a causal language model: its predictions" in mistake(
        capsys, "evaluate", f"hf:{tmp_path / 'bert'}", text
    )


@pytest.mark.full
def test_a_tokenizer_that_loses_words_is_refused(
    broken: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    hf = pytest.importorskip("tokenizers")
    model = hf.Tokenizer(hf.models.WordLevel({"[UNK]": 0, "the": 1, "cat": 2}, unk_token="[UNK]"))
    model.pre_tokenizer = hf.pre_tokenizers.Whitespace()
    model.save(str(broken / "tokenizer.json"))
    text = tmp_path / "text.txt"
    text.write_text("the cat sat")
    assert "does not fit this text, as it reads 'sat' as '[UNK]'" in mistake(capsys, "evaluate", f"hf:{broken}", text)
    corpus = tmp_path / "corpus"  # whose first split has nothing but known words
    corpus.mkdir()
    for split, words in (("train", "the cat"), ("valid", "cat the"), ("test", "the cat sat")):
        (corpus / f"{split}.txt").write_text(words)
    assert "as it reads 'sat' as '[UNK]'" in mistake(capsys, "evaluate", f"hf:{broken}", "--corpus", corpus)
    text.write_text("the cat the")
    assert main(["evaluate", f"hf:{broken}", str(text)]) == 0


def test_a_word_that_is_lost_after_words_that_are_cut_otherwise_is_named(
    broken: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """A tokenizer of BERT without capitals gives back `< eos >` for `<eos>`, where nothing is lost."""
    hf = pytest.importorskip("tokenizers")
    words = ["[UNK]", "<", "eos", ">", "the", "n", "cat"]
    model = hf.Tokenizer(hf.models.WordPiece({word: i for i, word in enumerate(words)}, unk_token="[UNK]"))
    model.normalizer, model.pre_tokenizer = hf.normalizers.Lowercase(), hf.pre_tokenizers.BertPreTokenizer()
    model.decoder = hf.decoders.WordPiece()
    model.save(str(broken / "tokenizer.json"))
    text = tmp_path / "text.txt"
    for written, message in (("<eos> the N cat", "reads 'N' as 'n'"), ("the <eos> cat dog", "reads 'dog' as '[UNK]'")):
        text.write_text(written)
        assert message in mistake(capsys, "evaluate", f"hf:{broken}", text)


def test_white_space_that_a_tokenizer_loses_is_quoted(
    broken: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    hf = pytest.importorskip("tokenizers")
    model = hf.Tokenizer(hf.models.WordLevel({"<unk>": 0, ".": 1, "a": 2, " ": 3}, unk_token="<unk>"))
    model.pre_tokenizer = hf.pre_tokenizers.Split(hf.Regex(r"\s|\w+"), "isolated")
    model.decoder = hf.decoders.Fuse()
    model.save(str(broken / "tokenizer.json"))
    text = tmp_path / "text.txt"
    text.write_text("a .\ta a")
    message = mistake(capsys, "evaluate", f"hf:{broken}", text)
    assert r"as it reads '.\t' as '.<unk>a'" in message


@pytest.mark.full
def test_what_does_not_go_together(
    folder: Path, text: Path, tiny_run: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    name = f"hf:{folder}"
    assert (
        "has no corpus of its own; name one with --corpus NAME, or give a text file: `backstory evaluate MODEL FILE`"
    ) in mistake(capsys, "evaluate", name)
    assert "read with the corpus it was trained on; leave --corpus out" in mistake(
        capsys, "examine", tiny_run, "--corpus", "ptb"
    )
    assert "a text and --corpus cannot be combined" in mistake(capsys, "evaluate", name, text, "--corpus", text)
    assert "reads at most 64 tokens, so no context can have 1,000; use --maximum-context 64" in mistake(
        capsys, "examine", name, "--corpus", text, "--maximum-context", "1000"
    )
    assert "no context can have 300; use --context 64, or leave it out for a length that fits the words" in mistake(
        capsys, "examine", name, "--corpus", text, "--experiment", "shuffle", "--context", "300"
    )
    assert "the start token among them; use --maximum-context 63" in mistake(
        capsys, "examine", name, "--corpus", text, "--start-token", "--maximum-context", "64"
    )
    assert "the corpus recall is synthetic and has its own tokens" in mistake(
        capsys, "evaluate", name, "--corpus", "recall"
    )
    assert (
        f"{name} has no statistics of training gradients yet; collect them once with `backstory reader statistics {name} "
        "--corpus NAME --moving low-rank:2`, or do without them: --reader dynamic:rule=sgd,rate=0.0001"
    ) in mistake(capsys, "evaluate", name, text, "--reader", "dynamic:moving=low-rank:2")
    assert "leave --save out" in mistake(capsys, "generate", name, "--save")
    ensemble = f"ensemble:runs={name},reader=learned"
    for reader in ("learned", ensemble):
        assert f"train it with `backstory reader train {name} --corpus NAME`" in mistake(
            capsys, "evaluate", name, text, "--reader", reader
        )
    assert "control of a span buffer" in mistake(
        capsys, "evaluate", name, text, "--reader", "shuffled-buffer", "--batch-size", "2"
    )


def test_without_transformers_it_says_what_to_install(
    folder: Path, text: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "transformers.utils", None)
    with pytest.raises(
        UserError, match=r"needs the package transformers; run `pip install -e '\.\[hf\]'` in the clone of backstory"
    ):
        load(f"hf:{folder}")


def test_a_tokenizer_that_would_end_the_process_is_refused_in_one_line(
    broken: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    path = broken / "tokenizer.json"
    made = json.loads(path.read_text())
    for charsmap, told in (("AAAAgGFiY2RhYmNk", "breaks down"), ("", "is not a tokenizer.json")):
        made["normalizer"] = {"type": "Precompiled", "precompiled_charsmap": charsmap}
        path.write_text(json.dumps(made))
        assert main(["evaluate", f"hf:{broken}", "--corpus", str(path)]) == 2
        out, err = capfd.readouterr()
        assert not out and told in err and "tokenizer.json" in err and err.count("\n") == 1


def test_a_session_goes_on_with_the_same_settings_only(
    broken: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def read(model: Path, *flags: str) -> int:
        with open(typed) as file, monkeypatch.context() as patch:
            patch.setattr(sys, "stdin", file)
            return main(["read", f"hf:{model}", "--session", str(tmp_path / "session"), *flags])

    typed = tmp_path / "typed"
    typed.write_text("the cat sat .\n")
    assert read(broken) == 0
    moved = broken.rename(broken.parent / "moved")
    assert read(moved, "--resume") == 0
    config = json.loads((moved / "config.json").read_text())
    (moved / "config.json").write_text(json.dumps(config | {"n_head": 2 * config["n_head"]}))
    capsys.readouterr()
    assert read(moved, "--resume") == 2
    assert "was saved with another model; give that one" in capsys.readouterr().err
