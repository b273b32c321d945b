"""The published numbers of parameters, counted on models that hold no numbers."""

from dataclasses import replace

import pytest
import torch

from backstory.config import EmbeddingConfig, LSTMConfig, MixtureConfig, ModelConfig, SpanBufferConfig, recipes
from backstory.models import build_model, count_parameters

AWD_LSTM = ModelConfig(EmbeddingConfig(400), LSTMConfig(layers=3, hidden=1150))
MOS_PTB = ModelConfig(EmbeddingConfig(280), LSTMConfig(layers=3, hidden=960, output=620), MixtureConfig(experts=15))
MOS_WIKITEXT = ModelConfig(
    EmbeddingConfig(300), LSTMConfig(layers=3, hidden=1150, output=650), MixtureConfig(experts=15)
)
BUFFER = SpanBufferConfig()
SMALL = ModelConfig(EmbeddingConfig(200), LSTMConfig(layers=2, hidden=200))


@pytest.mark.parametrize(
    ("config", "types", "count"),
    [
        pytest.param(AWD_LSTM, 10_000, 24_221_600, id="AWD-LSTM, PTB"),
        pytest.param(MOS_PTB, 10_000, 21_500_620, id="MoS, PTB"),
        pytest.param(MOS_WIKITEXT, 33_278, 34_909_528, id="MoS, WikiText-2"),
        # Two matrices and a vector of attention, and two rows of the policy, of the size of the states.
        pytest.param(replace(AWD_LSTM, buffer=BUFFER), 10_000, 24_221_600 + 321_200, id="AWD-LSTM + SNB, PTB"),
        pytest.param(replace(MOS_PTB, buffer=BUFFER), 10_000, 21_500_620 + 770_660, id="MoS + SNB, PTB"),
        pytest.param(replace(MOS_WIKITEXT, buffer=BUFFER), 33_278, 34_909_528 + 846_950, id="MoS + SNB, WikiText-2"),
        pytest.param(SMALL, 10_000, 2_653_200, id="2 x 200"),
        pytest.param(recipes.load("ptb-awd-lstm-snb").model, 10_000, 24_542_800, id="AWD-LSTM + SNB, PTB"),
    ],
)
def test_published_counts(config: ModelConfig, types: int, count: int) -> None:
    with torch.device("meta"):
        model = build_model(config, types)
    assert count_parameters(model) == count
