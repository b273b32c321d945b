"""On a GPU every model gives the values and gradients that it gives on the CPU, and no warning."""

import copy

import pytest
import torch
from catalogue import MODELS, TYPES
from torch import Tensor

from backstory.models import LanguageModel, Precision, flatten

ANGLES_IN_FLOAT32 = "Hugging Face, rotary"
"""The model whose library computes sines and cosines of positions in float32, also for weights in float64."""
pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")


@pytest.fixture(params=MODELS)
def model(request: pytest.FixtureRequest) -> LanguageModel:
    torch.manual_seed(0)
    return MODELS[request.param]().double()


@pytest.fixture
def tokens() -> Tensor:
    return torch.randint(TYPES, (3, 12), generator=torch.Generator().manual_seed(1))


def test_values_state_and_gradients_are_those_of_the_cpu(
    model: LanguageModel, tokens: Tensor, request: pytest.FixtureRequest
) -> None:
    model.eval()  # the dropout masks of the two devices differ; cuDNN gives gradients in evaluation mode as well
    there = copy.deepcopy(model).cuda()
    actual = []
    for one, text in ((model, tokens), (there, tokens.cuda())):
        prediction, state = one(text, one.start(3))
        prediction.log_prob(text.roll(-1, 1)).mean().backward()
        actual.append(
            {
                "log_probs": prediction.log_probs().cpu(),
                **{f"state {name}": value.cpu() for name, value in flatten(state).items()},
                **{f"gradient {name}": p.grad.cpu() for name, p in one.named_parameters() if p.grad is not None},
            }
        )
    tolerance = 1e-5 if request.node.callspec.params["model"] == ANGLES_IN_FLOAT32 else 1e-10
    torch.testing.assert_close(actual[1], actual[0], rtol=0, atol=tolerance)


def test_dropout_on_the_gpu_reaches_the_raw_weights(model: LanguageModel, tokens: Tensor) -> None:
    model = model.float().cuda().train()
    text = tokens.cuda()
    losses = []
    for _ in range(2):
        prediction, _ = model(text, model.start(3))
        losses.append(prediction.log_prob(text.roll(-1, 1)).mean())
    assert losses[0].item() != losses[1].item()
    sum(losses).backward()
    assert all(p.grad is not None and p.grad.isfinite().all() for p in model.parameters())


def test_bfloat16_is_as_close_to_float32_as_on_the_cpu(model: LanguageModel, tokens: Tensor) -> None:
    distance = {}
    for device in (torch.device("cpu"), torch.device("cuda")):
        model, text = model.float().to(device).eval(), tokens.to(device)
        wide = model(text, model.start(3))[0].log_prob(text.roll(-1, 1))
        with Precision(torch.bfloat16, "a test").context(device):
            narrow = model(text, model.start(3))[0].log_prob(text.roll(-1, 1))
        distance[device.type] = (narrow.float() - wide).abs().max().item()
    assert distance["cuda"] <= max(0.05, 1.5 * distance["cpu"])


def test_negative_targets_are_refused(model: LanguageModel, tokens: Tensor) -> None:
    model, text = model.float().cuda().eval(), tokens.cuda()
    prediction, _ = model(text, model.start(3))
    refused = pytest.raises(ValueError, match=f"targets must be ids from 0 to {TYPES - 1}, not -1 to -1")
    with torch.no_grad(), refused:
        prediction.log_prob(torch.full_like(text, -1))
