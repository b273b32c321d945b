"""Exports without Backstory, and features that other tools need: LoRA, embeddings, hidden states, new tokens."""

import json
import os
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from outward import KINDS, TYPES, random_ids, trained, wrapped
from tiers import fast_then_full
from transformers import AutoModelForCausalLM, AutoTokenizer

from backstory.config import RunConfig
from backstory.interop.exporting import export
from backstory.interop.modeling import composed

ALONE = """
import sys
class Blocked:
    def find_spec(self, name, path=None, target=None):
        if name.split(".")[0] == "backstory":
            raise ImportError("backstory is not installed here")
sys.meta_path.insert(0, Blocked())
import json, torch
from transformers import AutoModelForCausalLM, AutoTokenizer, pipeline
for line in sys.stdin:
    folder, ids, logits, prompt = json.loads(line)
    model, answer = AutoModelForCausalLM.from_pretrained(folder, trust_remote_code=True), []
    with torch.no_grad():
        torch.save(model(torch.load(ids)).logits, logits)
    if prompt:
        tokenizer = AutoTokenizer.from_pretrained(folder, trust_remote_code=True)
        write = pipeline("text-generation", model=folder, trust_remote_code=True, device="cpu")
        text, config = write(prompt, max_new_tokens=15, do_sample=False)[0]["generated_text"], model.config
        answer = [text, tokenizer.bos_token, tokenizer.eos_token, tokenizer.pad_token_id, config.pad_token_id,
                  config.hidden_size, config.num_hidden_layers, type(model).__module__]
    print(json.dumps(answer), flush=True)
"""


class Alone:
    """A process that cannot import Backstory. One reads all models, since importing transformers takes the most time."""

    def __init__(self, folder: Path) -> None:
        self.errors = folder / "errors"
        environment = {
            **os.environ,
            "HF_MODULES_CACHE": str(folder / "modules"),
            "HF_HUB_OFFLINE": "1",
            "PYTHONPATH": "",
        }
        with open(self.errors, "w") as errors:
            self.process = subprocess.Popen(
                [sys.executable, "-c", ALONE],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=errors,
                text=True,
                env=environment,
            )

    def read(self, folder: Path, ids: torch.Tensor, tmp_path: Path, prompt: str = "") -> tuple[torch.Tensor, list]:
        """Return the logits of a saved model, and how it continues a prompt with what it says of its tokenizer."""
        assert self.process.stdin is not None and self.process.stdout is not None
        torch.save(ids, tmp_path / "ids")
        request = [str(folder), str(tmp_path / "ids"), str(tmp_path / "logits"), prompt]
        print(json.dumps(request), file=self.process.stdin, flush=True)
        answer = self.process.stdout.readline()
        assert answer, self.errors.read_text()[-3000:]
        return torch.load(tmp_path / "logits"), json.loads(answer)


@pytest.fixture(scope="module")
def alone(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Alone]:
    started = Alone(tmp_path_factory.mktemp("alone"))
    with started.process as process:
        yield started
        assert process.stdin is not None
        process.stdin.close()
        assert process.wait(60) == 0, started.errors.read_text()[-3000:]


@pytest.mark.parametrize("kind", fast_then_full(KINDS, ["mdm"]))
def test_a_model_is_read_without_backstory(kind: str, alone: Alone, tmp_path: Path) -> None:
    model, ids = wrapped(kind).double(), random_ids(2, 14)  # rounding may grow from step to step
    folder = tmp_path / re.sub(r"\W", "_", kind)  # transformers names the module of its code after it
    model.save_pretrained(folder)
    ours = composed(model)
    with torch.no_grad():
        wanted = ours(ids, ours.start(2))[0].log_probs()
    logits, _ = alone.read(folder, ids, tmp_path)
    assert torch.allclose(logits, wanted, rtol=0, atol=1e-9)
    source = (folder / "modeling_backstory.py").read_text()
    assert "from backstory" not in source and ("ExternalMemory" in source) == (
        kind.split(",")[0] in ("ntm", "dnc", "mdm")
    )


def test_an_exported_run_writes_without_backstory(alone: Alone, tiny_config: RunConfig, tmp_path: Path) -> None:
    folder = export(trained(tiny_config, tmp_path, "words"))
    tokenizer, model = AutoTokenizer.from_pretrained(folder), AutoModelForCausalLM.from_pretrained(folder)
    tokens = tokenizer("ann saw the", return_tensors="pt")
    logits, said = alone.read(folder, tokens["input_ids"], tmp_path, "ann saw the")
    with torch.no_grad():
        assert torch.allclose(logits, model(**tokens).logits, rtol=0, atol=1e-5)
    answer, bos, eos, padding, of_model, size, layers, module = said
    generated = model.generate(**tokens, max_new_tokens=15, do_sample=False)[0]
    assert answer.strip() == tokenizer.decode(generated, skip_special_tokens=True).strip()
    assert module.endswith("modeling_backstory") and "\n" in answer  # the end of a line is text
    assert bos == eos == "<eos>" and padding == of_model is not None
    config = tiny_config.model
    assert size == config.embedding.size and layers == config.core.layers  # type: ignore[union-attr]


# --- what other tools ask ---


@pytest.mark.parametrize("kind", fast_then_full(KINDS, ["lstm, mixture", "dual mogrifier", "span buffer"]))
def test_hidden_states_end_with_what_the_head_reads(kind: str) -> None:
    model, ids = wrapped(kind).double(), random_ids(2, 9)
    mask = torch.ones(2, 9, dtype=torch.long)
    mask[0, :4] = 0
    with torch.no_grad():
        out = model(ids, output_hidden_states=True)
        padded = model(ids, attention_mask=mask, output_hidden_states=True).hidden_states
        alone = model(ids[:1, 4:], output_hidden_states=True).hidden_states
        if model.model.gated is None:
            assert torch.allclose(model.model.head(out.hidden_states[-1]), out.logits, atol=1e-9)
    assert len(out.hidden_states) == model.config.num_hidden_layers + 1
    assert out.hidden_states[-1].shape == (2, 9, model.config.hidden_size)
    assert model(ids).hidden_states is None
    for one, other in zip(padded[1:], alone[1:], strict=True):
        assert torch.allclose(one[:1, 4:], other, rtol=0, atol=1e-9) and not one[0, :4].any()


@pytest.mark.parametrize("kind", fast_then_full(KINDS, ["trellis", "pointer", "ntm"]))
def test_words_may_be_given_by_their_vectors(kind: str) -> None:
    model, ids = wrapped(kind), random_ids(2, 9)
    vectors = model.get_input_embeddings()(ids).detach().requires_grad_()
    if kind in ("pointer", "span buffer of words", "ntm"):
        with pytest.raises(ValueError, match="give input_ids, not inputs_embeds"):
            model(inputs_embeds=vectors)
        return
    logits = model(inputs_embeds=vectors).logits
    assert torch.equal(logits, model(ids).logits)
    logits[0, -1, 3].backward()
    assert vectors.grad is not None and bool(vectors.grad[0, -2:].any(1).all()) and not vectors.grad[1].any()


def test_what_cannot_be_given_is_refused() -> None:
    model, ids = wrapped("transformer"), random_ids(1, 3)
    with pytest.raises(ValueError, match="no attentions"):
        model(ids, output_attentions=True)
    with pytest.raises(ValueError, match="either input_ids or inputs_embeds"):
        model()


@pytest.mark.full
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("types", [TYPES + 4, TYPES - 2])
def test_a_vocabulary_is_resized(kind: str, types: int, tmp_path: Path) -> None:
    model, ids = wrapped(kind), random_ids(2, 9).clamp(max=TYPES - 3)
    with torch.no_grad():
        before = model(ids).logits
        assert model.resize_token_embeddings(types) is model.get_input_embeddings()
        after = model(ids).logits
    assert after.shape == (2, 9, types) and torch.allclose(after.exp().sum(2), torch.ones(()), atol=1e-5)
    tied = model.model.head.weight is model.model.embedding.weight
    assert tied == (kind != "lstm, untied") and model.config.vocab_size == types
    kept = min(types, TYPES)
    if kind in ("lstm, untied",):
        ratio = after[..., :kept] - before[..., :kept]
        assert torch.allclose(ratio, ratio[..., :1].expand_as(ratio), atol=1e-4)
    model.save_pretrained(tmp_path)
    back = AutoModelForCausalLM.from_pretrained(tmp_path)
    with torch.no_grad():
        assert torch.equal(back(ids).logits, after)


@pytest.mark.full
@pytest.mark.parametrize("kind", [k for k in KINDS if "trellis" not in k])
@pytest.mark.filterwarnings("ignore:.is_gradient_checkpointing")  # what peft asks
def test_low_rank_adapters_learn(kind: str, tmp_path: Path) -> None:
    peft = pytest.importorskip("peft")
    base, ids = wrapped(kind), random_ids(4, 12)
    with torch.no_grad():
        before = base(ids).logits
    model = peft.get_peft_model(base, peft.LoraConfig(r=2, target_modules="all-linear", task_type="CAUSAL_LM"))
    assert torch.allclose(model(ids).logits, before, atol=1e-6)
    optimizer, losses = torch.optim.Adam([p for p in model.parameters() if p.requires_grad], 0.05), []
    for _ in range(8):
        loss = model(ids, labels=ids).loss
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(float(loss.detach()))
    assert losses[-1] < losses[0]
    model.save_pretrained(tmp_path)
    merged = model.merge_and_unload().eval()
    again = peft.PeftModel.from_pretrained(wrapped(kind), tmp_path).eval()
    with torch.no_grad():
        assert torch.allclose(merged(ids).logits, again(ids).logits, atol=1e-4)
