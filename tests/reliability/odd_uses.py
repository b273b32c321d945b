"""Command lines at the limits of their flags: they keep their promise, or give one line and write nothing."""

import io
import os
import random
import shlex
import shutil
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from unittest.mock import patch

from calling import Ended, call, listing
from odd_runs import made


@dataclass(frozen=True)
class Use:
    """A command line in a folder with the runs, the texts and the files below, and how it ends."""

    line: str
    says: str = ""
    """A part of the one line that it is refused with; empty: it works."""
    given: bytes = b""
    """Standard input."""


def run(trials: Sequence[int], folder: Path) -> Iterator[str]:
    """Each trial is one command line, called from the folder, to which it is as it was for the one before."""
    here, desk, kept = Path.cwd(), folder / "desk", folder / "kept"
    desk.mkdir()
    with patch.dict(os.environ, {"BACKSTORY_CACHE": str(folder / "cache"), "HF_HUB_OFFLINE": "1"}):
        made(desk, [kind for kind in RUNS if any(kind in USES[number].line for number in trials)])
        for name, content in FILES.items():
            (desk / name).parent.mkdir(exist_ok=True)
            (desk / name).write_bytes(content.encode())
        shutil.copytree(desk, kept)
        try:
            for number in trials:
                os.chdir(desk)
                before = listing(desk)
                problem = _problem(USES[number], before, desk)
                if problem:
                    yield f"{USES[number].line}: {problem}"
                if listing(desk) != before:
                    os.chdir(folder)
                    shutil.rmtree(desk)
                    shutil.copytree(kept, desk)
        finally:
            os.chdir(here)


def _problem(use: Use, before: dict[str, tuple[int, int]], desk: Path) -> str:
    ended = _ended(use)
    if problem := ended.problem():
        return problem
    if bool(ended.code) != bool(use.says) or use.says not in ended.err:
        return f"exit code {ended.code}: {ended.err[-300:]!r}"
    return "something was written" if ended.code and listing(desk) != before else ""


def _ended(use: Use) -> Ended:
    with io.BytesIO(use.given) as given, patch.object(sys, "stdin", io.TextIOWrapper(given)):
        return call(shlex.split(use.line), 300)


SENTENCES = "ann saw the tea and bob took more jam\ncarl sold the oil\n"
RUNS = ("words", "other", "characters", "bytes", "cut", "copy", "recall", "dnc", "pointer", "second")
SYSTEM = "title: t\nsystems:\n  - {name: a, small: {recipe: words/config.yaml, seeds: [1], minutes: 1"
FILES = {
    "text.txt": SENTENCES * 5,
    "page.html": "somebody's page",
    "emoji.txt": "😀 👨\u200d👩\u200d👧 \u202eabc\n" * 40,
    "rtl.txt": "שלום עולם مرحبا\n" * 60,
    "newlines.txt": "\n" * 300,
    "one.txt": "a",
    "type.txt": "a " * 500,
    "bom.txt": "\ufeff" + SENTENCES * 20,
    "crlf.txt": (SENTENCES * 20).replace("\n", "\r\n"),
    "zero.txt": "a\u200bb \u200d\n" * 60,
    "line.txt": "ann saw the tea " * 2000,
    "documents.txt": "".join(f" = Title {i} = \n w{i % 7} b c \n" for i in range(2000)),
    "no-test/train.txt": SENTENCES * 20,
    "no-test/valid.txt": SENTENCES,
    "no-test/test.txt": "",
    "equal/train.txt": SENTENCES * 20,
    "equal/valid.txt": SENTENCES * 3,
    "equal/test.txt": SENTENCES * 3,
    "suites/good.yaml": f"{SYSTEM}}}}}\n",
    "suites/itself.yaml": f"{SYSTEM}, init_from: a}}}}\n",
    "suites/no-seeds.yaml": f"{SYSTEM.replace('[1]', '[]')}}}}}\n",
    "suites/seed-twice.yaml": f"{SYSTEM.replace('[1]', '[1, 1]')}}}}}\n",
    "suites/no-minutes.yaml": f"{SYSTEM.replace('minutes: 1', 'minutes: 0')}}}}}\n",
    "suites/no-systems.yaml": "title: t\nsystems: []\n",
    "suites/name.yaml": f"{SYSTEM.replace('name: a', 'name: ../a')}}}}}\n",
    "suites/seed.yaml": f"{SYSTEM}, overrides: {{seed: 3}}}}}}\n",
    "suites/setting.yaml": f"{SYSTEM}, overrides: {{training: {{lr: 3}}}}}}}}\n",
    "suites/experiment.yaml": f"{SYSTEM}, examinations: [{{experiment: none}}]}}}}\n",
    "suites/reader.yaml": f"{SYSTEM}}}, readings: [{{reader: none}}]}}\n",
    "suites/prepare.yaml": f"{SYSTEM}}}, prepare: ['rm -r /']}}\n",
    "suites/claim.yaml": f"{SYSTEM}}}}}\nclaims:\n  - {{sentence: s, better: {{system: a}}, than: {{system: b}}}}\n",
    "suites/own-claim.yaml": f"{SYSTEM}}}}}\nclaims:\n  - {{sentence: s, better: {{system: a}}, than: {{system: a}}}}\n",
    "spaces/empty.yaml": "settings: {}\n",
    "spaces/nothing.yaml": "",
    **{
        f"spaces/{name}.yaml": f"settings:\n  {entry}\n"
        for name, entry in {
            "log-0": "training.learning_rate: {range: [0.0, 0.1], log: true}",
            "point": "training.learning_rate: {range: [0.1, 0.1]}",
            "down": "training.learning_rate: {range: [0.2, 0.1]}",
            "nan": "training.learning_rate: {range: [.nan, 0.1]}",
            "three": "training.learning_rate: {range: [0.1, 0.2, 0.3]}",
            "none": "training.learning_rate: {}",
            "twice": "training.learning_rate: {choice: [0.1, 0.1]}",
            "no-choice": "training.learning_rate: {choice: []}",
            "same": "training.learning_rate: {same: training.learning_rate}",
            "unknown": "training.rate: {choice: [0.1]}",
            "text": "text.minimum_count: {choice: [1, 2]}",
            "seed": "seed: {choice: [1, 2]}",
            "whole": "model.core.hidden: {range: [3.5, 9.5]}",
            "huge": "model.core.hidden: {range: [1, 1000000000]}",
            "itself": "model.core.hidden: {choice: [3, 4], when: {model.core.hidden: 3}}",
            "number": "1: {choice: [1]}",
        }.items()
    },
}
"""Files in the folder beside the runs."""

SMALL = "--targets 5 --maximum-context 20 --context 10 --near 2"
SPACE = "sweep run words/config.yaml --out new --trials 1 --space spaces/"
SUITE = "reproduce --dry-run --out new suites/"
LINES: dict[str, str] = {
    # generate
    "generate words --tokens 3": "",
    "generate words --tokens 0": "tokens must be at least 1",
    "generate words --tokens 3 --temperature 0": "",
    "generate words --tokens 3 --temperature 1e-320": "",
    "generate words --tokens 3 --temperature 1e308": "",
    "generate words --tokens 3 --temperature nan": "temperature must be at least 0",
    "generate words --tokens 3 --temperature inf": "finite, not inf",
    "generate words --tokens 3 --top-k 9999999999": "",
    "generate words --tokens 3 --top-k 0": "top_k must be at least 1",
    "generate words --tokens 3 --top-k 100000000000000000000": "top_k must be at least 1 and at most",
    "generate words --tokens 3 --top-p 1e-300": "",
    "generate words --tokens 3 --top-p 0": "top_p must be above 0",
    "generate words --tokens 3 --top-p 1.0001": "at most 1, not",
    "generate words --tokens 3 --seed 2147483648": "seed must be",
    "generate words --tokens 3 --seed -1": "seed must be",
    "generate words --tokens 3 --stop ''": "must not be empty",
    "generate words --tokens 9 --stop saw --stop took --stop the": "",
    "generate words --tokens 3 --prompt ' '": "",
    "generate words --tokens 3 --prompt '😀 מלך \u202eabc'": "",
    "generate characters --tokens 9 --prompt '😀 מלך'": "",
    "generate bytes --tokens 9 --prompt '😀 מלך'": "",
    "generate cut --tokens 9 --prompt 'ann zebra' --allow-unknown": "",
    "generate copy --tokens 9": "",
    "generate copy --tokens 9 --prompt zebra": "is not in the vocabulary, which has no <unk>",
    "generate recall --tokens 9 --prompt zebra": "",
    "generate words --tokens 9 --reader cache --reader tempered": "",
    "generate words --tokens 9 --reader cache:window=1 --reader dynamic:rule=sgd,rate=0.1": "",
    "generate words --tokens 9 --reader dynamic": "has no statistics of training gradients",
    "generate words --tokens 9 --reader learned": "has no meta-learner",
    "generate words --tokens 9 --reader shuffled-buffer": "the model has none",
    "generate pointer --tokens 9 --reader shuffled-buffer --prompt ann": "it needs several",
    "generate pointer --tokens 9": "",
    "generate dnc --tokens 9": "",
    "generate second --tokens 9": "",
    "generate words --reader static --reader static": "named twice",
    "generate words --reader ''": "there is no reader ''",
    "generate words --reader cache:window=0": "window must be at least 1",
    "generate words --session nowhere": "holds no session",
    "generate nowhere": "there is no run folder nowhere",
    "generate words/config.yaml": "words/config.yaml is a file; name the folder of a run first, words",
    "generate ''": "is a folder of runs; name one of them, such as words",
    "generate ./words/../words/ --tokens 2": "",
    "generate words --device cuda:99": "is not available here",
    "generate words --device mps": "is not available here",
    "generate words --device meta": "is not available here",
    "generate words --device CPU": "unknown device",
    "generate words --device ''": "unknown device",
    "generate words --precision float64": "--precision must be one of",
    "generate words --tokens 3 --precision bfloat16": "",
    "generate hf:words": "holds no Hugging Face model",
    "generate hf:": "there is no folder ''",
    # examine
    f"examine words {SMALL}": "",
    f"examine words {SMALL} --memory 1e300": "",
    f"examine words {SMALL} --memory 1e-9": "",
    f"examine words {SMALL} --memory nan": "memory must be above 0",
    f"examine words {SMALL} --batch-size 3": "",
    f"examine words {SMALL} --batch-size 100000": "",
    f"examine words {SMALL} --batch-size 2 --within-documents": "leave --batch-size out",
    f"examine words {SMALL} --tagger none": "unknown tagger",
    f"examine words {SMALL} --by none": "there is no split of the targets",
    f"examine words {SMALL} --by frequency --by tag --by content --by class --by position": "",
    f"examine words {SMALL} --by frequency --by frequency": "",
    f"examine words {SMALL} --by tag --tagger gold": "there is no file of tags",
    f"examine words {SMALL} --within-documents": "",
    f"examine words {SMALL} --split none": "there is no split",
    f"examine words {SMALL} --experiment none": "there is no experiment",
    **{
        f"examine words {SMALL} --experiment {name}": ""
        for name in ("shuffle", "reverse", "replace", "drop-target", "drop-distant", "replace-target", "cache")
    },
    f"examine words {SMALL} --experiment cache --reader cache": "",
    f"examine words {SMALL} --reader cache --reader tempered": "",
    f"examine words {SMALL} --reader dynamic:rule=sgd": "learns as it reads",
    f"examine pointer {SMALL} --reader shuffled-buffer": "rows that depend on each other",
    f"examine words {SMALL} --out words": "would be lost",
    f"examine words {SMALL} --out text.txt": "cannot write to text.txt",
    f"examine words words {SMALL}": "is named twice",
    f"examine words other {SMALL}": "",
    f"examine words characters {SMALL}": "is of another corpus or tokenizer",
    f"examine words {SMALL} --corpus text.txt": "is read with the corpus it was trained on",
    f"examine words {SMALL} --seed 99999999999": "",
    "examine words": "too few for contexts of 1,000",
    "examine words --targets 2 --maximum-context 1 --context 2 --near 1": "",
    "examine words --maximum-context 40 --context 50 --experiment shuffle": "longer than the longest",
    "examine words --targets 1": "targets must be at least 2",
    "examine": "name the run's folder",
    **{
        f"examine {kind} --targets 5 --maximum-context 4 --context 3 --near 1": ""
        for kind in ("copy", "recall", "bytes", "characters", "dnc", "pointer", "second")
    },
    f"examine bytes {SMALL} --by tag": "only words have parts of speech",
    f"examine bytes {SMALL} --word-score sum": "",
    f"examine cut {SMALL} --experiment replace-target --allow-unknown": "",
    # explain
    "explain surprisal words --words 5 --at 3": "",
    "explain surprisal words --words 5 --at 99999": "is beyond the test text",
    "explain surprisal words --words 2001": "a passage has 1 to 2,000 words",
    "explain surprisal words --words 5 --top 0": "",
    "explain surprisal words --words 5 --top 101": "top must be",
    "explain surprisal words --words 5 --context 0 --at 9": "",
    "explain surprisal words --words 5 --layer none": "there is no layer",
    "explain surprisal words --words 5 --against other": "",
    "explain surprisal words --words 5 --against cache": "",
    "explain surprisal words --words 5 --against characters": "has another vocabulary",
    "explain surprisal words --words 5 --against nowhere": "is neither a reader nor a run folder",
    "explain surprisal words --words 5 --find success": "leave --find out",
    "explain surprisal words --words 5 --text text.txt": "",
    "explain surprisal words --words 5 --text text.txt --split valid": "exclude each other",
    "explain surprisal words --words 5 --text valid": "there is no file 'valid'",
    "explain surprisal words --words 5 --text newlines.txt": "",
    "explain surprisal words --words 5 --text emoji.txt": "outside the vocabulary",
    "explain surprisal bytes --words 5 --text emoji.txt": "",
    "explain surprisal words --words 5 --html page.html": "is not a page of Backstory",
    "explain surprisal words --words 5 --html new.html": "",
    "explain surprisal words --words 5 --out words": "would be lost",
    "explain surprisal pointer --words 5 --reader shuffled-buffer": "it needs several",
    "explain surprisal copy --words 5": "",
    "explain surprisal recall --words 5": "",
    "explain buffer words": "has no span buffer",
    "explain buffer second": "has no span buffer",
    "explain buffer pointer --words 5": "",
    "explain buffer pointer --words 5 --against cache": "leave --against out",
    "explain memory words": "has no external memory",
    "explain memory dnc --words 5": "",
    "explain memory dnc --words 5 --reader cache": "leave the reader cache out",
    "explain cache words --words 5": "",
    "explain cache words --words 5 --reader cache:window=3": "",
    "explain cache words --find both --html new.html": "are for one passage",
    "explain none words": "there is no explanation",
    "explain": "name the explanation",
    "explain surprisal reading": "there is no run folder reading",
    "explain reading words": "would be compared with itself",
    "explain reading words --reader cache --tokens 50 --block 10": "",
    "explain reading words --reader cache --tokens 1 --block 1": "",
    "explain reading words --reader cache --tokens 50 --block 100": "",
    "explain reading words --reader cache --tokens 50 --block 7 --smooth 1000 --passage 3": "",
    "explain reading words --reader cache --tokens 50 --passage 100": "is outside the stretch",
    "explain reading words --reader cache --at 99999": "is beyond the test text",
    "explain reading words --reader cache --words 3000": "a passage has 1 to 2,000 words",
    "explain reading words --reader cache --against characters": "has another vocabulary",
    "explain reading words --reader cache --against static --against other --tokens 50": "",
    # readers
    "reader audit words --places 1": "",
    "reader audit words --places 99999": "",
    "reader audit words --batch-size 150": "",
    "reader audit words --batch-size 151": "but --batch-size is 151; use --batch-size 150 or less",
    "reader audit words --split none": "there is no split",
    "reader statistics words --batch-size 5 --tokens 100": "",
    "reader statistics words": "",
    "reader statistics words --batch-size 1000": "too few for minibatches",
    "reader statistics words --tokens 1": "too few for minibatches",
    "reader statistics words --batch-size 9 --moving none": "statistics are of all weights",
    "reader statistics words --batch-size 9 --moving low-rank:0": "is not understood",
    "reader statistics words --batch-size 9 --moving low-rank:2": "",
    "reader statistics words --split test": "nothing is chosen on the test split",
    "reader tune words --split test": "nothing is chosen on the test split",
    "reader tune words --reader static": "has no settings to tune",
    "reader tune words --reader cache --grid theta=0.5": "",
    "reader tune words --reader cache --grid theta=1,1": "appears twice",
    "reader tune words --reader cache --grid theta=1 --grid theta=2": "gives theta twice",
    "reader tune words --reader cache --grid theta=": "must be written setting=value,value",
    "reader tune words --reader cache --grid theta=1e400": "theta must be at least 0 and at most 1000000, not inf",
    "reader tune words --reader cache --grid window=0": "window must be at least 1",
    "reader tune words --reader cache --in-turn": "has none of segment",
    "reader tune words --reader cache --tokens 99": "tokens must be at least 100",
    "reader tune words --reader dynamic:rule=sgd --grid rate=1e-3 --tokens 100": "",
    "reader tune words --reader dynamic:rule=sgd --grid rate=1e300": "rate must be above 0 and at most",
    "reader tune words --reader dynamic --tokens 100": "has no statistics",
    "reader train words --skip 20000": "leaves none; use a smaller --skip",
    "reader train words --skip 0 --name ../x": "is made of letters, digits and hyphens",
    "reader train words --split test": "nothing is chosen on the test split",
    # spaces and suites
    f"{SPACE}empty.yaml": "settings is empty",
    f"{SPACE}nothing.yaml": "is empty; give it some settings",
    f"{SPACE}log-0.yaml": "must be above 0",
    f"{SPACE}point.yaml": "a range goes up",
    f"{SPACE}down.yaml": "a range goes up",
    f"{SPACE}nan.yaml": "must be above 0, not nan",
    f"{SPACE}three.yaml": "a range is two numbers",
    f"{SPACE}none.yaml": "needs one of",
    f"{SPACE}twice.yaml": "a choice appears twice",
    f"{SPACE}no-choice.yaml": "choice is empty",
    f"{SPACE}same.yaml": "nothing is searched",
    f"{SPACE}unknown.yaml": "unknown key",
    f"{SPACE}text.yaml": "must be the same for all trials",
    f"{SPACE}seed.yaml": "must be the same for all trials",
    f"{SPACE}whole.yaml": "must be a whole number",
    f"{SPACE}huge.yaml": "some of its draws cannot be trained",
    f"{SPACE}itself.yaml": "model.core.hidden refers to itself; give it values of its own",
    f"{SPACE}number.yaml": "is not the name of a setting",
    "sweep run words": "name a space",
    "sweep run demo --space none": "there is no space",
    "sweep run demo --space demo --trials 0": "trials must be at least 1",
    "sweep show nowhere": "nowhere",
    f"{SUITE}good.yaml": "",
    f"{SUITE}good.yaml --only b": "there is no system 'b'",
    f"{SUITE}good.yaml --processes 0": "processes must be at least 1",
    f"{SUITE}good.yaml --processes 1000": "",
    f"{SUITE}good.yaml --scale full": "has nothing at the full scale",
    f"{SUITE}good.yaml --known words/result.json": "is of kind training",
    f"{SUITE}good.yaml --known nowhere": "cannot read nowhere",
    f"{SUITE}good.yaml --known text.txt": "not valid JSON",
    f"{SUITE}itself.yaml": "it begins with itself",
    f"{SUITE}no-seeds.yaml": "seeds is empty",
    f"{SUITE}seed-twice.yaml": "twice; remove one",
    f"{SUITE}no-minutes.yaml": "minutes must be above 0",
    f"{SUITE}no-systems.yaml": "systems is empty",
    f"{SUITE}name.yaml": "a name is made of letters",
    f"{SUITE}seed.yaml": "seeds are set by `seeds`",
    f"{SUITE}setting.yaml": "unknown key",
    f"{SUITE}experiment.yaml": "there is no experiment",
    f"{SUITE}reader.yaml": "there is no reader",
    f"{SUITE}prepare.yaml": "there is no preparation",
    f"{SUITE}claim.yaml": "there is no system 'b'",
    f"{SUITE}own-claim.yaml": "compares system a with itself",
    # corpora, and what is drawn
    **{
        f"data show {name}.txt": ""
        for name in ("text", "emoji", "rtl", "type", "bom", "crlf", "zero", "line", "documents")
    },
    "data show newlines.txt": "is empty; give a text that holds words",
    "data show one.txt": "is too short",
    "data show no-test": "has 0 tokens",
    "data show equal": "",
    "data show none": "unknown corpus",
    "data show text.txt --minimum-count 9999": "",
    "data show text.txt --maximum-size 1": "maximum_size must be at least 2",
    "data show text.txt --tokenizer bytes --maximum-size 3": "is fixed",
    "data show text.txt --recall.length 5": "is for the corpus recall",
    "data show copy --algorithm.bits 13": "bits must be at least 1 and at most 12",
    "data show copy --algorithm.shortest 5 --algorithm.longest 4": "lower the second",
    "data show copy --algorithm.documents 1 --algorithm.held-out 1": "",
    "data show associative-recall --algorithm.longest 1": "needs lengths of 2 or more items",
    "data show priority-sort --algorithm.levels 1 --algorithm.documents 5": "",
    "data show recall --recall.cast 500": "cannot be drawn from 200 entities",
    "data show recall --recall.facts 0.6 --recall.mentions 0.6": "leave no room",
    "data show recall --recall.length 2 --recall.documents 2 --recall.held-out 1": "",
    "data show recall --tokenizer characters": "is made of words",
    "data prepare text.txt": "",
    # training
    "train words/config.yaml --out new --init-from other --training.epochs 1": "",
    "train words/config.yaml --out new --init-from characters": "has another vocabulary",
    "train words/config.yaml --out new --init-from dnc": "does not fit this model",
    "train words/config.yaml --out new --init-from nowhere": "there is no run folder",
    "train words/config.yaml --out other --init-from other --overwrite": "would be removed before",
    "train words/config.yaml --out ./words/../other --init-from other --overwrite": "would be removed before",
    "train words/config.yaml --out words --init-from other": "is not empty",
    "train words/config.yaml --out new --training.epochs 0": "epochs must be at least 1",
    "train words/config.yaml --out new --corpus equal": "are the same text",
    "train words/config.yaml --out new --corpus one.txt": "is too short",
    "train words/config.yaml --out new --corpus emoji.txt": "are the same text",
    "train words/config.yaml --out new --corpus emoji.txt --allow-equal-splits --training.epochs 1": "",
    "train words/config.yaml --out new --model.embedding.initial 1e300": "initial must be above 0",
    "train words/config.yaml --out a/../new --training.epochs 1": "",
    "train words/config.yaml --out text.txt": "is a file",
    "train words/config.yaml --out page.html/new": "cannot write",
    # the rest
    "evaluate words --batch-size 151": "but --batch-size is 151; use --batch-size 150 or less",
    "evaluate words --batch-size 150": "",
    "evaluate words --reader dynamic:rule=nadam,rate=1e300": "rate must be above 0 and at most",
    "evaluate words text.txt --split test": "a text has no splits",
    "evaluate words valid": "there is no file 'valid'",
    "evaluate words --after test": "what was learned from it",
    "evaluate words --lengths 3": "have no lengths to choose",
    "evaluate copy --lengths 3": "",
    "export words --out text.txt": "text.txt exists",
    "export nowhere": "there is no run folder",
    "report words --out page.html": "is not a page of Backstory",
    "report words --out new.html": "",
    "report nowhere": "nowhere does not exist",
    "report": "name at least one run folder",
    "recipe copy demo text.txt": "must end in .yaml",
    "recipe copy demo spaces/empty.yaml": "exists; choose another file",
    "recipe copy none new.yaml": "there is no recipe",
    "recipe copy demo new.yaml": "",
    "recipe check text.txt": "text.txt",
    "recipe check demo": "",
    "ls none": "there is nothing called",
    "ls": "",
}
"""Refusal of a command line, or an empty text where it works."""
USES = [
    *(Use(line, says) for line, says in LINES.items()),
    Use("generate words --tokens 3 --prompt -"),
    Use("generate words --tokens 3 --prompt -", given=b"ann saw the tea " * 3000),
    Use("generate words --tokens 3 --prompt -", "is not UTF-8 text", b"ann\xff\xfe"),
    Use("generate words --tokens 3 --prompt -", "holds a NUL", b"ann\0"),
    Use("generate bytes --tokens 3 --prompt -", given=b"ann\xff\xfe\r\n\0"),
    Use("explain surprisal words --words 5 --text -", given=b"ann saw the tea"),
    Use("explain surprisal words --words 5 --text -", "is empty", b""),
    Use("explain reading words --reader cache --text -", given=b"ann saw the tea\nbob took the jam"),
    Use("evaluate words -", given=b"\n"),
    Use("evaluate words -", "is empty", b""),
]
random.Random(0).shuffle(USES)  # so that a few of them are of every kind
