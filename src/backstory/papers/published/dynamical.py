"""A language model with dynamic weights, learned by meta-learning: three time scales of memory."""

from backstory.papers.published.paper import Figure, Paper

PAPER = Paper(
    title="Meta-Learning a Dynamical Language Model",
    cited="Wolf et al. 2018",
    # An AWD-LSTM on WikiText-2.
    figures={
        "wikitext-2-test": Figure(64.8, "test", "section 3"),
        "wikitext-2-test-learned": Figure(46.9, "test", "section 3", reader="learned"),
    },
)
