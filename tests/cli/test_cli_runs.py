"""From a text to a report: output and files of every verb on a tiny model."""

import dataclasses
import json
import math
import re
from pathlib import Path

import pytest
import yaml
from commands import SMALL, Command, tree

import backstory as bs
from backstory.config import AlgorithmConfig, RecallConfig, recipes
from backstory.config.schema import RunConfig
from backstory.config.strict import from_file
from backstory.data.encoding import with_corpus
from backstory.results import AuditRecord, result_from
from backstory.results.result_file import figures_from

FIGURES = {
    "training": "parameters epochs best_epoch valid_perplexity valid_nats unit tokens curve tokens_per_second",
    "evaluation": "split reader unit tokens batch_size nats_per_token perplexity "
    "bits_per_token bits_per_character bits_per_byte "
    "audit",
    "examination": "experiment split unit targets maximum_context baseline conditions effective_context",
}
PROVENANCE = "config seed commit versions device precision precision_reason corpus started seconds command"


def written(path: Path) -> dict:
    """A result file, which must have the documented fields and be one that a report takes."""
    text = (path / "result.json").read_text()
    result = json.loads(text)
    assert result.keys() == {"schema", "kind", "name", "figures", "provenance"}
    assert set(FIGURES[result["kind"]].split()) <= result["figures"].keys()
    assert set(PROVENANCE.split()) <= result["provenance"].keys()
    assert result["provenance"]["corpus"].keys() == {"name", "fingerprint", "types", "provenance"}
    assert result_from(text, "result.json").name == result["name"]
    return result


def train(command: Command, *arguments: str, corpus: str = "good.txt", out: str = "new") -> str:
    """Train on the desk; what it printed."""
    done = command("train", "demo", *SMALL, "--corpus", corpus, "--out", out, *arguments)
    assert done.code == 0, done.err
    return done.out + done.err


@pytest.mark.full
def test_what_a_recipe_draws_is_for_its_own_corpus_alone(command: Command) -> None:
    copying, drawn = recipes.load("ntm-copy"), recipes.load("recall")
    assert with_corpus(copying, None, copying) == copying
    assert with_corpus(copying, "repeat-copy", copying).text.algorithm == copying.text.algorithm != AlgorithmConfig()
    assert with_corpus(copying, "good.txt", copying).text.algorithm == AlgorithmConfig()
    assert with_corpus(drawn, "copy", drawn).text.recall == RecallConfig() != drawn.text.recall
    sorting = with_corpus(copying, "priority-sort", copying)
    sorting = dataclasses.replace(
        sorting, text=dataclasses.replace(sorting.text, algorithm=AlgorithmConfig(levels=8, documents=20))
    )
    assert with_corpus(sorting, "copy", sorting).text.algorithm == AlgorithmConfig(documents=20)
    sizes = (
        "--model.embedding.size=9 --model.core.layers=9 --model.core.slots=5 --model.core.width=4 --training.epochs=1"
    )
    flags = [*sizes.split(), "--training.batch-size=3", "--training.no-answer-loss-only", "--out", "new"]
    done = command("train", "ntm-copy", "--corpus", "good.txt", *flags)
    assert done.code == 0, done.err
    assert from_file(RunConfig, Path("new/config.yaml")).text.algorithm == AlgorithmConfig()
    assert command("train", "new", "--resume").code == 0


def test_training_writes_a_run_and_says_what_to_do_next(command: Command) -> None:
    done = command("train", "demo", *SMALL, "--corpus", "good.txt", "--out", "new", "--seed", "7")
    assert done.code == 0
    first, second = done.out.splitlines()
    result = written(Path("new"))
    perplexity = result["figures"]["valid_perplexity"]
    share = result["figures"]["unknown"]["valid"]["out_of_vocabulary_share"]
    assert first == (
        f"new: validation perplexity {perplexity:.2f} per word ({share:.1%} of the words outside the vocabulary) "
        "after epoch 1 of 1"
    )
    assert "`backstory evaluate new`" in second and "`backstory report new`" in second
    assert result["provenance"]["seed"] == from_file(RunConfig, Path("new/config.yaml")).seed == 7
    assert result["provenance"]["corpus"]["name"] == "good.txt"
    assert result["figures"]["curve"][0].keys() >= {
        "epoch",
        "train_nats",
        "valid_nats",
        "valid_perplexity",
        "learning_rate",
    }
    events = [json.loads(line)["event"] for line in Path("new/metrics.jsonl").read_text().splitlines()]
    assert set(events) == {"steps", "epoch"}


@pytest.mark.full
def test_the_seed_decides_the_run(command: Command) -> None:
    for out, seed in (("a", "1"), ("b", "1"), ("c", "2")):
        train(command, "--seed", seed, out=out)
    nats = [written(Path(out))["figures"]["valid_nats"] for out in "abc"]
    assert nats[0] == nats[1] != nats[2]


@pytest.mark.full
def test_a_run_is_resumed_by_its_folder_alone(command: Command) -> None:
    """Its recipe is the settings in its folder."""
    train(command)
    log = Path("new/metrics.jsonl").read_text()
    for arguments in ("--resume new", "--threads 1 --resume ./new --json", "--out new --resume", "--resume --out=new"):
        done = command("train", *arguments.split())
        assert done.code == 0 and "new is finished already" in done.err, done.err
        assert Path("new/metrics.jsonl").read_text() == log


@pytest.mark.full
def test_a_finished_run_is_resumed_without_harm(command: Command) -> None:
    train(command)
    before, figures = tree(Path("new/checkpoints")), written(Path("new"))["figures"]
    log = Path("new/metrics.jsonl").read_text()
    said = train(command, "--resume")
    assert "new is finished already" in said and "nothing left to train" in said
    assert tree(Path("new/checkpoints")) == before
    assert written(Path("new"))["figures"] == figures
    assert Path("new/metrics.jsonl").read_text() == log


@pytest.mark.full
def test_a_run_in_this_folder_has_its_name(command: Command, desk: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (desk / "mine").mkdir()
    monkeypatch.chdir(desk / "mine")
    assert command("train", "demo", *SMALL, "--corpus", "../good.txt", "--out", ".").code == 0
    assert written(Path())["name"] == "mine"
    for run in (".", "../mine/checkpoints/.."):
        assert json.loads(command("evaluate", run, "--allow-unknown", "--json").out)["name"] == "mine"


@pytest.mark.full
def test_overwriting_starts_again(command: Command) -> None:
    train(command)
    train(command, "--overwrite", "--seed", "5")
    assert written(Path("new"))["provenance"]["seed"] == 5
    assert written(Path("new"))["figures"]["epochs"] == 1


@pytest.mark.parametrize("flag", [("--model.head.kind", "mixture"), ("--model.head.kind=mixture",)])
def test_another_kind_of_head_brings_its_own_flags(flag: tuple[str, ...], command: Command) -> None:
    train(command, *flag, "--model.head.experts", "2")
    head = written(Path("new"))["provenance"]["config"]["model"]["head"]
    assert head["kind"] == "mixture" and head["experts"] == 2
    assert command("evaluate", "new").code == 0


def test_evaluate_prints_what_it_writes(command: Command, run_copy: Path) -> None:
    printed = command("evaluate", "run", "--json")
    assert (printed.code, printed.err) == (0, "")
    result = written(run_copy / "evaluate-test")
    assert json.loads(printed.out) == result
    shown = command("evaluate", "run")
    assert (shown.code, shown.err) == (0, "")
    figures = written(run_copy / "evaluate-test")["figures"]
    assert figures == result["figures"]
    assert shown.out.splitlines()[0] == "run, test split, static reader"
    assert (
        f"perplexity  {figures['perplexity']:.2f} per word  ({figures['bits_per_token']:.4f} bits per word, "
        f"{figures['open_bits_per_byte']:.4f} bits per byte with unknown words spelled out)" in shown.out
    )
    assert f"{figures['tokens']:,} words, all scored, batch size 1\n" in shown.out
    assert f"\n  audit       {AuditRecord.read(figures['audit'], 'x').in_words()}\n" in shown.out


def test_units_of_a_score_agree(command: Command, run_copy: Path) -> None:
    command("evaluate", "run", "--split", "valid", "--batch-size", "4")
    figures = written(run_copy / "evaluate-valid-batch4")["figures"]
    assert (figures["split"], figures["batch_size"]) == ("valid", 4)
    assert figures["perplexity"] == pytest.approx(math.exp(figures["nats_per_token"]))
    assert figures["bits_per_token"] == pytest.approx(figures["nats_per_token"] / math.log(2))
    assert figures["audit"]["checks"].keys() == {
        *("causal", "distribution", "scored_before_update", "one_pass", "as_reported")
    }


def test_no_result_takes_the_place_of_another(command: Command, run_copy: Path) -> None:
    trained = written(run_copy)
    for arguments in (("evaluate", "run", "--out", "run"), ("examine", "run", "--out", "run", "--targets", "5")):
        assert "run/result.json holds a result of kind training, which would be lost" in command(*arguments).mistake()
    assert written(run_copy) == trained
    command("evaluate", "run", "--split", "valid")
    command("evaluate", "run", "--split", "valid", "--precision", "bfloat16")
    assert written(run_copy / "evaluate-valid")["provenance"]["precision"] == "float32"
    assert written(run_copy / "evaluate-valid-bfloat16")["provenance"]["precision"] == "bfloat16"


def test_a_run_is_read_from_another_folder_than_it_was_trained_in(
    command: Command, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    train(command)
    run = Path("new").resolve()
    monkeypatch.chdir(tmp_path)
    assert command("evaluate", str(run)).code == 0


@pytest.mark.full
@pytest.mark.parametrize("tokenizer, unit", [("characters", "character"), ("bytes", "byte")])
def test_bits_per_character_and_byte(tokenizer: str, unit: str, command: Command) -> None:
    text = "".join(f"Ännchen trinkt {cups} Täßchen Tee für größere Öfen.\n" for cups in range(60))
    Path("umlauts.txt").write_text(text, encoding="utf-8")
    train(command, "--text.tokenizer", tokenizer, "--text.minimum-count", "1", corpus="umlauts.txt")
    printed = command("evaluate", "new", "--json")
    figures = json.loads(printed.out)["figures"]
    assert figures["unit"] == unit
    # The test split is the end of the file, so its size follows from the number of its tokens.
    read = text[-figures["tokens"] :] if unit == "character" else text.encode()[-figures["tokens"] :].decode()
    bits = figures["nats_per_token"] * figures["tokens"] / math.log(2)
    assert figures["bits_per_character"] == pytest.approx(bits / len(read))
    assert figures["bits_per_byte"] == pytest.approx(bits / len(read.encode()))
    assert figures["bits_per_character"] > figures["bits_per_byte"]
    shown = command("evaluate", "new").out
    assert (
        f"  bits        {figures['bits_per_token']:.4f} per {unit}  (perplexity {figures['perplexity']:.2f} per {unit}, "
        in shown
    )
    assert shown.count(f"bits per {unit}") == 0  # once is enough


def test_examine_prints_what_it_writes(command: Command, run_copy: Path) -> None:
    small = ("--maximum-context", "20", "--targets", "30", "--precision", "float32")
    printed = command("examine", "run", *small, "--json", "--out", "elsewhere")
    assert (printed.code, printed.err) == (0, "")
    result = written(Path("elsewhere"))
    assert json.loads(printed.out) == result
    assert not list(run_copy.glob("examine-*"))
    shown = command("examine", "run", *small)
    figures = written(run_copy / "examine-truncate-valid")["figures"]
    assert figures == result["figures"]
    lines = shown.out.splitlines()
    assert lines[0].startswith("run, valid split, 30 targets; with all context perplexity ")
    assert [line.split()[0] for line in lines[2:6]] == ["5", "10", "13", "20"]
    context = figures_from("examination", figures).context_in_words()  # type: ignore[attr-defined]
    assert lines[6] == f"  effective context: {context}, within 1% of perplexity"
    assert lines[7] == "  by frequency, effects in nats:"
    shown = command("examine", "run", *small, "--reader", "cache")
    assert shown.out.startswith("run, valid split, cache reader, 30 targets; with all context perplexity ")
    remembered = written(run_copy / "examine-truncate-valid-cache")["figures"]
    assert [layer["name"] for layer in remembered["readers"]] == ["static", "cache"]
    assert remembered["baseline"] != figures["baseline"]


def test_an_audit_is_told_check_by_check(command: Command, run_copy: Path) -> None:
    before = tree(run_copy)
    done = command("reader", "audit", "run")
    assert (done.code, done.err) == (0, "")
    assert [line.split()[-1] for line in done.out.splitlines()[1:]] == ["passed"] * 5
    seed = done.out.splitlines()[0].rpartition(" seed ")[2]
    assert command("reader", "audit", "run", "--seed", seed).out == done.out
    assert tree(run_copy) == before


@pytest.mark.full
def test_a_report_is_one_page(command: Command, run_copy: Path) -> None:
    command("evaluate", "run")
    done = command("report", "run", "--out", "page.html")
    assert (done.code, done.out, done.err) == (0, "page.html\n", "")
    page = Path("page.html").read_text()
    assert "tiny" in page and "audited" in page
    assert not re.search(r"(src|href)=[\"']https?:", page)


@pytest.mark.full
def test_a_report_of_two_runs(command: Command, run_copy: Path) -> None:
    train(command)
    assert command("report", "run", "new").out == "report.html\n"
    page = Path("report.html").read_text()
    assert "tiny" in page and "new" in page


@pytest.mark.full
@pytest.mark.parametrize("kind", ["models", "recipes", "corpora", "readers", "experiments"])
def test_what_there_is_is_listed(kind: str, command: Command) -> None:
    listed = command("ls", kind)
    assert (listed.code, listed.err) == (0, "")
    lines = listed.out.splitlines()
    assert lines and all(re.fullmatch(r"  \S+( \S+)?  +\S.*", line) for line in lines)
    assert listed.out in command("ls").out
    expected = {
        "models": "mixture",
        "recipes": "demo",
        "corpora": "stdlib",
        "readers": "static",
        "experiments": "truncate",
    }
    assert expected[kind] in listed.out


def test_a_corpus_is_shown(command: Command, desk: Path) -> None:
    before = tree(desk)
    shown = command("data", "show", "good.txt")
    assert (shown.code, shown.err) == (0, "")
    lines = shown.out.splitlines()
    assert lines[0].startswith("good.txt: the file good.txt")
    sizes = {line.split()[0]: line.replace(",", "").split()[1:] for line in lines[3:]}
    assert sizes.keys() == {"train", "valid", "test"}
    assert sum(int(s[2]) for s in sizes.values()) == len(Path("good.txt").read_text())
    cut = command("data", "show", "good.txt", "--minimum-count", "2", "--tokenizer", "words").out
    assert "tokenizer words" in cut and cut != shown.out
    assert tree(desk) == before


def test_a_recipe_is_shown_without_what_does_not_apply(command: Command) -> None:
    def text(*recipe: str) -> dict:
        return yaml.safe_load(command("recipe", "show", *recipe).out)["text"]

    assert not {"recall", "algorithm"} & text("ptb-small").keys()
    assert "recall" in text("recall") and "algorithm" not in text("recall")
    Path("changed.yaml").write_text("text: {corpus: ptb, recall: {length: 5}}\n")
    assert text("changed.yaml")["recall"]["length"] == 5
    Path("shown.yaml").write_text(command("recipe", "show", "ptb-small").out)
    assert bs.recipe("shown.yaml") == bs.recipe("ptb-small")


def test_the_settings_of_a_run_are_copied_to_a_recipe(command: Command, run_copy: Path) -> None:
    assert command("recipe", "copy", run_copy, "copied.yaml").code == 0
    assert recipes.load("copied.yaml") == recipes.load(str(run_copy))


def test_a_recipe_is_copied_checked_and_trained(command: Command) -> None:
    assert command("recipe", "copy", "demo", "own.yaml").out.startswith("own.yaml; edit it")
    assert Path("own.yaml").read_text() == recipes.text("demo")
    assert command("recipe", "check", "own.yaml").out == "own.yaml: good\n"
    done = command("train", "own.yaml", *SMALL, "--corpus", "good.txt")
    assert done.code == 0
    config = from_file(RunConfig, Path("runs/own/config.yaml"))
    assert (config.training.epochs, config.model.core.hidden, config.text.corpus) == (1, 9, "good.txt")
    assert config.training.optimizer == recipes.load("demo").training.optimizer


@pytest.mark.parametrize("name", recipes.names())
def test_packaged_recipes_are_good(name: str, command: Command) -> None:
    assert command("recipe", "check", name).out == f"{name}: good\n"


@pytest.mark.parametrize(
    ("settings", "says"),
    [
        ("training: {minutes: 3, steps: 4}", r"training.minutes 3 and training.steps 4 cannot be combined"),
        ("text: {corpus: ptb, recall: {length: 5}}", r"text.recall.length is for the corpus recall"),
        ("model: {core: {kind: transformer, hidden: 64, heads: 3}}", r"must be a multiple of 6 for 3 heads"),
        ("model: {core: {kind: ntm, layers: [0]}}", r"model.core.layers"),
        ("model: {core: {hidden: 9007199254740992}}", r"more memory than can be counted; use smaller sizes"),
    ],
)
def test_a_recipe_that_no_training_takes_is_not_good(settings: str, says: str, command: Command) -> None:
    Path("own.yaml").write_text(settings)
    assert re.search(rf"^own\.yaml: .*{says}", command("recipe", "check", "own.yaml").mistake())


def test_a_run_goes_on_by_its_folder_alone(command: Command) -> None:
    train(command)
    before = tree(Path("new"))
    done = command("train", "new", "--resume")
    assert done.code == 0 and "new is finished already" in done.err
    assert tree(Path("new")) == before
    assert "is not empty" in command("train", "new").mistake()


def test_an_empty_recipe_is_not_taken_for_the_defaults(command: Command) -> None:
    Path("empty.yaml").write_text("# nothing\n")
    for line in (("recipe", "check", "empty.yaml"), ("train", "empty.yaml")):
        assert command(*line).mistake() == "empty.yaml is empty; give it some settings"
