"""Regularizing and Optimizing LSTM Language Models: weight drop, AR and TAR, averaged SGD triggered by validation."""

from backstory.papers.published.paper import Figure, Paper

PAPER = Paper(
    title="Regularizing and Optimizing LSTM Language Models",
    cited="Merity et al. 2018",
    # After fine-tuning.
    figures={
        "ptb-valid": Figure(60.00, "valid", "table 1", parameters="24 M"),
        "ptb-test": Figure(57.30, "test", "table 1", parameters="24 M"),
        "wikitext-2-valid": Figure(68.60, "valid", "table 2", parameters="33 M"),
        "wikitext-2-test": Figure(65.80, "test", "table 2", parameters="33 M"),
    },
)
