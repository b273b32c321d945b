"""A model makes every tensor on the device of its weights: on `meta`, which has no values, a tensor of the CPU is an error."""

from contextlib import nullcontext

import pytest
import torch
from catalogue import MODELS

from backstory.models import detach

NAMES = [name for name in MODELS if not name.startswith("Hugging Face")]  # those look at values


@pytest.mark.full
@pytest.mark.parametrize("training", [True, False])
@pytest.mark.parametrize("name", NAMES)
def test_every_tensor_is_on_the_device_of_the_weights(
    name: str, training: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(torch, "is_autocast_enabled", lambda kind: False)  # it does not know the device
    monkeypatch.setattr(torch, "autocast", lambda *arguments, **options: nullcontext())
    model = MODELS[name]().to("meta").train(training)
    text, index = torch.zeros(3, 13, dtype=torch.long, device="meta"), torch.zeros(2, dtype=torch.long, device="meta")
    state = model.start(3)
    for _ in range(2):
        prediction, state = model(text[:, :-1], detach(state))
        prediction.log_prob(text[:, 1:]).mean().backward()
        assert prediction.log_probs().is_meta and prediction.select(index, index).log_probs().is_meta
    assert all(p.grad is not None for p in model.parameters())
