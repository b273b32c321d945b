"""Our models as models of Hugging Face: the same distributions, states in and out, padding, beams, saving and loading."""

from itertools import islice
from pathlib import Path

import pytest
import torch
from outward import KINDS, TYPES, random_ids, wrapped
from safetensors.torch import load_file, save_file
from tiers import fast_then_full
from torch import Tensor
from transformers import AutoConfig, AutoModelForCausalLM

from backstory.config import to_dict
from backstory.evaluation import Sampling, generate_ids
from backstory.evaluation.generation import filtered
from backstory.interop.exported.model import CACHE, StateCache, tensors_of
from backstory.interop.modeling import BackstoryConfig, BackstoryForCausalLM, composed
from backstory.readers import StaticReader
from backstory.runs.run import weights
from backstory.utils.errors import UserError


@pytest.fixture(
    params=fast_then_full(KINDS, ["lstm, mixture", "mogrifier", "transformer", "trellis", "span buffer", "pointer"])
)
def model(request: pytest.FixtureRequest) -> BackstoryForCausalLM:
    return wrapped(request.param)


def own(model: BackstoryForCausalLM, ids: Tensor) -> Tensor:
    """The log-probabilities of the run's own model of these weights, read whole from the start."""
    ours = composed(model)
    with torch.no_grad():
        return ours(ids, ours.start(len(ids)))[0].log_probs()


def padded(texts: list[Tensor], left: bool = True) -> tuple[Tensor, Tensor]:
    """Texts (T_i,) side by side with their mask; the padding holds an id that would change every prediction."""
    longest = max(map(len, texts))
    ids, mask = torch.full((len(texts), longest), 3), torch.zeros(len(texts), longest, dtype=torch.long)
    for row, text in enumerate(texts):
        where = slice(longest - len(text), None) if left else slice(0, len(text))
        ids[row, where], mask[row, where] = text, 1
    return ids, mask


def test_logits_are_the_log_probabilities(model: BackstoryForCausalLM) -> None:
    model.double()  # what rounding differs by grows from step to step in some
    ids = random_ids(3, 17)
    with torch.no_grad():
        logits = model(ids).logits
    assert logits.dtype == torch.float64
    assert torch.allclose(logits, own(model, ids), rtol=0, atol=1e-9)
    assert torch.allclose(logits.softmax(-1).log(), logits, rtol=0, atol=1e-9)


def test_a_text_is_read_on_from_its_cache(model: BackstoryForCausalLM) -> None:
    model.double()  # what rounding differs by grows from step to step in some
    ids = random_ids(2, 19)
    with torch.no_grad():
        whole, past, pieces = model(ids), None, []
        for piece in ids.split([1, 7, 1, 10], 1):
            out = model(piece, past_key_values=past)
            past = out.past_key_values
            pieces.append(out.logits)
    assert torch.allclose(torch.cat(pieces, 1), whole.logits, rtol=0, atol=1e-9)
    assert past is not None and past.get_seq_length() == whole.past_key_values.get_seq_length() == 19
    for one, other in zip(tensors_of(whole.past_key_values.state), tensors_of(past.state), strict=True):
        assert torch.allclose(one, other, rtol=0, atol=1e-9)


def test_a_cache_that_was_read_on_from_stays_as_it_was(model: BackstoryForCausalLM) -> None:
    ids = random_ids(2, 12)
    with torch.no_grad():
        past = model(ids[:, :6]).past_key_values
        first, again = (model(ids[:, 6:], past_key_values=past).logits for _ in range(2))
    assert past.length == 6 and torch.equal(first, again)


def test_no_cache_comes_out_unless_asked(model: BackstoryForCausalLM) -> None:
    ids = random_ids(1, 3)
    assert model(ids, use_cache=False).past_key_values is None
    assert isinstance(model(ids).past_key_values, StateCache)
    logits = model(ids, return_dict=False, use_cache=False)
    assert isinstance(logits, tuple) and len(logits) == 1


@pytest.mark.parametrize("left", [True, False])
def test_padding_changes_nothing(model: BackstoryForCausalLM, left: bool) -> None:
    model.double()  # as above
    texts = [random_ids(1, n, n)[0] for n in (5, 11, 1, 11, 8)]
    ids, mask = padded(texts, left)
    following = random_ids(5, 6, 1)
    with torch.no_grad():
        out = model(ids, attention_mask=mask)
        more = model(
            following, attention_mask=torch.cat([mask, torch.ones(5, 6)], 1), past_key_values=out.past_key_values
        )
        for row, text in enumerate(texts):
            alone = model(text[None])
            assert torch.allclose(out.logits[row][mask[row].bool()], alone.logits[0], rtol=0, atol=1e-9)
            after = model(following[row : row + 1], past_key_values=alone.past_key_values)
            assert torch.allclose(more.logits[row], after.logits[0], rtol=0, atol=1e-9)
    blank = out.logits[~mask.bool()].exp()
    assert torch.allclose(blank, torch.full_like(blank, 1 / TYPES))


@pytest.mark.parametrize("dtype", [torch.float64, torch.bfloat16])
def test_other_dtypes_have_log_probabilities_in_at_least_float32(dtype: torch.dtype) -> None:
    model, ids = wrapped("span buffer").to(dtype), random_ids(2, 9)
    mask = torch.ones(2, 9)
    mask[0, :4] = 0
    with torch.no_grad():
        for out in (model(ids), model(ids, attention_mask=mask)):
            assert out.logits.dtype == torch.promote_types(dtype, torch.float32)
            assert torch.allclose(out.logits.exp().sum(-1), torch.ones((), dtype=out.logits.dtype), atol=1e-4)


def test_a_row_of_nothing_but_padding_stays_at_the_start(model: BackstoryForCausalLM) -> None:
    model.double()
    ids, mask = random_ids(2, 4), torch.tensor([[1, 1, 1, 1], [0, 0, 0, 0]])
    with torch.no_grad():
        past = model(ids, attention_mask=mask).past_key_values
        after = model(ids, past_key_values=past).logits[1]
    assert torch.allclose(after, own(model, ids[1:])[0], rtol=0, atol=1e-9)


@pytest.mark.parametrize("kept", [1, 3, 11, 50])
def test_only_the_last_logits_are_made(model: BackstoryForCausalLM, kept: int) -> None:
    ids, mask = padded([random_ids(1, n, n)[0] for n in (5, 11, 2)])
    with torch.no_grad():
        for given in ({}, {"attention_mask": mask}):
            whole, last = model(ids, **given).logits, model(ids, logits_to_keep=kept, **given).logits
            assert last.shape == (3, min(kept, 11), TYPES)
            assert torch.allclose(last, whole[:, -kept:], atol=1e-6)
            some = torch.tensor([0, 7])
            assert torch.equal(model(ids, logits_to_keep=some, **given).logits, whole[:, some])


def test_the_loss_is_the_mean_over_the_labels(model: BackstoryForCausalLM) -> None:
    ids = random_ids(2, 9)
    labels = ids.clone()
    labels[0, :4] = -100
    out = model(ids, labels=labels)
    scores = -own(model, ids)[:, :-1].gather(2, ids[:, 1:, None]).squeeze(2)
    wanted = scores[labels[:, 1:] != -100].mean()
    assert float(out.loss.detach()) == pytest.approx(float(wanted), abs=1e-5)
    out.loss.backward()
    gradients = [p.grad for name, p in model.named_parameters() if "gated" not in name]
    assert all(g is not None and bool(g.isfinite().all()) and bool(g.any()) for g in gradients)


# --- going on with a text ---


def ours(model: BackstoryForCausalLM, context: list[int], count: int) -> list[int]:
    """Continuation by our own generation, the likeliest each time."""
    return list(islice(generate_ids(StaticReader(composed(model)), context, Sampling(0.0)), count))


def test_greedy_generation_is_ours(model: BackstoryForCausalLM) -> None:
    ids = random_ids(1, 6)
    found = model.generate(ids, max_new_tokens=25, do_sample=False)
    assert found[0].tolist() == ids[0].tolist() + ours(model, ids[0].tolist(), 25)
    assert torch.equal(found, model.generate(ids, max_new_tokens=25, do_sample=False, use_cache=False))


def test_rows_of_a_batch_go_on_as_alone(model: BackstoryForCausalLM) -> None:
    texts = [random_ids(1, n, n)[0] for n in (3, 9, 6, 1)]
    ids, mask = padded(texts)
    found = model.generate(ids, attention_mask=mask, max_new_tokens=15, do_sample=False)
    for row, text in enumerate(texts):
        assert found[row, 9:].tolist() == ours(model, text.tolist(), 15)


def test_nothing_is_gone_on_with_from_the_start(model: BackstoryForCausalLM) -> None:
    assert model.generate(max_new_tokens=8, do_sample=False)[0].tolist() == [0, *ours(model, [0], 8)]


def test_generation_goes_on_from_a_cache(model: BackstoryForCausalLM) -> None:
    ids = random_ids(2, 5)
    begun = model.generate(ids, max_new_tokens=6, do_sample=False, return_dict_in_generate=True)
    on = model.generate(begun.sequences, **{CACHE: begun[CACHE]}, max_new_tokens=6, do_sample=False)
    assert torch.equal(on, model.generate(ids, max_new_tokens=12, do_sample=False))


def test_the_cache_has_both_names(model: BackstoryForCausalLM) -> None:
    ids = random_ids(2, 9)
    with torch.no_grad():
        begun = model(ids[:, :4])[CACHE]
        ways = [model(ids[:, 4:], **{name: begun}).logits for name in ("cache", "past_key_values")]
        for logits in ways:
            assert torch.allclose(logits, model(ids).logits[:, 4:], atol=1e-6)


def test_what_is_drawn_from_is_ours(model: BackstoryForCausalLM) -> None:
    ids = random_ids(1, 7)
    out = model.generate(
        ids, max_new_tokens=4, do_sample=True, temperature=0.8, top_k=6, top_p=0.9, output_scores=True,
        return_dict_in_generate=True, suppress_tokens=[2],
    )  # fmt: skip
    for step, scores in enumerate(out.scores):
        before = own(model, out.sequences[:, : 7 + step])[0, -1].clone()
        before[2] = -torch.inf
        wanted = filtered(before, Sampling(0.8, 6, 0.9))
        assert torch.equal(scores[0].isinf(), wanted.isinf())
        assert torch.allclose(scores[0].softmax(-1).double(), wanted.exp(), atol=1e-5)


def test_beams_carry_their_own_states(model: BackstoryForCausalLM) -> None:
    ids, mask = padded([random_ids(1, n, n)[0] for n in (4, 6)])
    settings = {"num_beams": 4, "num_return_sequences": 4, "max_new_tokens": 7, "do_sample": False}
    out = model.generate(
        ids, attention_mask=mask, **settings, return_dict_in_generate=True, output_scores=True, length_penalty=0.0
    )
    # The score of a beam is the log-probability of its tokens, which holds only of the states that made them.
    for beam, (sequence, score) in enumerate(zip(out.sequences, out.sequences_scores, strict=True)):
        text = sequence[6 - int(mask[beam // 4].sum()) :]
        each = own(model, text[None])[0, :-1].gather(1, text[1:, None])[-7:]
        assert float(each.sum()) == pytest.approx(float(score), abs=1e-4)
    assert torch.equal(
        out.sequences, model.generate(ids, attention_mask=mask, **settings, use_cache=False, length_penalty=0.0)
    )


def test_rows_of_a_cache_are_chosen_and_repeated() -> None:
    model, ids = wrapped("span buffer"), random_ids(3, 8)
    with torch.no_grad():
        past = model(ids).past_key_values
        after = model(ids, past_key_values=past).logits
        past.batch_select_indices(torch.tensor([2, 0]))
        past.batch_repeat_interleave(2)
        rows = [2, 2, 0, 0]
        assert torch.allclose(model(ids[rows], past_key_values=past).logits, after[rows], atol=1e-6)


def test_nothing_is_drafted() -> None:
    model = wrapped("lstm")
    with pytest.raises(ValueError, match="assisted generation is not supported with stateful models"):
        model.generate(random_ids(1, 3), assistant_model=wrapped("lstm"), max_new_tokens=3)


# --- saving and loading ---


def test_what_is_saved_comes_back_bit_for_bit(model: BackstoryForCausalLM, tmp_path: Path) -> None:
    model.save_pretrained(tmp_path)
    back = AutoModelForCausalLM.from_pretrained(tmp_path)
    assert type(back) is BackstoryForCausalLM and not back.training
    assert back.config.to_dict()["parts"] == model.config.parts and back.dtype == torch.float32
    found, wanted = weights(back.model), weights(model.model)
    assert found.keys() == wanted.keys()
    assert all(torch.equal(found[name], wanted[name]) for name in wanted)
    tied = model.config.model().head.tied
    assert (back.model.head.weight is back.model.embedding.weight) == tied
    stored = load_file(tmp_path / "model.safetensors")
    assert {f"model.{name}" for name in wanted} == stored.keys()
    ids = random_ids(2, 9)
    assert torch.equal(own(back, ids), own(model, ids))


def test_a_fresh_model_is_initialised_by_its_parts() -> None:
    config = BackstoryConfig(vocab_size=TYPES, parts=to_dict(KINDS["pointer"]))
    torch.manual_seed(3)
    model = BackstoryForCausalLM(config)
    torch.manual_seed(3)
    from backstory.models import build_model

    wanted = weights(build_model(KINDS["pointer"], TYPES))
    assert all(torch.equal(tensor, wanted[name]) for name, tensor in weights(composed(model)).items())


def test_lost_weights_are_no_random_ones(tmp_path: Path) -> None:
    wrapped("lstm").save_pretrained(tmp_path)
    tensors = load_file(tmp_path / "model.safetensors")
    del tensors["model.core.layers.0.hidden_proj.weight"]
    save_file(tensors, tmp_path / "model.safetensors", {"format": "pt"})
    with pytest.raises(ValueError, match=r"lacks weights of its model: model\.core\.layers\.0\.hidden_proj\.weight"):
        AutoModelForCausalLM.from_pretrained(tmp_path)


def test_a_config_that_names_no_parts_of_ours_is_told(tmp_path: Path) -> None:
    config = BackstoryConfig(vocab_size=TYPES, parts=to_dict(KINDS["lstm"]))
    config.save_pretrained(tmp_path)
    assert AutoConfig.from_pretrained(tmp_path).model() == KINDS["lstm"]
    with pytest.raises(UserError, match=r"config\.json: parts: .*kore"):
        BackstoryConfig(vocab_size=TYPES, parts={"kore": {}})
