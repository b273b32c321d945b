"""The functions of `import backstory as bs`: names, texts and overrides in every form give what the command line gives."""

import dataclasses
import math
import shutil
from collections.abc import Callable
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import backstory as bs
from backstory.config import EmbeddingConfig, LSTMConfig, ModelConfig, RunConfig, SpanBufferConfig
from backstory.data import Dataset
from backstory.models import Activations, LanguageModel, Softmax, build_model
from backstory.readers import StaticReader
from backstory.utils.errors import UserError

TEXT = "ann saw the tea and bob sold more oil\ndora took the jam and carl found more ink\n" * 12


def test_a_text_may_be_a_path_a_string_or_a_file(tiny_run: Path, tmp_path: Path) -> None:
    path = tmp_path / "a text.txt"
    path.write_text(TEXT)
    with path.open("rb") as file:
        results = [bs.evaluate(tiny_run, text) for text in (path, str(path), TEXT, file)]
    assert len({result.figures.nats_per_token for result in results}) == 1
    assert [result.provenance.corpus.name for result in results[:3]] == ["a text.txt", "a text.txt", "text"]
    assert all(result.path is None for result in results)


@pytest.mark.parametrize("text", ["no such.txt", "and see notes.md", "Bär", "nowhere.txt"])
def test_a_word_or_a_line_that_ends_like_a_file_name_is_a_file_that_is_not_there(tiny_run: Path, text: str) -> None:
    with pytest.raises(
        UserError, match=rf"there is no file '{text}'; if it is the text itself, end it with a line break"
    ):
        bs.evaluate(tiny_run, text)
    assert bs.evaluate(tiny_run, f"{text}\n", allow_unknown=True).figures.tokens >= 2


def test_overrides_change_settings_and_start_another_kind_from_its_defaults() -> None:
    config = bs.recipe("demo", {"training.epochs": np.int64(3), "model.head.kind": "mixture", "model.head.experts": 4})
    assert (config.training.epochs, config.model.head.experts) == (3, 4)  # type: ignore[union-attr]
    nested = bs.recipe("demo", {"training": {"epochs": 3}, "model.head": {"kind": "mixture", "experts": 4}})
    assert nested == config and bs.recipe("demo").training.epochs != 3


def test_a_training_is_named_by_a_recipe_a_file_settings_or_its_run(
    tiny_config: RunConfig, tiny_corpus: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    small = {"model.core.hidden": 9, "model.embedding.size": 7, "training.epochs": 1, "training.schedule": "constant"}
    (tmp_path / "demo").mkdir()  # a folder of one's own, which is no run
    named = bs.train("demo", corpus=tiny_corpus, overrides=small)
    assert named is not None and named.run == Path("runs/demo")
    config = bs.recipe(named.run)
    assert config.text.corpus == str(tiny_corpus) and config.training.epochs == 1
    again = bs.train("runs/demo", mode="resume")
    assert again is not None and again.figures == named.figures and again.run == named.run
    (tmp_path / "mine.yaml").write_text((named.run / "config.yaml").read_text())
    copied = bs.train(Path("mine.yaml"), out=Path("copy"))
    assert copied is not None and copied.figures.valid_nats == named.figures.valid_nats
    by_settings = bs.train(config, "third")
    assert by_settings is not None and by_settings.provenance.weights == named.provenance.weights


def test_an_audit_is_that_of_an_evaluation(tiny_run: Path) -> None:
    evaluated = bs.evaluate(tiny_run, TEXT, reader="cache", audit_seed=3, audit_places=2).figures.audit
    assert bs.audit(tiny_run, TEXT, reader="cache", audit_seed=3, audit_places=2) == evaluated


class PeeksAtNext(StaticReader):
    """Shifts its state by the last token of the block before it predicts."""

    def predict(self, tokens: torch.Tensor) -> Any:
        _, self._state = self.model(tokens[:, -1:], self._state)
        return super().predict(tokens)


def test_a_reader_in_memory_is_audited_on_ids_or_a_corpus(tiny_run: Path, tiny_dataset: Dataset) -> None:
    model, vocabulary = bs.load(tiny_run)
    ids = vocabulary.encode(TEXT)
    assert bs.audit(model, ids).passed and bs.audit(StaticReader(model), tiny_dataset, split="valid").passed
    for idle in ({"reader": "cache"}, {"precision": "bfloat16"}, {"after": "train"}):
        with pytest.raises(UserError, match=f"{next(iter(idle))} works with runs only"):
            bs.audit(model, ids, **idle)
    with pytest.raises(UserError, match=r"reads token ids \(N,\) or a prepared corpus, not float64 of shape \(2,\); "):
        bs.audit(model, torch.tensor([1.0, 2.0], dtype=torch.bfloat16))
    cheat = bs.audit(PeeksAtNext(model), ids)
    assert not cheat.passed and cheat.checks is not None and not cheat.checks["causal"] and cheat.failures


def test_token_ids_may_be_a_tensor(tiny_run: Path) -> None:
    model, vocabulary = bs.load(tiny_run)
    ids = vocabulary.encode(TEXT)
    tensor = torch.from_numpy(ids).long()
    assert bs.audit(model, tensor, audit_seed=1) == bs.audit(model, ids, audit_seed=1)
    sizes: dict[str, Any] = {"targets": 5, "maximum_context": 4}
    assert bs.examine(model, tensor, **sizes).figures == bs.examine(model, ids, **sizes).figures
    refereed = [bs.referee(StaticReader(model), text, cuts=5, seed=1).figures for text in (tensor, ids)]
    assert refereed[0] == refereed[1]


def test_readers_that_need_a_saved_run_say_so_of_a_model_in_memory(tiny_run: Path) -> None:
    model, vocabulary = bs.load(tiny_run)
    for reader, problem in (
        ("dynamic", "statistics of training gradients can only be collected from a saved run"),
        ("learned", "a meta-learner can only be trained for a saved run"),
    ):
        with pytest.raises(UserError, match=f"{problem}.*reader='dynamic:rule=sgd,rate=0.0001'$"):
            bs.evaluate(model, TEXT, tokenizer=vocabulary, reader=reader)
    assert bs.evaluate(model, TEXT, tokenizer=vocabulary, reader="dynamic:rule=sgd,rate=0.0001").figures.audit.passed


LOADING = [{"window": 4}, {"stride": 2}, {"dtype": "bfloat16"}, {"revision": "main"}, {"device_map": "auto"}]


@pytest.mark.parametrize("idle", [*LOADING, {"device": "cpu"}])
def test_options_of_loading_are_refused_for_a_model_in_memory(idle: dict[str, str], tiny_run: Path) -> None:
    model, vocabulary = bs.load(tiny_run)
    ids, name = vocabulary.encode(TEXT), next(iter(idle))
    with pytest.raises(UserError, match=f"{name} works with runs only"):
        bs.examine(model, ids, targets=5, maximum_context=4, **idle)
    for read in (bs.evaluate, bs.audit, bs.explain):
        with pytest.raises(UserError, match=f"{name} is for a model that is loaded by its name"):
            read(model, text=TEXT, tokenizer=vocabulary, **idle)
    with pytest.raises(UserError, match=f"{name} is for a model that is loaded by its name"):
        bs.examine(model, text=TEXT, tokenizer=vocabulary, targets=5, maximum_context=4, **idle)


@pytest.mark.full
def test_a_model_in_memory_with_its_vocabulary_is_read_as_its_run(tiny_run: Path, tiny_dataset: Dataset) -> None:
    model, vocabulary = bs.load(tiny_run)
    model.train()
    own = {"tokenizer": vocabulary, "name": "mine"}
    for options in ({"reader": "cache"}, {"reader": "dynamic:rule=sgd,rate=0.01"}, {"each_line": True}):
        ours, theirs = bs.evaluate(model, TEXT, **own, **options), bs.evaluate(tiny_run, TEXT, **options)
        assert ours.figures.nats_per_token == theirs.figures.nats_per_token and ours.name == "mine"
        assert ours.provenance.weights == theirs.provenance.weights and ours.path is None
    examined = [
        bs.examine(of, text=TEXT, targets=20, maximum_context=10, **more)
        for of, more in ((model, own), (tiny_run, {"out": tiny_run.parent / "examined"}))
    ]
    assert examined[0].figures.conditions == examined[1].figures.conditions
    assert bs.audit(model, TEXT, **own).passed
    assert model.training and bs.evaluate(model, TEXT, tokenizer=vocabulary).name == "ComposedModel"
    with pytest.raises(UserError, match="mine has no corpus of its own"):
        bs.evaluate(model, **own)
    with pytest.raises(UserError, match=r"^ComposedModel has no span buffer"):
        bs.explain(model, "buffer", text=TEXT, tokenizer=vocabulary)
    with pytest.raises(UserError, match=r"knows \d+ types and the vocabulary has \d+; give the vocabulary"):
        bs.evaluate(model, TEXT, tokenizer=dataclasses.replace(vocabulary, words=vocabulary.words[:-1]))


class Bigram(LanguageModel):
    """A model of one's own that has nothing beyond the contract."""

    def __init__(self, types: int) -> None:
        super().__init__()
        self.table, self.output = torch.nn.Embedding(types, 5), torch.nn.Linear(5, types)

    @property
    def vocabulary_size(self) -> int:
        return self.output.out_features

    def start(self, batch_size: int) -> tuple[()]:
        return ()

    def forward(self, tokens: torch.Tensor, state: tuple[()]) -> tuple[Softmax, tuple[()]]:
        hidden = self.table(tokens)
        activations = Activations(hidden, (hidden,), hidden, hidden, hidden)
        return Softmax(activations, hidden, self.output.weight, self.output.bias), state


def test_a_model_of_one_s_own_is_evaluated_by_the_contract_alone(tiny_run: Path) -> None:
    _, vocabulary = bs.load(tiny_run)
    figures = bs.evaluate(Bigram(len(vocabulary)), TEXT, tokenizer=vocabulary).figures
    assert figures.audit.passed and figures.policy is None and 0 < figures.nats_per_token < math.inf


def test_the_gate_of_a_model_in_memory_is_reported(tiny_run: Path) -> None:
    _, vocabulary = bs.load(tiny_run)
    config = ModelConfig(EmbeddingConfig(7), LSTMConfig(hidden=9), buffer=SpanBufferConfig(size=16))
    figures = bs.evaluate(build_model(config, len(vocabulary)), TEXT, tokenizer=vocabulary).figures
    assert figures.policy is not None and 0 < figures.policy.mean_lambda < 1


@pytest.mark.full
def test_a_report_on_a_folder_of_runs_is_on_each_of_them(tiny_run: Path, tmp_path: Path) -> None:
    for name in ("one", "two"):
        shutil.copytree(tiny_run, tmp_path / "runs" / name)
    bs.report(tmp_path / "runs", tmp_path / "page.html")
    bs.report([tmp_path / "runs" / name for name in ("one", "two")], tmp_path / "both.html")
    assert (tmp_path / "page.html").read_bytes() == (tmp_path / "both.html").read_bytes()


def test_several_models_are_examined_on_any_text(tiny_run: Path, tmp_path: Path) -> None:
    one, other = (shutil.copytree(tiny_run, tmp_path / name) for name in ("one", "other"))
    path, settings = tmp_path / "a.txt", {"targets": 20, "maximum_context": 10}
    path.write_text(TEXT)
    with path.open("rb") as file:
        found = [bs.examine([one, other], text=text, **settings).figures for text in (path, TEXT, file)]
    assert found[0].conditions == found[1].conditions == found[2].conditions
    with pytest.raises(UserError, match="corpus and text exclude each other"):
        bs.examine([one, other], path, text=path, **settings)


def test_a_text_with_a_lone_surrogate_is_refused(tiny_run: Path) -> None:
    with pytest.raises(UserError, match=r"the text holds a lone surrogate \(character 4\)"):
        bs.evaluate(tiny_run, "the \udcff cat\n")


def test_readers_are_compared_by_the_gain_of_their_scores(tiny_run: Path, tmp_path: Path) -> None:
    result = bs.compare(tiny_run, "cache", against="static", text=TEXT, out=tmp_path)
    scores = {name: bs.evaluate(tiny_run, TEXT, reader=name).figures.nats_per_token for name in ("static", "cache")}
    (pair,) = result.figures.comparisons
    assert pair.name == "cache over static"
    assert pair.gain == pytest.approx(scores["static"] - scores["cache"], abs=1e-6)
    assert result.to_frame()["name"].tolist() == ["cache", "static"]


def test_the_gain_over_seeds_has_the_interval_of_students_t() -> None:
    ours, base = {1: 76.8, 2: 77.0, 3: 76.5}, {1: 78.1, 2: 77.9, 3: 77.6}
    paired, other_seeds = bs.seed_gain(ours, base), bs.seed_gain(ours, {4: 78.1, 5: 77.9, 6: 77.1})
    assert paired.paired and not other_seeds.paired
    margin = 4.302653 * math.sqrt(
        0.04 / 3
    )  # 97.5% of Student's t lies below 4.302653; the differences are 1.3, 0.9, 1.1
    assert (paired.value, paired.low, paired.high) == pytest.approx((1.1, 1.1 - margin, 1.1 + margin), abs=1e-5)
    a, b = 0.19 / 9, 0.84 / 9  # the squared errors of the means
    assert other_seeds.freedom == pytest.approx((a + b) ** 2 / (a * a / 2 + b * b / 2))
    assert (other_seeds.low + other_seeds.high) / 2 == pytest.approx(other_seeds.value) == pytest.approx(2.8 / 3)
    for message, scores in {
        "better has 1 seed;": {1: 76.8},
        "better has a score that is not": {1: 76.8, 2: math.nan},
    }.items():
        with pytest.raises(UserError, match=message):
            bs.seed_gain(scores, base)


@pytest.mark.full
def test_paths_are_strings_or_paths(tiny_run: Path, tmp_path: Path) -> None:
    for kind in (str, Path):
        out = kind(tmp_path / kind.__name__)
        examined = bs.examine(kind(tiny_run), targets=20, maximum_context=10, out=out)
        assert examined.path == Path(out) / "result.json" and math.isfinite(examined.figures.baseline.nats)
        bs.report(kind(tiny_run), kind(tmp_path / f"{kind.__name__}.html"))


@pytest.mark.full
@pytest.mark.parametrize(
    "around",
    [
        torch.no_grad,
        torch.inference_mode,
        lambda: torch.autocast("cpu", dtype=torch.bfloat16),
        lambda: torch.device("meta"),
    ],
    ids=["no_grad", "inference_mode", "autocast", "device"],
)
def test_a_call_inside_no_grad_or_autocast_gives_what_it_gives_alone(
    tiny_run: Path, tmp_path: Path, around: Callable[[], AbstractContextManager]
) -> None:
    def called(name: str) -> tuple[float, float, str]:
        trained = bs.train(tiny_run, out=tmp_path / name, overrides={"training.epochs": 1})
        read = bs.evaluate(tiny_run, TEXT, reader="dynamic:rule=sgd,rate=0.1")
        drawn = bs.generate(tiny_run, tokens=100, reader="dynamic:rule=sgd,rate=0.1")
        assert trained is not None
        return trained.figures.valid_perplexity, read.figures.nats_per_token, "".join(drawn)

    alone = called("alone")
    with around():
        assert called("inside") == alone
