"""Examples that the help of each command shows."""

from collections.abc import Mapping

EXAMPLES: Mapping[str, Mapping[str, str]] = {
    "demo": {
        "Train, read, examine and report in a few minutes": "demo",
        "Go on after Ctrl-C": "demo --resume",
    },
    "train": {
        "Train on a text of your own, with another learning rate": "train own-text --corpus my.txt --lr 0.001 --out runs/mine",
        "Train for a quarter of an hour on Penn Treebank": "train ptb-15min --data-dir data",
        "Go on after Ctrl-C or a crash": "train runs/mine --resume",
    },
    "evaluate": {
        "Score the test split with the model alone": "evaluate runs/demo",
        "Add a neural cache": "evaluate runs/demo --reader cache",
        "Score a text of your own, and write the score of each token": "evaluate runs/demo my.txt --per-token scores.tsv",
    },
    "referee": {
        "Score and audit a predictor written in Python": "referee my_model.py:Model --text my.txt",
        "Or one in any language, as a process": 'referee --process "./predictor" --text my.txt',
    },
    "read": {
        "Score lines while you type them": "read runs/demo",
        "Score a file with a neural cache": "read runs/demo --reader cache < my.txt",
        "Save the session, to go on with --resume": "read runs/demo --session diary < monday.txt",
    },
    "generate": {
        "Continue a prompt": 'generate runs/demo --prompt "return the" --tokens 50',
        "Always take the most likely token": 'generate runs/demo --prompt "return the" --temperature 0',
    },
    "compress": {
        "Write my.txt.bks, which the same model restores": "compress my.txt --model runs/demo",
        "Let a neural cache remember the words of the file": "compress my.txt --model runs/demo --reader cache",
    },
    "decompress": {"Restore my.txt": "decompress my.txt.bks --model runs/demo"},
    "verify": {"Decode the proof of a score and compare": "verify proof.bks"},
    "examine": {
        "Measure how many words of context a model uses": "examine runs/demo",
        "See whether the order of distant words matters": "examine runs/demo --experiment shuffle",
        "Examine a Hugging Face model on a text of your own": "examine hf:gpt2 --text my.txt --targets 500",
    },
    "explain": {
        "Show how surprising each word is, and what was expected": "explain surprisal runs/demo",
        "Explain words of a text of your own, on a page": "explain surprisal runs/demo --text my.txt --html page.html",
        "Show which earlier words a span buffer attends to": "explain buffer runs/demo-pointer",
    },
    "explain reading": {
        "Show where a cache gains over the model alone": "explain reading runs/demo --reader cache --against static",
    },
    "sweep run": {
        "Try 20 settings, two at a time": "sweep run demo --space demo --trials 20 --processes 2",
        "Search a space of your own, in short trainings": "sweep run demo --space my-space.yaml --training.epochs 5",
    },
    "sweep show": {"List the best trials, and what mattered": "sweep show runs/sweep-demo-demo"},
    "reproduce": {
        "List the runs of a suite and their cost": "reproduce span-buffer --dry-run",
        "Run two of its systems, two processes at a time": "reproduce dual --only lstm dual-lstm --processes 2 --data-dir data",
    },
    "export": {"Write runs/demo/export, which transformers can load": "export runs/demo"},
    "report": {
        "Write a page about some runs": "report runs/demo runs/demo-pointer --out report.html",
        "Write the tables for a paper": "report runs/demo --out tables.tex",
    },
    "reader statistics": {"Do this once before dynamic evaluation": "reader statistics runs/demo"},
    "reader tune": {
        "Tune dynamic evaluation on the validation split": "reader tune runs/demo",
        "Tune a cache around it": "reader tune runs/demo --reader dynamic --reader cache",
    },
    "reader train": {"Train the meta-learner, for --reader learned": "reader train runs/demo"},
    "reader audit": {
        "Audit a stack of readers at random positions": "reader audit runs/demo --reader dynamic --reader cache"
    },
    "data show": {
        "Count tokens and types": "data show wikitext-2 --data-dir data",
        "See what your text becomes in sub-word pieces": "data show my.txt --tokenizer bpe:8000",
    },
    "data prepare": {"Download a corpus": "data prepare ptb --data-dir data"},
    "data tokenizer": {"Train 4,000 sub-word pieces": "data tokenizer my.txt --size 4000 --out pieces.json"},
    "recipe show": {"Show every setting of a recipe": "recipe show ptb-small"},
    "recipe copy": {"Begin a recipe of your own": "recipe copy ptb-small mine.yaml"},
    "recipe check": {"Check it before you train": "recipe check mine.yaml"},
    "benchmark": {
        "Measure this machine": "benchmark",
        "Measure one recipe": "benchmark --recipes ptb-15min",
    },
    "check": {"Test the parts that a file registers": "check my_core.py"},
    "ls": {
        "List all names": "ls",
        "List runs, best first": "ls runs --sort valid",
    },
}
"""For each command, what an example does, and its words after `backstory`."""
