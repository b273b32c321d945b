"""The published numbers of parameters, counted on models that hold no numbers."""

from dataclasses import replace

import pytest
import torch

from backstory.config import (
    DualConfig,
    EmbeddingConfig,
    LSTMConfig,
    MixtureConfig,
    ModelConfig,
    MogrifierConfig,
    SoftmaxConfig,
    SpanBufferConfig,
    TransformerConfig,
    TrellisConfig,
    recipes,
)
from backstory.models import build_model, count_parameters

AWD_LSTM = ModelConfig(EmbeddingConfig(400), LSTMConfig(layers=3, hidden=1150))
MOS_PTB = ModelConfig(EmbeddingConfig(280), LSTMConfig(layers=3, hidden=960, output=620), MixtureConfig(experts=15))
MOS_WIKITEXT = ModelConfig(
    EmbeddingConfig(300), LSTMConfig(layers=3, hidden=1150, output=650), MixtureConfig(experts=15)
)
BUFFER = SpanBufferConfig()
NO_BIAS = SoftmaxConfig(bias=False)
LOWER_CASED = 28_912
"""Types of WikiText-2 in lower case, with <eos>: the published counts are of models over these."""


def ers(embedding: int, core: LSTMConfig | MogrifierConfig) -> ModelConfig:
    """Embedding, recurrent module and tied softmax, as the dual connection's paper counts them."""
    return ModelConfig(EmbeddingConfig(embedding), core, NO_BIAS)


def dual(embedding: int, core: LSTMConfig | MogrifierConfig, direct: bool = True) -> ModelConfig:
    return replace(ers(embedding, core), dual=DualConfig(direct=direct))


ONE_LAYER = 600, LSTMConfig(layers=1, hidden=600, biases=1)
DEEP_PTB = 400, LSTMConfig(layers=2, hidden=1150, biases=1)
DEEP_WIKITEXT = 600, LSTMConfig(layers=2, hidden=1150, biases=1)
DEEP_MOGRIFIER = 850, MogrifierConfig(layers=2, hidden=850, rounds=4, rank=100)
SMALL = ModelConfig(EmbeddingConfig(200), LSTMConfig(layers=2, hidden=200))

CHARACTERS = EmbeddingConfig(200)
"""Of Penn Treebank's 50 symbols."""
TRELLIS = TrellisConfig(levels=140, hidden=1250)
"""As the authors' code has it: 1,050 units and the 200 of the output. Their paper's 13.4 M are those of 1,000 and 200."""
ENCODER = {"norm": "post", "activation": "relu", "positions": "sinusoidal", "chunked": True}


def trellis(units: int, inputs: int, types: int) -> int:
    """Weights and lengths of the rows, biases, embedding and the output's biases."""
    return 4 * units * (2 * inputs + 2 * units + 2 + 1) + types * (inputs + 1)


def encoder(layers: int, units: int, inner: int, inputs: int, types: int) -> int:
    """Layers with biases and two norms, projections into and out of them where the embedding is smaller, and a softmax."""
    layer = 4 * units * (units + 1) + inner * (units + 1) + units * (inner + 1) + 4 * units
    between = units * (inputs + 1) + inputs * (units + 1) if inputs != units else 0
    return layers * layer + between + types * (inputs + 1)


@pytest.mark.parametrize(
    ("config", "types", "count"),
    [
        pytest.param(AWD_LSTM, 10_000, 24_221_600, id="AWD-LSTM, PTB"),
        pytest.param(recipes.load("ptb-lstm-200").model, 10_000, 4_653_200, id="LSTM without dropout, printed as 5 M"),
        pytest.param(recipes.load("ptb-lstm-650").model, 10_000, 19_780_400, id="medium LSTM, printed as 20 M"),
        pytest.param(recipes.load("ptb-lstm-1500").model, 10_000, 66_034_000, id="large LSTM, printed as 66 M"),
        pytest.param(MOS_PTB, 10_000, 21_500_620, id="MoS, PTB"),
        pytest.param(MOS_WIKITEXT, 33_278, 34_909_528, id="MoS, WikiText-2"),
        # Two matrices and a vector of attention, and two rows of the policy, of the size of the states.
        pytest.param(replace(AWD_LSTM, buffer=BUFFER), 10_000, 24_221_600 + 321_200, id="AWD-LSTM + SNB, PTB"),
        pytest.param(replace(MOS_PTB, buffer=BUFFER), 10_000, 21_500_620 + 770_660, id="MoS + SNB, PTB"),
        pytest.param(replace(MOS_WIKITEXT, buffer=BUFFER), 33_278, 34_909_528 + 846_950, id="MoS + SNB, WikiText-2"),
        pytest.param(SMALL, 10_000, 2_653_200, id="2 x 200"),
        pytest.param(ers(*ONE_LAYER), 10_000, 8_882_400, id="LSTM, PTB"),
        pytest.param(dual(*ONE_LAYER), 10_000, 9_603_000, id="Dual LSTM, PTB"),
        pytest.param(ers(*DEEP_PTB), 10_000, 13_616_200, id="dLSTM, PTB"),
        pytest.param(dual(*DEEP_PTB), 10_000, 13_936_600, id="Dual dLSTM, PTB"),
        pytest.param(ers(*DEEP_MOGRIFIER), 10_000, 21_433_600, id="mdLSTM, PTB"),
        pytest.param(dual(*DEEP_MOGRIFIER, direct=False), 10_000, 22_156_950, id="mdLSTM+, PTB"),
        pytest.param(dual(*DEEP_MOGRIFIER), 10_000, 22_879_450, id="Dual mdLSTM, PTB"),
        pytest.param(ers(*ONE_LAYER), LOWER_CASED, 20_229_600, id="LSTM, WikiText-2"),
        pytest.param(dual(*ONE_LAYER), LOWER_CASED, 20_950_200, id="Dual LSTM, WikiText-2"),
        pytest.param(ers(*DEEP_WIKITEXT), LOWER_CASED, 29_604_200, id="dLSTM, WikiText-2"),
        pytest.param(dual(*DEEP_WIKITEXT), LOWER_CASED, 30_324_800, id="Dual dLSTM, WikiText-2"),
        pytest.param(ers(*DEEP_MOGRIFIER), LOWER_CASED, 37_508_800, id="mdLSTM, WikiText-2"),
        pytest.param(dual(*DEEP_MOGRIFIER), LOWER_CASED, 38_954_650, id="Dual mdLSTM, WikiText-2"),
        pytest.param(ModelConfig(CHARACTERS, TRELLIS), 50, trellis(1250, 200, 50), id="trellis, the authors' code"),
        pytest.param(ModelConfig(CHARACTERS, TRELLIS), 50, 14_525_050, id="trellis, 14.5 M"),
        pytest.param(ModelConfig(CHARACTERS, replace(TRELLIS, hidden=1200)), 50, 13_464_450, id="trellis, 13.4 M"),
        pytest.param(
            ModelConfig(EmbeddingConfig(50), TransformerConfig(hidden=52, feed_forward=1024, **ENCODER)),
            50,
            encoder(3, 52, 1024, 50, 50),
            id="Transformer of embedding 50, projected to 52",
        ),
        pytest.param(recipes.load("ptb-dual-mogrifier").model, 10_000, 22_879_450, id="ptb-dual-mogrifier"),
        pytest.param(recipes.load("ptb-char-dnc").model, 50, 18_392_574, id="ptb-char-dnc"),
        pytest.param(recipes.load("ptb-char-awd-lstm").model, 50, 13_787_650, id="ptb-char-awd-lstm"),
        pytest.param(recipes.load("enwik8-awd-lstm").model, 256, 47_290_496, id="enwik8-awd-lstm"),
        pytest.param(recipes.load("ptb-awd-lstm-snb").model, 10_000, 24_542_800, id="AWD-LSTM + SNB, PTB"),
    ],
)
def test_published_counts(config: ModelConfig, types: int, count: int) -> None:
    with torch.device("meta"):
        model = build_model(config, types)
    assert count_parameters(model) == count
