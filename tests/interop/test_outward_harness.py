"""Runs in the evaluation harness: real tasks from local files, with the figures of our own evaluation."""

import json
import math
import os
import subprocess
import sys
from functools import partial
from importlib.util import find_spec
from pathlib import Path
from types import ModuleType
from typing import Any

import foreign
import numpy as np
import pytest
import torch
import yaml
from outward import buffer, trained
from tiers import fast_then_full

import backstory as bs
from backstory.config import RunConfig
from backstory.evaluation import read
from backstory.evaluation.generation import encode_prompt
from backstory.evaluation.opening import open_reader
from backstory.interop import folders
from backstory.runs.run import load_run
from backstory.utils.errors import UserError

lm_eval = pytest.importorskip("lm_eval", reason="needs the extra eval")

from lm_eval.api.instance import Instance  # noqa: E402
from lm_eval.tasks import TaskManager  # noqa: E402

from backstory.interop.harness import BackstoryLM  # noqa: E402

TOKENIZERS = ["words", "regex", "characters", "bytes", "pieces"]
DOCUMENTS = [
    "ann saw the tea and bob took more jam\ncarl sold the ink and dora found more oil\n",
    "dora took the jam and dora took more jam",
    "bob found the oil and ann sold more tea\n" * 9,
]
QUESTIONS = [
    {"question": "ann saw the tea and ann saw more", "choices": ["tea", "jam", "the ann"], "answer": 0},
    {"question": "bob took the oil and carl", "choices": ["found more ink", "oil"], "answer": 0},
    {"question": "dora", "choices": ["sold", "tea"], "answer": 1},
]


@pytest.fixture(scope="module", params=fast_then_full(TOKENIZERS, ["words", "characters", "pieces"]))
def run(request: pytest.FixtureRequest, tiny_config: RunConfig, tmp_path_factory: pytest.TempPathFactory) -> Path:
    spans = buffer(size=24, span=4) if request.param == "characters" else None
    return trained(tiny_config, tmp_path_factory.mktemp(request.param), request.param, spans)


def instances(kind: Any, arguments: list[tuple]) -> list[Instance]:
    return [Instance(kind, {}, given, i) for i, given in enumerate(arguments)]


def alone(run: Path, reader: str, ids: list[int], first: int = 0) -> float:
    """The nats of the tokens from `first` on, read by a fresh reader in one row."""
    loaded, made, _ = open_reader(run, reader)
    told: list[torch.Tensor] = []
    read(
        made,
        np.array(ids),
        loaded.vocabulary.start,
        each=lambda block, prediction, log_prob: told.append(log_prob),
    )
    return -float(torch.cat(told, 1)[0, first:].double().sum())


def tasks(folder: Path) -> TaskManager:
    """Two tasks over local files: a choice, and the perplexity of documents."""
    folder.mkdir()
    for name, rows in (("documents", [{"text": d} for d in DOCUMENTS]), ("questions", QUESTIONS)):
        (folder / f"{name}.json").write_text("\n".join(map(json.dumps, rows)))

    def task(name: str, data: str, **settings: Any) -> None:
        files = {"data_files": {"test": str(folder / f"{data}.json")}, "cache_dir": str(folder / "cache")}
        whole = {"task": name, "dataset_path": "json", "dataset_kwargs": files, "test_split": "test", **settings}
        (folder / f"{name}.yaml").write_text(yaml.safe_dump({**whole, "metadata": {"version": 1.0}}))

    task("local_choice", "questions", output_type="multiple_choice", doc_to_text="{{question}}", doc_to_choice="choices",
         doc_to_target="answer", metric_list=[{"metric": "acc"}])  # fmt: skip
    task("local_perplexity", "documents", output_type="loglikelihood_rolling", doc_to_text="", doc_to_target="{{text}}",
         metric_list=[{"metric": name} for name in ("word_perplexity", "byte_perplexity", "bits_per_byte")])  # fmt: skip
    return TaskManager(include_path=str(folder), include_defaults=False)


READERS = fast_then_full(["static", "cache:theta=0.5,window=30"], ["cache:theta=0.5,window=30"])


@pytest.mark.full
@pytest.mark.parametrize("reader", READERS)
def test_a_task_has_the_figures_of_our_own_evaluation(
    run: Path, reader: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    manager = tasks(tmp_path / "tasks")
    found = lm_eval.simple_evaluate(
        "backstory",
        model_args={"run": str(run), "reader": reader, "device": "cpu"},
        tasks=["local_choice", "local_perplexity"],
        task_manager=manager,
        batch_size=2,
        bootstrap_iters=0,
    )
    nats = 0.0
    for number, text in enumerate(DOCUMENTS):
        path = tmp_path / f"{number}.txt"
        path.write_text(text)
        figures = bs.evaluate(run, text=path, reader=reader).figures
        nats += figures.nats_per_token * figures.tokens
    perplexity, choice = (found["results"][name] for name in ("local_perplexity", "local_choice"))
    size = sum(len(text.encode()) for text in DOCUMENTS)
    assert perplexity["bits_per_byte,none"] == pytest.approx(nats / math.log(2) / size, rel=1e-6)
    assert perplexity["byte_perplexity,none"] == pytest.approx(math.exp(nats / size), rel=1e-6)
    vocabulary = load_run(run).vocabulary
    right = 0
    for question in QUESTIONS:
        before = encode_prompt(vocabulary, question["question"])
        texts = [encode_prompt(vocabulary, f"{question['question']} {choice}") for choice in question["choices"]]
        scores = [alone(run, reader, ids, len(before)) for ids in texts]
        right += scores.index(min(scores)) == question["answer"]
    assert choice["acc,none"] == pytest.approx(right / len(QUESTIONS))


@pytest.mark.full
@pytest.mark.parametrize("reader", READERS)
def test_requests_are_read_alone_whatever_is_read_beside_them(run: Path, reader: str) -> None:
    contexts = ["", "ann saw the", "ann saw the tea and bob took more jam\n", DOCUMENTS[0] * 5, "carl "]
    pairs = [(context, continuation) for context in contexts for continuation in (" tea", " jam and bob", "\nann")]
    vocabulary = load_run(run).vocabulary
    results = []
    for rows in (1, 4, "auto"):
        model = BackstoryLM(run, reader, batch_size=rows)
        results.append(model.loglikelihood(instances("loglikelihood", pairs), disable_tqdm=True))
    for place, (context, continuation) in enumerate(pairs):
        whole = encode_prompt(vocabulary, context + continuation)
        # As for the harness's own models, white space at the end of a context is scored with what comes after it, and a token
        # that begins texts is not put before itself.
        first = len(encode_prompt(vocabulary, context.rstrip()))
        whole = whole[1:] if whole[0] == vocabulary.start else whole
        wanted = -alone(run, reader, whole, first)
        for found in results:
            assert found[place][0] == pytest.approx(wanted, abs=1e-4)
            assert found[place][1] == results[0][place][1]


def test_what_is_gone_on_with_is_ours_and_greedy(run: Path) -> None:
    model = BackstoryLM(run, batch_size=3)
    contexts = ["ann saw the", "", "bob took"]
    settings = {"until": ["more", "xyz"], "max_gen_toks": 12}
    found = model.generate_until(instances("generate_until", [(c, settings) for c in contexts]), disable_tqdm=True)
    for context, text in zip(contexts, found, strict=True):
        assert text == "".join(bs.generate(run, context, tokens=12, temperature=0, stop=["more", "xyz"]))
    free = model.generate_until(instances("generate_until", [(contexts[0], {"max_gen_toks": 4})]), disable_tqdm=True)[0]
    scored = model.loglikelihood(
        instances("loglikelihood", [(contexts[0], free), (contexts[0], " zzz")]), disable_tqdm=True
    )
    assert free and [greedy for _, greedy in scored] == [True, False]


def test_samples_follow_the_seed_of_the_harness(run: Path) -> None:
    model = BackstoryLM(run)
    settings = {"do_sample": True, "temperature": 1.5, "top_k": 9, "max_gen_toks": 20, "until": "\n\n"}
    texts = []
    for seed in (1, 1, 2):
        torch.manual_seed(seed)
        texts.append(model.generate_until(instances("generate_until", [("ann", settings)] * 2), disable_tqdm=True))
    assert texts[0] == texts[1] != texts[2] and texts[0][0] != texts[0][1]


# --- the harness's own model ---

PAIRS = [("ann saw the", " tea"), ("ann saw the tea\n", "bob took"), ("", "ann saw"), ("bob took more ", "jam and"),
         ("dora", " sold the ink to bob")]  # fmt: skip


def own_model(folder: Path, **settings: Any) -> Any:
    """The harness's own model of a folder, on the CPU."""
    transformers = pytest.importorskip("transformers")
    with pytest.MonkeyPatch.context() as patch:
        if (
            find_spec("accelerate") is None
        ):  # it imports the package for several devices, and needs nothing of it for one
            package, utilities = ModuleType("accelerate"), ModuleType("accelerate.utils")
            for name in ("Accelerator", "InitProcessGroupKwargs", "find_executable_batch_size"):
                setattr(package, name, None)
            utilities.get_max_memory = None  # type: ignore[attr-defined]
            patch.setitem(sys.modules, "accelerate", package)
            patch.setitem(sys.modules, "accelerate.utils", utilities)
        from lm_eval.models.huggingface import HFLM
    model = transformers.AutoModelForCausalLM.from_pretrained(folder)
    tokenizer = transformers.AutoTokenizer.from_pretrained(folder)
    return HFLM(pretrained=model, tokenizer=tokenizer, batch_size=1, **settings)


@pytest.mark.parametrize("add_bos_token", [None, True, False])
def test_an_export_is_scored_as_by_the_harness_s_own_model(
    run: Path, add_bos_token: bool | None, tmp_path: Path
) -> None:
    from backstory.interop.exporting import export

    folder, start = export(run, tmp_path / "export"), load_run(run).vocabulary.start
    # Its tokenizer names no token that begins a text, for the sake of texts in which that is written out.
    wanted = own_model(folder, prefix_token_id=start, add_bos_token=add_bos_token)
    asked = instances("loglikelihood", PAIRS)
    for place in (str(run), f"hf:{folder}"):
        found = BackstoryLM(place, batch_size=2, add_bos_token=add_bos_token).loglikelihood(asked, disable_tqdm=True)
        theirs = wanted.loglikelihood(asked, disable_tqdm=True)
        assert [s for s, _ in found] == pytest.approx([s for s, _ in theirs], abs=1e-4)
        assert [g for _, g in found] == [g for _, g in theirs]


@pytest.mark.full
@pytest.mark.parametrize("add_bos_token", [None, False])
def test_a_model_from_elsewhere_is_scored_as_by_the_harness_s_own(add_bos_token: bool | None, tmp_path: Path) -> None:
    text = " ".join(DOCUMENTS)
    foreign.saved(tmp_path / "gpt2", text=text, n_positions=64)
    asked = instances("loglikelihood", PAIRS)
    theirs = own_model(tmp_path / "gpt2", add_bos_token=add_bos_token).loglikelihood(asked, disable_tqdm=True)
    name = f"hf:{tmp_path / 'gpt2'}"
    found = BackstoryLM(name, add_bos_token=add_bos_token).loglikelihood(asked, disable_tqdm=True)
    assert [s for s, _ in found] == pytest.approx([s for s, _ in theirs], abs=1e-4)
    begun = BackstoryLM(name, add_bos_token=True).loglikelihood(asked, disable_tqdm=True)
    assert begun[2] == pytest.approx(found[2]) and abs(begun[0][0] - found[0][0]) > 1e-3
    settings = {"until": ["xyz"], "max_gen_toks": 5}
    requests = instances("generate_until", [("ann saw the", settings)])
    own = own_model(tmp_path / "gpt2", add_bos_token=add_bos_token).generate_until(requests, disable_tqdm=True)
    ours = BackstoryLM(name, add_bos_token=add_bos_token).generate_until(requests, disable_tqdm=True)
    assert ours == own


def test_a_tokenizer_that_begins_texts_begins_contexts(tmp_path: Path) -> None:
    from tokenizers import Tokenizer, processors

    folder = tmp_path / "gpt2"
    foreign.saved(folder, text=" ".join(DOCUMENTS), n_positions=64)
    tokenizer = Tokenizer.from_file(str(folder / "tokenizer.json"))
    begin = ("<|endoftext|>", tokenizer.token_to_id("<|endoftext|>"))
    tokenizer.post_processor = processors.TemplateProcessing(single=f"{begin[0]} $A", special_tokens=[begin])
    tokenizer.save(str(folder / "tokenizer.json"))
    asked = instances("loglikelihood", PAIRS)
    theirs = own_model(folder).loglikelihood(asked, disable_tqdm=True)
    found = BackstoryLM(f"hf:{folder}").loglikelihood(asked, disable_tqdm=True)
    assert [s for s, _ in found] == pytest.approx([s for s, _ in theirs], abs=1e-4)


@pytest.mark.full
def test_do_sample_draws(run: Path) -> None:
    model = BackstoryLM(run)

    def texts(**settings: Any) -> list[str]:
        asked = [("ann saw the", {"until": [], "max_gen_toks": 30, **settings})] * 4
        return model.generate_until(instances("generate_until", asked), disable_tqdm=True)

    assert len(set(texts(do_sample=True))) > 1
    assert len(set(texts())) == len(set(texts(do_sample=False, temperature=0.7))) == 1
    assert texts(num_beams=1, repetition_penalty=1.0, do_sample=False) == texts()


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"num_beams": 4}, "does not generate with num_beams=4; remove it"),
        ({"repetition_penalty": 1.3}, r"repetition_penalty=1\.3"),
        ({"mirostat": 2}, "mirostat=2"),
        ({"do_sample": True, "temperature": 0.0}, "do_sample=True needs a temperature above 0"),
    ],
)
def test_a_way_to_generate_that_is_not_known_is_refused(tiny_run: Path, settings: dict[str, Any], message: str) -> None:
    with pytest.raises(UserError, match=message):
        BackstoryLM(tiny_run).generate_until(instances("generate_until", [("ann", settings)]), disable_tqdm=True)


@pytest.mark.full
def test_unknown_arguments_of_the_model_are_told_in_one_line(
    tiny_run: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    from backstory.interop import lm_eval as command

    tasks(tmp_path / "tasks")
    # Without the harness's own tasks, whose files take it seconds to read each time.
    monkeypatch.setattr("lm_eval.tasks.TaskManager", partial(TaskManager, include_defaults=False))
    for given, message in (
        (
            f"run={tiny_run},raeder=cache",
            "the model backstory has no argument 'raeder' (did you mean 'reader'?); use run",
        ),
        ("reader=static", "name the run that is evaluated: --model_args run=FOLDER"),
        (f"run={tiny_run},add_bos_token=perhaps", "add_bos_token must be True or False, not 'perhaps'"),
    ):
        call = ["lm_eval", "run", "--model", "backstory", "--tasks", "local_perplexity", "--model_args", given]
        monkeypatch.setattr(sys, "argv", [*call, "--include_path", str(tmp_path / "tasks")])
        assert command.main() == 2
        assert capsys.readouterr().err.splitlines()[-1].startswith(f"backstory: {message}")


@pytest.mark.parametrize("fixed", [False, True])
def test_the_command_of_the_harness_takes_no_more_cores_than_it_may(
    monkeypatch: pytest.MonkeyPatch, fixed: bool
) -> None:
    """For its standard errors the harness starts a process for each core, unless this variable is set."""
    from lm_eval import __main__ as harness_program

    from backstory.interop import lm_eval as command

    monkeypatch.setenv("DISABLE_MULTIPROC", "")
    monkeypatch.delenv("DISABLE_MULTIPROC")
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    if not fixed:
        monkeypatch.delenv("OMP_NUM_THREADS")
    seen: list[str | None] = []
    monkeypatch.setattr(harness_program, "cli_evaluate", lambda: seen.append(os.environ.get("DISABLE_MULTIPROC")))
    assert command.main() == 0
    assert seen == ["1" if fixed else None]


@pytest.mark.full
def test_the_command_of_the_harness_knows_the_model(tiny_run: Path, tmp_path: Path) -> None:
    tasks(tmp_path / "tasks")
    command = [
        sys.executable,
        "-m",
        "backstory.interop.lm_eval",
        "run",
        "--model",
        "backstory",
        "--tasks",
        "local_perplexity",
    ]
    command += ["--include_path", str(tmp_path / "tasks"), "--output_path", str(tmp_path / "out")]
    environment = {**os.environ, "HF_HUB_OFFLINE": "1"}

    def call(given: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run([*command, "--model_args", given], capture_output=True, text=True, env=environment)

    done = call(f"run={tiny_run}")
    assert done.returncode == 0, done.stderr
    (written,) = (tmp_path / "out").rglob("results_*.json")
    found = json.loads(written.read_text())["results"]["local_perplexity"]["bits_per_byte,none"]
    assert f"{found:.4f}" in done.stdout
    failed = call(f"run={tmp_path / 'nowhere'}")
    assert failed.returncode == 2
    assert failed.stderr.splitlines()[-1].startswith(f"backstory: there is no run folder {tmp_path / 'nowhere'}")
    assert "Traceback" not in failed.stderr


def test_mistakes_are_told(tiny_run: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(UserError, match="the reader dynamic learns from what it read before; use static or cache"):
        BackstoryLM(tiny_run, "dynamic:rule=sgd")
    with pytest.raises(UserError, match=r"there is no run folder .*nowhere"):
        BackstoryLM(tmp_path / "nowhere")
    monkeypatch.setattr(folders, "find_spec", lambda package: None)
    with pytest.raises(
        UserError, match=r"needs the package lm_eval; run `pip install -e '\.\[eval\]'` in the clone of backstory"
    ):
        folders.need("lm_eval", "eval", "the evaluation harness")


@pytest.mark.parametrize("batch_size", [-1, 0, "some"])
def test_a_batch_holds_a_request_at_least(run: Path, batch_size: Any) -> None:
    with pytest.raises(UserError, match="batch_size must be a whole number from 1 on"):
        BackstoryLM(run, batch_size=batch_size)


def test_what_adds_no_token_is_refused_and_an_empty_document_costs_nothing(run: Path) -> None:
    model = BackstoryLM(run)
    with pytest.raises(UserError, match=r"adds no .* that could be scored"):
        model.loglikelihood(instances("loglikelihood", [("ann saw", "")]))
    assert model.loglikelihood_rolling(instances("loglikelihood_rolling", [("",)])) == [0.0]


def test_an_unknown_precision_is_told(run: Path) -> None:
    with pytest.raises(UserError, match="precision"):
        BackstoryLM(run, precision="float61")
