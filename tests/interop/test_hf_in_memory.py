"""A transformers model in memory with its tokenizer is read like its saved folder, and stays unchanged."""

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import foreign
import numpy as np
import pytest
import torch
from subwords import metaspace

import backstory as bs
from backstory.config import TextConfig
from backstory.context.examination_table import table
from backstory.data import prepare
from backstory.evaluation import evaluate
from backstory.interop.in_memory import open_in_memory
from backstory.reports.sections.context_section import about_pieces
from backstory.utils.errors import UserError

TEXT = "the cat sat on the mat .\nthe dog ran after the cat .\n" * 20


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("models") / "tiny"
    foreign.saved(path, text=TEXT, n_positions=64)
    (path.parent / "cats.txt").write_text(TEXT)
    return path


@pytest.fixture
def pair(folder: Path) -> tuple[Any, Any]:
    hf = pytest.importorskip("transformers", reason="needs the extra hf")
    return hf.AutoModelForCausalLM.from_pretrained(folder), hf.AutoTokenizer.from_pretrained(folder)


@pytest.mark.full
@pytest.mark.parametrize("reader", ["static", "dynamic:rule=sgd,rate=0.01"])
def test_it_scores_what_its_folder_scores_and_stays_as_it_was(folder: Path, pair: tuple[Any, Any], reader: str) -> None:
    model, tokenizer = pair
    ids = torch.tensor([tokenizer("the cat sat")["input_ids"]])
    before, weights = model(input_ids=ids).logits, {k: v.clone() for k, v in model.state_dict().items()}
    run = open_in_memory(model.train(), tokenizer, "mine")
    text = folder.parent / "cats.txt"
    ours, theirs = (evaluate(one, text=text, reader=reader) for one in (run, f"hf:{folder}"))
    assert _nats(ours) == _nats(theirs)
    assert run.name == "mine" and model.training
    assert model.transformer.wte.weight is run.model.causal.transformer.wte.weight
    assert model.state_dict().keys() == weights.keys()
    assert all(torch.equal(value, weights[name]) for name, value in model.state_dict().items())
    assert torch.equal(model.eval()(input_ids=ids).logits, before)


@pytest.mark.full
def test_weights_of_64_bits_are_not_said_to_multiply_in_float32(folder: Path, pair: tuple[Any, Any]) -> None:
    model, tokenizer = pair
    text = folder.parent / "cats.txt"
    wide = bs.evaluate(model.double(), text, tokenizer=tokenizer)
    assert wide.provenance.precision == wide.provenance.config["read"]["dtype"] == "float64"
    assert _nats(wide) == pytest.approx(_nats(bs.evaluate(f"hf:{folder}", text)), rel=1e-5)
    assert wide.figures.audit.passed and model.dtype == torch.float64


def test_it_is_examined_on_text_that_was_prepared_with_its_own_tokenizer(tmp_path: Path) -> None:
    """Its output layer may be larger than its tokenizer."""
    foreign.saved(tmp_path / "padded", text=TEXT, n_positions=64, types=350)
    (tmp_path / "cats.txt").write_text(TEXT * 3)
    model, vocabulary = bs.load(f"hf:{tmp_path / 'padded'}")
    dataset = prepare(TextConfig(str(tmp_path / "cats.txt")), vocabulary=vocabulary)
    assert model.vocabulary_size == 350 > len(vocabulary)
    assert bs.examine(model, dataset, targets=20, maximum_context=10).figures.targets == 20


def started(words: list[str], **special: str) -> str:
    """Return the token that a model with a tokenizer of these words, and no bos or eos, reads before a text."""
    hf, tokenizers = (pytest.importorskip(name) for name in ("transformers", "tokenizers"))
    tokenizer = tokenizers.Tokenizer(tokenizers.models.WordLevel({word: i for i, word in enumerate(words)}))
    model = foreign.causal("GPT2", len(words), bos_token_id=None, eos_token_id=None)
    vocabulary = open_in_memory(
        model, hf.PreTrainedTokenizerFast(tokenizer_object=tokenizer, **special), "m"
    ).vocabulary
    return vocabulary.words[vocabulary.start]


@pytest.mark.parametrize(
    "words, special, start",
    [
        (["a", "b", "[CLS]", "\n"], {}, "\n"),
        (["a", "b", "Ċ"], {}, "Ċ"),
        (["a", "b", "[CLS]", "\n"], {"cls_token": "[CLS]"}, "[CLS]"),
        (["<s>", "b", "[CLS]", "\n"], {"cls_token": "[CLS]"}, "<s>"),
        (["a", "b", "<s>", "[CLS]", "\n"], {"eos_token": "b"}, "b"),
    ],
)
def test_a_tokenizer_without_bos_and_eos(words: list[str], special: dict[str, str], start: str) -> None:
    assert started(words, **special) == start


def test_a_tokenizer_that_begins_no_text_is_named() -> None:
    with pytest.warns(UserWarning, match="tokenizer of m has no token that begins a text, so 'a' is read before it"):
        assert started(["a", "b"]) == "a"


def test_pieces_that_were_never_counted_are_not_called_infrequent(tmp_path: Path) -> None:
    hf = pytest.importorskip("transformers", reason="needs the extra hf")
    tokenizer = hf.PreTrainedTokenizerFast(tokenizer_object=metaspace(TEXT), unk_token="<unk>", eos_token="<unk>")
    tokenizer.save_pretrained(tmp_path / "marked")
    foreign.causal("GPT2", len(tokenizer), n_positions=64).save_pretrained(tmp_path / "marked")
    result = bs.examine(f"hf:{tmp_path / 'marked'}", text=TEXT, targets=20, maximum_context=10)
    assert result.figures.groups == ()
    said = "these do not hold all of the text, so no words are joined"  # the pieces have no bytes
    assert sum(said in line for line in table(result)) == 1
    note = "Pieces do not hold all of the text, so they are not joined into words; the model reads at most 64 pieces."
    assert about_pieces(result.figures) == note


def _nats(result: Any) -> float:
    return result.figures.nats_per_token


@pytest.mark.filterwarnings("ignore:.is_gradient_checkpointing")  # what peft asks
def test_with_an_adapter_around_it_it_is_read_on_from_its_cache(folder: Path, pair: tuple[Any, Any]) -> None:
    peft = pytest.importorskip("peft")
    config = peft.LoraConfig(r=2, target_modules=["c_attn"], fan_in_fan_out=True, init_lora_weights=False)
    model, text = peft.PeftModelForCausalLM(pair[0], config), folder.parent / "cats.txt"
    run = open_in_memory(model, pair[1], "adapted")
    adapted = evaluate(run, text=text)
    merged = evaluate(open_in_memory(model.merge_and_unload(), pair[1]), text=text)  # changes the shared weights
    assert run.model.way == "blocks"
    assert _nats(adapted) == pytest.approx(_nats(merged), rel=1e-5) != _nats(evaluate(f"hf:{folder}", text=text))


def test_its_name_is_the_one_it_was_loaded_by(folder: Path, pair: tuple[Any, Any]) -> None:
    assert open_in_memory(*pair).name == str(folder)


def test_a_tokenizer_that_is_not_the_model_s_is_refused(pair: tuple[Any, Any]) -> None:
    with pytest.raises(UserError, match="more than the 17 that the model knows"):
        open_in_memory(foreign.causal("GPT2"), pair[1])


@pytest.mark.full
@pytest.mark.filterwarnings("ignore:.torch.jit.script_method")  # when the compiler is imported
@pytest.mark.parametrize("wrap", [torch.compile, torch.nn.DataParallel], ids=["compiled", "parallel"])
def test_a_wrapper_around_it_is_taken_off(folder: Path, pair: tuple[Any, Any], wrap: Any) -> None:
    run = open_in_memory(wrap(pair[0]), pair[1])
    assert run.model.way == "blocks" and run.name == str(folder)
    assert bs.audit(wrap(pair[0]), TEXT, tokenizer=pair[1]).passed
    model, vocabulary = bs.load(f"hf:{folder}")
    ids = vocabulary.encode(TEXT)
    assert bs.audit(wrap(model), ids).passed
    assert bs.examine(wrap(model), ids, targets=20, maximum_context=10).figures.targets == 20


@pytest.mark.full
def test_settings_that_ask_for_tuples_change_nothing(folder: Path, pair: tuple[Any, Any]) -> None:
    model, tokenizer = pair
    model.config.return_dict = False
    assert _nats(bs.evaluate(model, TEXT, tokenizer=tokenizer)) == _nats(bs.evaluate(f"hf:{folder}", TEXT))
    assert model.config.return_dict is False


def _own_product(model: Any) -> Any:
    """Multiplies by the weight of its output layer and does not call it."""
    plain, layer = model.forward, model.lm_head

    def forward(**inputs: Any) -> Any:
        result = plain(**inputs, output_hidden_states=True)
        result.logits = torch.nn.functional.linear(result.hidden_states[-1], layer.weight)
        return result

    model.forward = forward
    return model


def _two_predictions(model: Any) -> Any:
    """Predicts the next token and the one after it from two vectors of each token, as ProphetNet does."""

    class Ahead(type(model)):
        def forward(self, input_ids: Any = None, use_cache: bool = True) -> Any:
            hidden = self.transformer(input_ids, use_cache=use_cache).last_hidden_state
            return SimpleNamespace(logits=self.lm_head(torch.stack([hidden, hidden], 1))[:, 0])

    model.__class__ = Ahead
    return model


def _no_float64(model: Any) -> Any:
    """Has 64 bits, and a product that takes 32 at most, as those of experts are."""

    def product(*inputs: Any) -> None:
        raise RuntimeError("Expected mat_a to be Float32, got Double")

    model.transformer.h[0].register_forward_pre_hook(product)
    return model.double()


def _learned_prompt(model: Any) -> Any:
    """Puts an embedding of its own before every text."""
    body = model.transformer.forward

    def forward(input_ids: Any, **inputs: Any) -> Any:
        embedded = model.transformer.wte(input_ids)
        return body(**inputs | {"inputs_embeds": torch.cat([embedded[:, :1], embedded], 1)})

    model.transformer.forward = forward
    return model


def _other_head(model: Any) -> Any:
    model.lm_head = torch.nn.Sequential(model.lm_head)
    return model


REFUSED: dict[str, tuple[Any, str]] = {
    "without a head": (lambda model: model.transformer, "has no output layer that predicts tokens; load it with"),
    "another head": (
        _other_head,
        r"the output layer of .* is not a plain torch.nn.Linear \(Sequential\); leave that layer",
    ),
    "a head not called": (_own_product, "cannot be followed .its own code does not call that layer"),
    "two predictions of a token": (_two_predictions, "reads other vectors than one for each token, as in models that"),
    "64 bits": (_no_float64, r"cannot be read \(RuntimeError: Expected mat_a .*got Double\); load it in float32$"),
    "a learned prompt": (_learned_prompt, "gives 25 predictions for 24 tokens, as with prompts that are learned"),
    "two types of weights": (
        lambda model: model.transformer.h[0].double() and model,
        r"cannot be read \(RuntimeError: .*\); give",
    ),
}


@pytest.mark.parametrize("change, message", REFUSED.values(), ids=REFUSED)
def test_models_that_are_otherwise_are_refused_in_one_line(pair: tuple[Any, Any], change: Any, message: str) -> None:
    with pytest.raises(UserError, match=message) as raised:
        bs.evaluate(change(pair[0]), TEXT, tokenizer=pair[1])
    assert "\n" not in str(raised.value)


def test_a_model_with_an_encoder_is_refused(pair: tuple[Any, Any]) -> None:
    hf = pytest.importorskip("transformers", reason="needs the extra hf")
    sizes = {"d_model": 16, "d_ff": 32, "num_layers": 1, "num_heads": 2, "d_kv": 8, "decoder_start_token_id": 0}
    model = hf.T5ForConditionalGeneration(hf.T5Config(vocab_size=len(pair[1]), **sizes))
    with pytest.raises(UserError, match="T5ForConditionalGeneration reads a text with an encoder and writes another"):
        bs.evaluate(model, TEXT, tokenizer=pair[1])


@pytest.mark.full
def test_without_its_tokenizer_it_is_audited_and_examined_on_token_ids(folder: Path, pair: tuple[Any, Any]) -> None:
    model, tokenizer = pair
    ids, opened = np.array(tokenizer(TEXT)["input_ids"]), bs.load(f"hf:{folder}")[0]
    sizes: dict[str, Any] = {"targets": 20, "maximum_context": 10}
    assert bs.audit(model, ids).passed
    assert bs.examine(model, ids, **sizes).figures == bs.examine(opened, ids, **sizes).figures
    for call in (bs.audit, bs.examine):
        with pytest.raises(UserError, match="token ids and a prepared corpus need no tokenizer; leave it out, or give"):
            call(model, ids, tokenizer=tokenizer)
        with pytest.raises(TypeError, match="model must be a causal language model of transformers, not "):
            call(torch.nn.Linear(2, 2), ids)


def test_a_module_is_no_factory_of_predictors(pair: tuple[Any, Any]) -> None:
    with pytest.raises(UserError, match=r"a GPT2LMHeadModel has no predict\(tokens\) and observe\(targets\); give"):
        bs.referee(pair[0], TEXT)


@pytest.mark.parametrize("model, tokenizer", [(None, None), (torch.nn.Linear(2, 2), None), ("gpt2", None)])
def test_other_objects_are_refused(model: Any, tokenizer: Any) -> None:
    with pytest.raises(TypeError, match="model must be a causal language model of transformers, not "):
        open_in_memory(model, tokenizer)


def test_a_module_of_ones_own_is_pointed_to_what_reads_it() -> None:
    ways = r"make a LanguageModel of another model .*, or give bs.examine an object with `score` .*, or bs.referee one with"
    with pytest.raises(TypeError, match=ways):
        bs.evaluate(torch.nn.Linear(2, 2), TEXT)  # type: ignore[arg-type]


@pytest.mark.parametrize("tokenizer", [None, 3, "gpt2", []])
def test_other_tokenizers_are_refused(pair: tuple[Any, Any], tokenizer: Any) -> None:
    with pytest.raises(TypeError, match="tokenizer must be the model's tokenizer, as AutoTokenizer loads it, not "):
        open_in_memory(pair[0], tokenizer)


@pytest.mark.full
def test_it_is_examined_explained_compared_and_audited_like_its_folder(folder: Path, pair: tuple[Any, Any]) -> None:
    model, tokenizer = pair
    sizes: dict[str, Any] = {"targets": 20, "maximum_context": 10}
    ours = bs.examine(model, experiment="truncate", text=TEXT, tokenizer=tokenizer, **sizes)
    theirs = bs.examine(f"hf:{folder}", experiment="truncate", text=TEXT, **sizes)
    assert ours.figures == theirs.figures and ours.path is None
    words = [bs.explain(one, text=TEXT, words=9, **own).to_frame() for one, own in _both(folder, pair)]
    assert words[0].drop(columns="model").equals(words[1].drop(columns="model"))
    gains = [bs.compare(one, "cache", text=TEXT, **own).figures.comparisons[0].gain for one, own in _both(folder, pair)]
    assert gains[0] == gains[1]
    assert all(bs.audit(one, TEXT, **own).passed for one, own in _both(folder, pair))


def _both(folder: Path, pair: tuple[Any, Any]) -> list[tuple[Any, dict[str, Any]]]:
    return [(pair[0], {"tokenizer": pair[1]}), (f"hf:{folder}", {})]
