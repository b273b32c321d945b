"""Readers that adapt read on a GPU as they do on the processor."""

import pytest
import torch
from adapting import BASE, gates, statistics, text
from small_models import lstm, mixture

from backstory.config.readers import CacheSettings, DynamicSettings
from backstory.evaluation import Audit, block_count, read
from backstory.models import ComposedModel
from backstory.readers import Reader
from backstory.readers.dynamic import DynamicEvaluation
from backstory.readers.learned import LearnedReader
from backstory.readers.neural_cache import NeuralCache

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="no GPU")
READERS = ["dynamic", "nadam", "low-rank", "learned", "cache over dynamic"]


def made(name: str, model: ComposedModel) -> Reader:
    if name == "nadam":
        return DynamicEvaluation(model, DynamicSettings("nadam", 0.01, 0.01, clip=0.1))
    if name == "low-rank":
        return DynamicEvaluation(model, DynamicSettings("sgd", 0.1, moving="low-rank:2"))
    found = statistics(model)
    if name == "learned":
        learned = gates(model, size=0.3)
        learned.network.to(next(model.parameters()).device)
        return LearnedReader(model, learned, found)
    dynamic = DynamicEvaluation(model, BASE, found)
    return dynamic if name == "dynamic" else NeuralCache(dynamic, CacheSettings(window=20, weight=0.3))


@pytest.mark.parametrize("make", [lstm, mixture])
@pytest.mark.parametrize("name", READERS)
def test_the_same_scores_and_an_honest_reading(name: str, make) -> None:
    ids = text(120)
    here = read(made(name, make()), ids, 0).nats
    there, audit = made(name, make().cuda()), Audit(block_count(len(ids), 1, 5), 4)
    assert read(there, ids, 0, block=5, observer=audit).nats > 0
    assert audit.report.failures == []
    assert read(there, ids, 0).nats == pytest.approx(here, rel=1e-3)
