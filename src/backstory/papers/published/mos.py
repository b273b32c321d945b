"""Breaking the Softmax Bottleneck: a mixture of softmaxes over an AWD-LSTM."""

from backstory.papers.published.paper import Figure, Paper

PAPER = Paper(
    title="Breaking the Softmax Bottleneck: A High-Rank RNN Language Model",
    cited="Yang et al. 2018",
    # After fine-tuning.
    figures={
        "ptb-valid": Figure(56.54, "valid", "table 1", parameters="22 M"),
        "ptb-test": Figure(54.44, "test", "table 1", parameters="22 M"),
        "wikitext-2-valid": Figure(63.88, "valid", "table 2", parameters="35 M"),
        "wikitext-2-test": Figure(61.45, "test", "table 2", parameters="35 M"),
    },
)
