"""Every mistake is one line that says what is wrong and what to do, exit code 2, and nothing written."""

import os
import re
import sys
from pathlib import Path

import pytest
from commands import SMALL, Command, tree

from backstory.cli.main import main
from backstory.cli.mistakes import nearest_flag

HELP = r"`backstory {} --help-all`"
EVALUATE = "evaluate run"
EXAMINE = "examine run"
GENERATE = "generate run"
EXPLAIN = "explain surprisal run"
TRAIN = f"train demo --corpus good.txt --out new {' '.join(SMALL)}"
RECALL = f"train demo --corpus recall --text.minimum-count 1 --out new {' '.join(SMALL)}"

# What is typed, and what the line must say: the mistake, and what to do.
MISTAKES = [
    # Verbs.
    ("trian demo", r"there is no command 'trian' \(did you mean 'train'\?\); `backstory --help`"),
    ("compare run run", r"there is no command 'compare'; `backstory explain reading RUN --against READER_OR_RUN`"),
    ("--versoin", r"there is no command '--versoin'; `backstory --help`"),
    ("reader", r"`backstory reader \{statistics, tune, train, audit\}"),
    ("reader adit run", r"'?backstory reader adit`? \(did you mean 'audit'\?\)"),
    ("data shwo x", r"did you mean 'show'"),
    ("recipe chekc x", r"did you mean 'check'"),
    ("ls modles", r"nothing called 'modles' .*did you mean 'models'.*recipes"),
    # What a verb needs.
    ("train", r"name a recipe: `backstory train RECIPE`; `backstory ls recipes`"),
    ("train --resume demo", r"the recipe comes first: `backstory train RECIPE --resume"),
    ("evaluate", r"^name the run's folder: `backstory evaluate RUN \[TEXT\]`$"),
    ("evaluate --json", r"^name the run's folder: `backstory evaluate RUN \[TEXT\]`$"),
    ("examine", r"^name the run's folder: `backstory examine RUN`$"),
    ("generate", r"^name the run's folder: `backstory generate RUN`$"),
    ("explain", r"^name the explanation first: `backstory explain NAME RUN`; NAME is one of surprisal, reading, "),
    ("explain run", r"^name the explanation first: .* NAME is one of surprisal, reading, buffer"),
    ("explain surprisal run -", r"^unexpected argument '-'; a text is given as --text -$"),
    ("explain surprisal run good.txt", r"^unexpected argument 'good.txt'; a text is given as --text good.txt$"),
    ("explain surprisal", r"^name the run's folder: `backstory explain NAME RUN`$"),
    ("reader audit", r"^name the run's folder: `backstory reader audit RUN`$"),
    ("report", r"name at least one run folder: `backstory report"),
    ("data show", r"^name a corpus .*`backstory data show CORPUS`$"),
    ("recipe copy", r"^name the recipe .*`backstory recipe copy NAME FILE`$"),
    ("recipe copy demo", r"^name the file to write: `backstory recipe copy NAME FILE`$"),
    ("recipe check", r"`backstory recipe check RECIPE`$"),
    ("evaluate run good.txt more", r"unexpected argument 'more'; the command is `backstory evaluate RUN \[TEXT\]`"),
    ("examine run more", r"there is no run folder more; train one"),
    ("train demo more", r"unexpected argument 'more'; the command is `backstory train RECIPE`"),
    ("reproduce", r"^name a suite .*: `backstory reproduce SUITE`$"),
    ("train nope", r"^there is no recipe 'nope'; `backstory ls recipes` lists them$"),  # no name is near
    ("evaluate run stdlib", r"no file 'stdlib', which is the name of a corpus; leave it out to read the run's own"),
    ("evaluate hf:gpt2 stdlib", r"no file 'stdlib', which is the name of a corpus; give --corpus stdlib$"),
    (
        "evaluate run --text good.txt",
        r"^there is no flag --text; the text follows the run: `backstory evaluate RUN \[TEXT\]`$",
    ),
    ("evaluate run --collect-statistics", r"for a reader that moves the weights; name it with --reader$"),
    (f"{TRAIN} --training.learning-rate=-1", r"^--training.learning-rate must be above 0, not -1.0$"),
    (f"{TRAIN} --training.minutes 1 --training.steps 3", r"^--training.minutes 1 and --training.steps 3 cannot be"),
    # Flags.
    (f"{TRAIN} --training.epoch 1", r"no flag --training.epoch \(did you mean '--training.epochs'\?\)"),
    (f"{TRAIN} --training.epoch=1", r"no flag --training.epoch \(did you mean '--training.epochs'\?\)"),
    (f"{TRAIN} --epoch 1", r"no flag --epoch \(did you mean '--epochs'\?\); " + HELP.format("train RECIPE")),
    (f"{TRAIN} --learning-rate 1", r"no flag --learning-rate \(did you mean '--lr'\?\)"),
    (f"{TRAIN} --epochs", r"^--epochs needs a value: a whole number"),
    (f"{TRAIN} --epochs 0", r"--epochs must be at least 1, not 0"),
    (f"{TRAIN} --lr fast", r"^--lr must be a number, not 'fast'"),
    (
        f"{TRAIN} --training.minutes 30m",
        r"^--training.minutes must be a number or none, not '30m'; write 30, without a unit",
    ),
    (f"{TRAIN} --batch-size 10%", r"^--batch-size must be a whole number, not '10%'$"),
    (f"{TRAIN} --batch-size 1k", r"^--batch-size must be a whole number, not '1k'; write 1000"),
    (f"{TRAIN} --lr=-1", r"--lr must be above 0.*, not -1"),
    (
        f"{TRAIN} --optimizer sdg",
        r"^--optimizer must be one of sgd, adam, adamw, nadam, not 'sdg' \(did you mean 'sgd'",
    ),
    (f"{TRAIN} --head mixtur", r"--head must be one of softmax, mixture, not 'mixtur' \(did you mean 'mixture'"),
    (f"{TRAIN} --batch-size 999999", r"lower|smaller batch size"),
    ("evaluate run --split valid --split test", "^--split is given 2 times; give it once"),
    ("explain surprisal run run/config.yaml", "a text is given as --text run/config.yaml"),
    ("evaluate hf:./absent", r"^there is no folder './absent'; give hf:"),
    ("examine run --experiment truncate shuffle", "unexpected argument 'shuffle'; a flag takes one value"),
    ("evaluate run --lr 3", r"there is no flag --lr; " + HELP.format("evaluate")),
    (f"{TRAIN} --training.batchsize 1", r"did you mean '--training.batch-size'"),
    (f"{TRAIN} --training.learning 1", r"there is no flag --training.learning"),
    (
        f"{TRAIN} --model.head.experts 3",
        r"there is no flag --model.head.experts .*comes with --model.head.kind mixture",
    ),
    (f"{TRAIN} --model.buffer.size=5", r"there is no flag --model.buffer.size .*with --model.buffer.kind span-buffer"),
    (f"{TRAIN} --model.dual.no-direct", r"there is no flag --model.dual.no-direct .*comes with --model.dual.kind dual"),
    (
        f"{TRAIN} --model.core.mask",
        r"there is no flag --model.core.mask .*comes with --model.core.kind dnc or --model.core.kind mdm",
    ),
    (f"{TRAIN} --model.bufer.size 5", r"no flag --model.bufer.size .*; " + HELP.format("train RECIPE")),
    (f"{TRAIN} --resu", r"no flag --resu \(did you mean '--resume'\?\)"),
    (f"{TRAIN} --no-resume", r"no flag --no-resume \(did you mean '--resume'\?\)"),
    (f"{TRAIN} -x", r"there is no flag -x"),
    (f"{EVALUATE} --targets 5", r"no flag --targets here, but `examine` has it; " + HELP.format("evaluate")),
    (f"{EVALUATE} --jso", r"no flag --jso \(did you mean '--json'\?\); " + HELP.format("evaluate")),
    (f"{EVALUATE} --spl test", r"no flag --spl \(did you mean '--split'\?\)"),
    (f"{EXAMINE} --max 5", r"there is no flag --max"),
    (
        "data show recall --recall.casts 3",
        r"no flag --recall.casts \(did you mean '--recall.cast'\?\); " + HELP.format("data show"),
    ),
    ("data show recall --recall", r"there is no flag --recall; " + HELP.format("data show")),
    ("data show recall --recall.cast 201", r"a cast of 201 cannot be drawn from 200 entities; lower text.recall.cast"),
    ("data show recall --recall.cast many", r"--recall.cast must be a whole number, not 'many'"),
    ("data show recall --recall.mentions nan", r"mentions must be at least 0 and at most 0.999, not nan"),
    (f"{RECALL} --text.recall.mentions 0.9 --text.recall.facts 0.1", r"0.9 and --text.recall.facts 0.1 leave no room"),
    (
        f"{RECALL} --text.minimum-count 2",
        r"the vocabulary of the corpus recall is fixed; set --text.minimum-count to 1",
    ),
    (f"{RECALL} --text.recall.new-each-epoch yes", r"takes no value.*give .*--text.recall.no-new-each-epoch"),
    (f"{RECALL} --text.recall.documents 1 --text.recall.length 5", r"too few for batch size 3"),
    (
        f"{TRAIN} --text.algorithm.longest 5",
        r"text.algorithm.longest is for the corpus copy or .*, and the corpus is good.txt; leave it out, or choose another",
    ),
    (
        "train ntm-copy --corpus good.txt --text.algorithm.longest 5 --out new",
        r"text.algorithm.longest is for the corpus copy or .*, and the corpus is good.txt; leave it out, or choose another",
    ),
    (
        "train ntm-copy --text.algorithm.repeats 3 --out new",
        r"text.algorithm.repeats is for the corpus repeat-copy, and the corpus is copy; leave it out",
    ),
    (
        "train ntm-copy --model.core.reset_token 999 --out new",
        r"--model.core.reset-token is 999, and the ids of 259 types end at 258; .*or none",
    ),
    ("train ntm-copy --model.core.layers 20000000 --out new", r"lower --model.core.layers \(20000000\)"),
    ("train ntm-copy --model.core.layers 10 9999999 --out new", r"lower --model.core.layers \(10 9999999\)"),
    (
        f"{RECALL} --text.algorithm.bits 5",
        r"text.algorithm.bits is for the corpus copy or .*, and the corpus is recall",
    ),
    (f"{TRAIN} --text.recall.facts 0.1", r"text.recall.facts is for the corpus recall, and the corpus is good.txt"),
    ("data show good.txt --algorithm.no-new-each-epoch", r"text.algorithm.new_each_epoch is for the corpus copy or "),
    ("data show good.txt --text.lowercas", r"did you mean '--lowercase'"),
    ("data show good.txt --corpus good.txt", r"there is no flag --corpus"),
    (f"{EVALUATE} --tyro-write-completion bash here", r"there is no flag --tyro-write-completion"),
    (f"{EVALUATE} --tyro_print_completion fsh", r"there is no flag --tyro-print-completion"),
    # Switches.
    (
        f"{TRAIN} --training.answer-loss-only",
        r"set training.answer_loss_only to false \(--training.no-answer-loss-only\), or take copy or",
    ),
    (f"{RECALL} --text.lowercase", r"recall is fixed; set text.lowercase to false \(--text.no-lowercase\)"),
    (f"{TRAIN} --model.core.output 5", r"not 5; or set model.head.tied to false \(--model.head.no-tied\)"),
    # Values.
    (f"{TRAIN} --training.epochs", r"--training.epochs needs a value: a whole number"),
    (f"{TRAIN} --training.epochs --resume", r"--training.epochs needs a value: a whole number"),
    *[
        (f"{TRAIN} --training.epochs {v}", r"--training.epochs must be a whole number, not")
        for v in ("nan", "inf", "-inf")
    ],
    *[
        (f"{TRAIN} --training.epochs {v}", r"--training.epochs must be a whole number, not")
        for v in ("1.5", "1e3", "x")
    ],
    (f"{TRAIN} --training.epochs=", r"--training.epochs must be a whole number, not ''"),
    (f"{TRAIN} --training.epochs 0", r"training.epochs must be at least 1, not 0"),
    *[(f"{TRAIN} --training.learning-rate {v}", rf"must be above 0.*, not {v}") for v in ("nan", "inf", "-inf", "-1")],
    (f"{TRAIN} --training.learning-rate fast", r"--training.learning-rate must be a number, not 'fast'"),
    (
        f"{TRAIN} --model.core.layer-dropout 1",
        r"^--model.core.layer-dropout must be at least 0 and at most 0.999, not 1",
    ),
    (f"{TRAIN} --model.core.output some", r"--model.core.output must be a whole number or none, not 'some'"),
    (f"{TRAIN} --text.maximum-size 1", r"^--text.maximum-size must be at least 2, not 1"),
    (f"{TRAIN} --seed -1", r"seed must be at least 0 .*, not -1"),
    (
        f"{TRAIN} --training.optimizer sdg",
        r"must be one of sgd, adam, adamw, nadam, not 'sdg' \(did you mean 'sgd'\?\)",
    ),
    (f"{TRAIN} --model.head.kind mixtur", r"softmax, mixture, not 'mixtur' \(did you mean 'mixture'\?\)"),
    (f"{TRAIN} --model.head.kind=mixtur", r"softmax, mixture, not 'mixtur' \(did you mean 'mixture'\?\)"),
    (f"{TRAIN} --training.partial-shuffle yes", r"takes no value.*give .*--training.no-partial-shuffle"),
    (f"{TRAIN} --training.partial-shuffle=true", r"takes no value.*give .*--training.no-partial-shuffle"),
    (f"{TRAIN} --training.decay-epochs 3 x", r"--training.decay-epochs must be a whole number, not 'x'"),
    (f"{TRAIN} --accept everything", r"--accept takes config, corpus or metrics, not everything"),
    (f"{TRAIN} --resume --overwrite", r"--resume and --overwrite cannot be combined; remove one"),
    ("demo --resume --overwrite", r"--resume and --overwrite cannot be combined; remove one"),
    (f"{TRAIN} --text.tokenizer wrods", r"unknown tokenizer 'wrods'.*use auto, words"),
    (f"{TRAIN} --model.core.output 5", r"model.core.output must be 7 or none, not 5"),
    (f"{EXAMINE} --json yes", r"--json takes no value"),
    (f"{EVALUATE} --precision float16", r"must be one of auto, float32, bfloat16, not 'float16' \(did you mean"),
    (f"{EVALUATE} --batch-size 0", r"^--batch-size must be at least 1, not 0"),
    (f"{EXAMINE} --targets 1", r"targets must be at least 2, not 1"),
    (f"{EXAMINE} --maximum-context 0", r"^--maximum-context must be at least 1, not 0"),
    (f"{EXAMINE} --context 1", r"context must be at least 2, not 1"),
    (f"{EXAMINE} --near 0", r"near must be at least 1, not 0"),
    (f"{EXAMINE} --seed -1", r"seed must be at least 0, not -1"),
    *[(f"{EXAMINE} --memory {v}", rf"memory must be above 0, not {v}") for v in ("nan", "0.0")],
    *[(f"{EXAMINE} --memory {v}", rf"memory must be above 0 and finite, not {v}") for v in ("inf", "-inf")],
    (f"{GENERATE} --tokens 0", r"tokens must be at least 1, not 0"),
    *[(f"{GENERATE} --temperature {v}", rf"temperature must be at least 0.*, not {v}") for v in ("nan", "inf", "-1.0")],
    (f"{GENERATE} --top-k 0", r"^--top-k must be at least 1, not 0"),
    *[(f"{GENERATE} --top-p {v}", rf"^--top-p must be above 0 and at most 1, not {v}") for v in ("nan", "0.0", "1.5")],
    (f"{GENERATE} --top-k many", r"--top-k must be a whole number or none, not 'many'"),
    (f"{GENERATE} --seed -1", r"seed must be at least 0 .*, not -1"),
    (f"{GENERATE} --stop=", r"a text to stop at must not be empty"),
    (f"{GENERATE} --stop", r"--stop needs a value: text"),
    (f"{GENERATE} --stop . --stop", r"--stop needs a value: text"),
    (f"{GENERATE} --prompt", r"--prompt needs a value: text$"),
    (f"{GENERATE} --prompt --tokens 3", r"--prompt needs a value: text$"),
    (f"{GENERATE} --prompt -dash", r"needs a value: text; one that begins with a hyphen is given as --prompt=-dash$"),
    (f"{GENERATE} --data-dir x", r"there is no flag --data-dir"),
    (f"{EXPLAIN} --words 0", r"words must be at least 1, not 0"),
    (f"{EXPLAIN} --words 2001", r"a passage has 1 to 2,000 words, not 2,001; choose fewer with --words"),
    (f"{EXPLAIN} --at -1", r"at must be at least 0, not -1"),
    (f"{EXPLAIN} --context -1", r"context must be at least 0, not -1"),
    (f"{EXPLAIN} --top 101", r"top must be at least 0 and at most 100, not 101"),
    (f"{EXPLAIN} --at 100000", r"--at 100000 is beyond the test text, which has [\d,]+ tokens"),
    (f"{EXPLAIN} --text good.txt --split test", r"--text and --split exclude each other; give one"),
    ("reader audit run --places 0", r"places must be at least 1, not 0"),
    ("data show good.txt --minimum-count 0", r"^--minimum-count must be at least 1, not 0"),
    # Names.
    ("train demoo", r"no recipe 'demoo' \(did you mean 'demo'\?\); `backstory ls recipes`"),
    ("recipe check demoo", r"no recipe 'demoo' \(did you mean 'demo'\?\); `backstory ls recipes`"),
    ("recipe copy demoo new.yaml", r"no recipe 'demoo' \(did you mean 'demo'\?\); `backstory ls recipes`"),
    (f"{TRAIN} --corpus ptbb", r"unknown corpus 'ptbb' \(did you mean 'ptb'\?\); give one of"),
    (f"{TRAIN} --corpus missing.txt", r"no file or folder 'missing.txt'; give"),
    ("data show missing.txt", r"no file or folder 'missing.txt'; give"),
    ("data show ptbb", r"unknown corpus 'ptbb' \(did you mean 'ptb'\?\)"),
    ("data prepare ptbb", r"unknown corpus 'ptbb' \(did you mean 'ptb'\?\)"),
    ("evaluate nowhere", r"there is no run folder nowhere; train one with `backstory train"),
    ("evaluate rum", r"there is no run folder rum \(did you mean 'run'\?\); train one with `backstory train"),
    ("report rum", r"rum does not exist \(did you mean 'run'\?\); name the folder of a run"),
    ("data show god.txt", r"no file or folder 'god.txt' \(did you mean 'good.txt'\?\); give"),
    ("read run --text good.txt", r"^there is no flag --text; it reads standard input: `backstory read RUN < FILE`$"),
    ("evaluate nowhere good.txt", r"there is no run folder nowhere; train one"),
    ("generate nowhere", r"there is no run folder nowhere; train one"),
    (f"{GENERATE} --reader statik", r"no reader 'statik' \(did you mean 'static'\?\)"),
    ("generate stopped", r"stopped has no checkpoint .*--resume"),
    ("examine nowhere", r"there is no run folder nowhere; train one"),
    ("reader audit nowhere", r"there is no run folder nowhere; train one"),
    ("report nowhere", r"nowhere does not exist; name the folder of a run"),
    (f"{EVALUATE} --reader statik", r"no reader 'statik' \(did you mean 'static'\?\); `backstory ls readers`"),
    (
        f"{EXAMINE} --experiment trunc",
        r"no experiment 'trunc' \(did you mean 'truncate'\?\); `backstory ls experiments`",
    ),
    (f"{EXAMINE} --by freqency", r"no split of the targets 'freqency' \(did you mean 'frequency'\?\)"),
    (
        f"{EXAMINE} --experiment shuffle --maximum-context 30",
        r"contexts of 300 tokens are longer than the longest, 30; raise --maximum-context or lower --context",
    ),
    (
        f"{EXAMINE} --experiment drop --maximum-context 30 --context 20 --tagger gold",
        r"there is no file of tags for the valid text of .*; use the tagger pattern",
    ),
    (f"{TRAIN} --model.embedding.initial 1e300", r"initial must be above 0 and at most 1e\+30, not 1e\+300"),
    (f"{EXAMINE} --by tag --maximum-context 30 --tagger golden", r"unknown tagger 'golden'.*use auto, gold, pattern"),
    (f"{EXAMINE} --maximum-context 30 --tagger golden", r"unknown tagger 'golden'.*use auto, gold, pattern"),
    (f"{EXAMINE} --maximum-context 99999 --memory 1e300", r"too few for contexts of 99,999;"),
    (
        f"{EXAMINE} --experiment drop-distant --maximum-context 30 --context 20",
        r"a context of 20 has nothing distant beyond 50; raise --context or lower --near",
    ),
    (
        f"{EXAMINE} --experiment drop --maximum-context 30 --context 4 --tagger pattern",
        r"a context of 4 leaves nothing to change beyond 5; raise --context|textblob",
    ),
    (f"{EXAMINE} run --maximum-context 30 --out file", r"cannot write to file; choose another folder with --out"),
    (f"{EXAMINE} nowhere --maximum-context 30", r"there is no run folder nowhere; train one"),
    (f"{EXPLAIN} --reader statik", r"no reader 'statik' \(did you mean 'static'\?\); `backstory ls readers`"),
    (f"{EXPLAIN} --text good.txt --reader statik", r"no reader 'statik' \(did you mean 'static'\?\)"),
    (
        "explain surprise run",
        r"no explanation 'surprise' \(did you mean 'surprisal'\?\); `backstory ls explanations` lists",
    ),
    ("explain reading", r"^name the run's folder: `backstory explain reading RUN`$"),
    ("explain reading run --reader static", r"static would be compared with itself; name two different readers"),
    ("explain --words 9 reading run", r"`reading` has flags of its own; write it right after `backstory explain`$"),
    ("explain reading run --reader statik", r"no reader 'statik' \(did you mean 'static'\?\); `backstory ls readers`"),
    ("explain reading run --passage x", r"--passage must be a whole number, not 'x'"),
    ("explain reading run --block 0", r"block must be at least 1, not 0"),
    ("explain reading run --against other", r"other is not a run folder"),
    ("explain reading run --against other --at 9999", r"--at 9999 is beyond the test text, which has"),
    (
        "explain reading run --against other --passage 9999",
        r"--passage 9999 is outside the stretch, which has tokens 0 to",
    ),
    ("explain reading run --against other --text good.txt --split test", r"--text and --split exclude each other"),
    ("explain reading run --against other --words 2001", r"a passage has 1 to 2,000 words, not 2,001"),
    ("explain surprisal .", r"^\. is a folder of runs; name one of them, such as \S+$"),
    ("explain surprisal nowhere", r"there is no run folder nowhere; train one"),
    (f"{EXPLAIN} --split tset", r"no split 'tset' \(did you mean 'test'\?\); there are train, valid, test"),
    (f"{EXPLAIN} --against statik", r"'statik' is neither a reader \(did you mean 'static'\?\) nor a run folder"),
    (f"{EXPLAIN} --against other", r"other is not a run folder"),
    ("explain buffer run", r"^run has no span buffer; train one with --model.buffer.kind span-buffer$"),
    ("explain memory run", r"^run has no external memory; train one with --model.core.kind ntm, dnc or mdm$"),
    ("explain bufer run", r"no explanation 'bufer' \(did you mean 'buffer'\?\)"),
    ("explain buffer run --at 100000", r"--at 100000 is beyond the test text, which has [\d,]+ tokens"),
    (f"{EXPLAIN} --layer surprise", r"no layer 'surprise' \(did you mean 'surprisal'\?\)"),
    (f"{EVALUATE} --split tset", r"no split 'tset' \(did you mean 'test'\?\); there are train, valid, test"),
    (f"{EXAMINE} --split vaild", r"no split 'vaild' \(did you mean 'valid'\?\)"),
    (f"{EVALUATE} --device gpu", r"unknown device 'gpu'; use auto, cpu or cuda"),
    (f"{TRAIN} --training.device gpu", r"unknown device 'gpu'; use auto, cpu or cuda"),
    (f"{TRAIN} --training.device meta", r"device 'meta' is not available here; use auto or cpu"),
    ("sweep", r"name an action: `backstory sweep \{run, show\}"),
    ("sweep rum demo", r"no `backstory sweep rum` \(did you mean 'run'\?\)"),
    ("sweep run", r"name a recipe: `backstory sweep run RECIPE --space SPACE`; `backstory ls recipes`"),
    ("sweep run --space demo", r"the recipe comes first: `backstory sweep run RECIPE --space"),
    ("sweep run demo", r"name a space: `backstory sweep run demo --space SPACE`; `backstory ls spaces`"),
    ("sweep run demo --space dem", r"no space 'dem' \(did you mean 'demo'\?\); `backstory ls spaces`"),
    ("sweep run demo --space missing.yaml", r"cannot read missing.yaml: No such file"),
    ("sweep run demo --space unknown.yaml", r"unknown.yaml: unknown key 'training'"),
    ("sweep run demo --space list.yaml", r"list.yaml: the file must be a mapping"),
    ("sweep run demo --space broken.yaml", r"broken.yaml is not valid YAML at line"),
    ("sweep run demo --space space.yaml", r"space.yaml: training.epochs must be at least 1, not 0"),
    ("sweep run nodemo --space demo", r"there is no recipe 'nodemo' \(did you mean 'demo'"),
    ("sweep run demo --space demo --trials 0", r"trials must be at least 1, not 0"),
    (
        "sweep run demo --space demo --trial 3",
        r"no flag --trial \(did you mean '--trials'\?\); " + HELP.format("sweep run RECIPE"),
    ),
    ("sweep run demo --space demo --processes 0", r"processes must be at least 1, not 0"),
    ("sweep run demo --space demo --prune-from 0", r"^--prune-from must be at least 1, not 0"),
    (
        "sweep run demo --space demo --training.epoch 2",
        r"no flag --training.epoch \(did you mean '--training.epochs'\?\)",
    ),
    (
        "sweep run demo --space demo --training.learning-rate 2",
        r"--training.learning-rate is set by a flag and searched by the space; remove one",
    ),
    ("sweep run demo --space demo --training.device cuda:9", r"cuda:9"),
    ("sweep run demo --space demo --corpus missing.txt", r"missing.txt"),
    ("sweep run demo --space demo --out file", r"file is a file; choose another folder with --out"),
    ("sweep run demo --space demo --out other", r"other holds something other than a sweep; choose another folder"),
    (
        "sweep run demo --space demo --out run",
        r"run/result.json holds a result of kind training, which would be lost; choose another folder",
    ),
    ("sweep show", r"^name the sweep's folder: `backstory sweep show FOLDER`$"),
    ("sweep show run", r"run holds no sweep; `backstory sweep run RECIPE --space SPACE --out FOLDER` makes one"),
    ("sweep show missing", r"missing is not there; `backstory sweep run"),
    ("sweep show file", r"file is a file; `backstory sweep run"),
    ("sweep show run --best 0", r"best must be at least 1, not 0"),
    ("sweep show run --html there.tsv", r"there.tsv exists and is not a page of Backstory"),
    ("reproduce bass", r"no suite 'bass' \(did you mean 'base'\?\); `backstory ls suites`"),
    ("reproduce missing.yaml", r"cannot read missing.yaml: No such file"),
    ("reproduce unknown.yaml", r"unknown.yaml: unknown key 'training'"),
    ("reproduce base --scale smal", r"--scale must be one of small, full, not 'smal' \(did you mean 'small'\?\)"),
    ("reproduce base --processes 0", r"processes must be at least 1, not 0"),
    ("reproduce base --only moss", r"no system 'moss' \(did you mean 'mos'\?\); there are awd-lstm, mos"),
    ("reproduce base --only mos-wikitext-2", r"no system 'mos-wikitext-2' at this scale; there are awd-lstm"),
    (
        "reproduce base --out other",
        r"other holds something other than a reproduction; choose another folder with --out",
    ),
    (
        "reproduce base --out run",
        r"run/result.json holds a result of kind training, which would be lost; choose another folder",
    ),
    ("reproduce base --out file", r"cannot write to file; choose another folder with --out"),
    ("reproduce base --data-dir hollow", r"hollow"),
    # Runs that are none, or not yet.
    ("evaluate stopped", r"stopped has no checkpoint .*--resume"),
    ("examine stopped", r"stopped has no checkpoint .*--resume"),
    ("report other", r"other has no results; run `backstory train` or `backstory evaluate` first"),
    ("report file", r"file is not a folder; name the folder of a run"),
    (EXAMINE, r"too few for contexts of 1,000; choose a longer split or a smaller --maximum-context, such as \d+$"),
    # Texts.
    (f"{TRAIN} --corpus empty.txt", r"empty.txt is empty; give a file that holds text"),
    (f"{TRAIN} --corpus blank.txt", r"blank.txt is empty; give a text that holds words"),
    (f"{TRAIN} --corpus hollow", r"the folder hollow holds no files; give a folder of text files"),
    (f"{TRAIN} --corpus short.txt", r"has 5 tokens, too few for batch size 3; it needs 6: use a smaller batch size"),
    (f"{TRAIN} --corpus binary.bin", r"binary.bin is binary data; give text"),
    (f"{TRAIN} --corpus nul.txt", r"nul.txt is binary \(a NUL at byte [\d,]+\); give a text file"),
    (f"{TRAIN} --corpus latin.txt", r"latin.txt is not UTF-8 text \(byte 7\); convert it"),
    (f"{EXPLAIN} --text empty.txt", r"^empty.txt is empty; give some words"),
    (f"{EXPLAIN} --text missing.txt", r"cannot read missing.txt: No such file"),
    (f"{EXPLAIN} --text hollow", r"the folder hollow holds no files; give a folder of text files"),
    (f"{EXPLAIN} --text latin.txt", r"latin.txt is not UTF-8 text \(byte 7\)"),
    (f"{EXPLAIN} --text nul.txt", r"nul.txt is binary \(a NUL at byte [\d,]+\)"),
    ("data show latin.txt", r"latin.txt is not UTF-8 text \(byte 7\); convert it"),
    (f"{EVALUATE} missing.txt", r"cannot read missing.txt: No such file or directory; check its path"),
    (f"{EVALUATE} valid", r"there is no file 'valid'; `--split valid` reads that split"),
    (f"{EVALUATE} other", r"100.0% of the words of other are outside the vocabulary .*--allow-unknown"),
    (f"{EVALUATE} good.txt --split valid", r"a text has no splits; remove --split, or the text"),
    (f"{EVALUATE} empty.txt", r"empty.txt is empty; give some words"),
    (f"{EVALUATE} nul.txt", r"nul.txt is binary \(a NUL at byte [\d,]+\)"),
    (f"{EVALUATE} latin.txt", r"latin.txt is not UTF-8 text \(byte 7\)"),
    (f"{EVALUATE} --per-token tokens.csv", r"tokens.csv must end in one of .jsonl, .tsv, .jsonl.gz, .tsv.gz"),
    (f"{EVALUATE} --per-token nowhere/tokens.tsv", r"cannot write nowhere/tokens.tsv: nowhere is not a folder"),
    (f"{EVALUATE} --per-token tokens.tsv --batch-size 2", r"needs one row; use --batch-size 1"),
    (f"{EVALUATE} --per-token there.tsv", r"there.tsv exists; choose another file or --overwrite"),
    # Recipes of one's own.
    ("train missing.yaml", r"cannot read missing.yaml: No such file"),
    ("train unknown.yaml", r"unknown.yaml: unknown key 'training.epoch' \(did you mean 'training.epochs'\?\)"),
    ("recipe check unknown.yaml", r"unknown.yaml: unknown key 'training.epoch' \(did you mean 'training.epochs'\?\)"),
    ("recipe check broken.yaml", r"broken.yaml is not valid YAML at line \d; correct it"),
    ("recipe check float.yaml", r"training.epochs must be a whole number, not 1.5"),
    ("recipe check text.yaml", r"training.partial_shuffle must be true or false, not 'yes'"),
    ("recipe check nan.yaml", r"training.learning_rate must be above 0.*, not nan"),
    ("recipe check list.yaml", r"list.yaml: the file must be a mapping of settings, not \[1\]"),
    ("recipe check latin.yaml", r"cannot read latin.yaml: it is not UTF-8 text"),
    ("recipe check ./other", r"cannot read other: Is a directory"),
    ("recipe copy demo mine.yaml", r"mine.yaml exists; choose another file"),
    ("recipe copy run new.txt", r"must end in .yaml; use new.txt.yaml"),
    ("recipe copy demo new.txt", r"must end in .yaml; use new.txt.yaml"),
    (
        "recipe copy hf:gpt2 new.yaml",
        r"hf:gpt2 is a model of Hugging Face, .*, not trained: `backstory evaluate hf:gpt2 TEXT`$",
    ),
    (
        f"{TRAIN} --out hf:new",
        r"^hf:new is the name of a model of Hugging Face \(hf:...\); choose another folder with --out$",
    ),
    ("sweep run demo --space demo --out hf:new", r"^hf:new is the name of a model of Hugging Face"),
    ("recipe copy demo file/new.yaml", r"cannot write file/new.yaml: Not a directory"),
    ("recipe copy demo nowhere/new.yaml", r"cannot write nowhere/new.yaml: No such file"),
    # Places.
    (f"{TRAIN} --out file", r"file is a file; choose another folder with --out"),
    (f"{TRAIN} --out file/below", r"cannot write to file; choose another folder with --out"),
    (
        f"{TRAIN} --out other",
        r"other is not empty, and holds no run; empty it, or choose another folder with --out",
    ),
    (f"{TRAIN} --out other --overwrite", r"other holds something other than a run; .*choose another folder with --out"),
    (f"{TRAIN} --out other --resume", r"other holds no run to resume; choose another folder with --out"),
    (
        "train ./nowhere --resume",
        r"there is no run folder nowhere; train one with `backstory train RECIPE --out nowhere`",
    ),
    ("train --resume ./nowhere", r"there is no run folder nowhere; train one with `backstory train RECIPE"),
    ("train --resume runs/none", r"there is no run folder runs/none; train one with `.* --out runs/none`$"),
    ("train --out nowhere --resume", r"there is no run folder nowhere; train one with `backstory train RECIPE"),
    ("train --resume --out=other", r"./other is not a run folder; train one with `backstory train RECIPE"),
    ("train ./other --resume", r"./other is not a run folder; train one with `backstory train RECIPE --out FOLDER`"),
    (f"{TRAIN} --out nowhere --resume", r"nowhere holds no run to resume; leave --resume out"),
    (f"{TRAIN} --out run", r"run is not empty; use --resume to go on, --overwrite to start again, or another --out"),
    (f"{TRAIN} --out run --resume", r"run was trained with other settings \(.*text.corpus.*--accept config"),
    (f"{EXAMINE} --maximum-context 9 --out file", r"cannot write to file; choose another folder with --out"),
    (f"{EXAMINE} --maximum-context 9 --out file/below", r"cannot write to file; choose another folder with --out"),
    (f"{EXPLAIN} --out file", r"cannot write to file; choose another folder with --out"),
    (f"{EXPLAIN} --html other", r"cannot write other: it is a folder; choose another place for the page"),
    (f"{EXPLAIN} --html nowhere/p.html", r"nowhere is not a folder that can be written to; choose another place"),
    (
        "report run --out file/page.html",
        r"cannot write file/page.html: file is not a folder that can be written to; choose",
    ),
    ("report run --out other", r"cannot write other: it is a folder; choose another place"),
    (
        "report run --out there.tsv",
        r"there.tsv exists and is not a page of Backstory; choose another place .* or --overwrite$",
    ),
    (
        f"{EXPLAIN} --html there.tsv",
        r"there.tsv exists and is not a page of Backstory; choose another .* or --overwrite$",
    ),
    # An output among the files of a run.
    *(
        (command, rf"{path} is among the files of the run run; choose another place$")
        for command, path in (
            ("evaluate run --out run/checkpoints", "run/checkpoints"),
            ("evaluate run --out run/readers", "run/readers"),
            ("evaluate run --per-token run/metrics.jsonl --overwrite", "run/metrics.jsonl"),
            ("evaluate run --proof run/run.json --overwrite", "run/run.json"),
            (f"{EXPLAIN} --html run/checkpoints/page.html", "run/checkpoints/page.html"),
            ("report run --out run/config.yaml --overwrite", "run/config.yaml"),
            ("report run --out page.html --figures run/checkpoints", "run/checkpoints"),
            ("examine run --out run/checkpoints/new", "run/checkpoints/new"),
            ("compress good.txt --model run --out run/config.yaml --overwrite", "run/config.yaml"),
            ("export run --out run/checkpoints/new", "run/checkpoints/new"),
            ("read run --session run/checkpoints/new", "run/checkpoints/new"),
            (f"{TRAIN} --out run/checkpoints/new", "run/checkpoints/new"),
        )
    ),
    # The right words in the wrong order or place.
    ("examine truncate run", r"^there is no run folder truncate; an experiment is given as `--experiment truncate`$"),
    ("evaluate run/checkpoints", r"^run/checkpoints is a folder inside the run run; name the run$"),
    ("reader tune cache run", r"^a reader is given as a flag: `backstory reader tune run --reader cache`$"),
    ("report run page.html", r"^page.html is not a run folder; the file to write is given as `--out page.html`$"),
    ("export run exported", r"^unexpected argument 'exported'; the folder to write is given as --out exported$"),
    ("train demo runs/new", r"^unexpected argument 'runs/new'; the folder to write is given as --out runs/new$"),
    ("demo new", r"^unexpected argument 'new'; the folder to write is given as --out new$"),
    ("tune run", r"^there is no command 'tune'; it is `backstory reader tune`$"),
    ("show ptb", r"^there is no command 'show'; it is `backstory sweep show` or `backstory data show` or "),
    ("recipe check good.txt", r"^good.txt is not a recipe: the file of a recipe ends in .yaml or .yml$"),
    ("reproduce good.txt", r"^good.txt is not a suite: the file of a suite ends in .yaml or .yml$"),
    ("evaluate run --reader cache=0.5", r"^reader cache=0.5: settings follow a colon, as in cache:theta=0.5"),
    # Someone with a text.
    (
        "train good.txt",
        r"^good.txt is a text, and the recipe comes first: `backstory train own-text --corpus good.txt`$",
    ),
    ("train other", r"^other is a text, and the recipe comes first: `backstory train own-text --corpus other`$"),
    ("train demo good.txt", r"unexpected argument 'good.txt'; a text is given as --corpus good.txt$"),
    ("train demo --text good.txt", r"no flag --text \(did you mean '--corpus'\?\)"),
    ("train demo --vocab-size 100", r"no flag --vocab-size \(did you mean '--text.maximum-size'\?\)"),
    ("train demo --output new", r"no flag --output \(did you mean '--out'\?\)"),
    ("train demo --seq-len 20", r"no flag --seq-len \(did you mean '--segment'\?\)"),
    ("train demo --num-layers 2", r"no flag --num-layers \(did you mean '--layers'\?\)"),
    ("train demo --core lstmm", r"--core must be one of lstm, .*, not 'lstmm' \(did you mean 'lstm'\?\)"),
    ("train demo --gpu 0", r"no flag --gpu \(did you mean '--device'\?\)"),
    ("train demo --corpus good.txt --epochs 2 3", r"unexpected argument '3'; the command is `backstory train RECIPE`"),
    ("evaluate good.txt", r"^good.txt is a file; name the folder of a run first, and a text after it$"),
    ("evaluate run/result.json", r"^run/result.json is a file; name the folder of a run first, run$"),
    ("evaluate run --text good.txt", r"there is no flag --text"),
    ("generate run once", r"unexpected argument 'once'; put the prompt in quotes: `backstory generate RUN --prompt"),
    ("generate run --prompt once upon", r"unexpected argument 'upon'; put the prompt in quotes"),
    ("generate run --max-new-tokens 5", r"no flag --max-new-tokens \(did you mean '--tokens'\?\)"),
    ("generate run --temp 1", r"no flag --temp \(did you mean '--temperature'\?\)"),
    ("data good.txt", r"no `backstory data good.txt` \(did you mean `backstory data show good.txt`\?\)"),
    ("ls other", r"`backstory ls runs other` lists the runs in a folder"),
    ("ls models lstm", r"unexpected argument 'lstm'; only `backstory ls runs` takes a folder"),
    ("ls runs nowhere", r"nowhere does not exist; name a folder of runs"),
    ("report run -o page.html", r"no flag -o \(did you mean '--out'\?\)"),
    (
        "completion tcsh",
        r"^SHELL must be one of bash, zsh, fish, not 'tcsh'; the command is `backstory completion SHELL`$",
    ),
    ("help trian", r"there is no command 'trian' \(did you mean 'train'\?\)"),
    # Someone with a model of Hugging Face.
    ("evaluate gpt2", r"there is no run folder gpt2; .*; a model of Hugging Face is named hf:gpt2$"),
    ("examine big/model", r"there is no run folder big/model; .*; a model of Hugging Face is named hf:big/model$"),
    ("evaluate HF:gpt2 good.txt", r"^HF:gpt2 is a model of Hugging Face, which can only be read \(hf:...\)"),
    ("export hf:gpt2", r"^hf:gpt2 is a model of Hugging Face, which can only be read .*; name a run trained here$"),
    ("export nowhere", r"there is no run folder nowhere; train one with `backstory train RECIPE --out nowhere`$"),
    (f"{TRAIN} --init-from nowhere", r"there is no run folder nowhere; train one with `.* --out nowhere`$"),
    (f"{TRAIN} --init-from hf:gpt2", r"^hf:gpt2 is a model of Hugging Face, which can only be read"),
    ("examine hf:gpt2 good.txt", r"^good.txt is a file, and `examine` takes runs: give it as --text good.txt$"),
    ("examine run good.txt", r"^good.txt is a file, .* takes runs: give it as --text good.txt$"),
    ("examine run --text - --workers 2", r"^--text - and --workers cannot be combined, as standard input is read once"),
    ("report hf:gpt2", r"^hf:gpt2 is a model; name the folder of its results, which --out kept$"),
    ("evaluate elsewhere good.txt", r"^elsewhere is a model of Hugging Face, .*; write hf: before it: hf:elsewhere$"),
    ("compress good.txt --model elsewhere", r"^elsewhere is a model .*; write hf: before it: hf:elsewhere$"),
    ("evaluate run --reader ensemble:runs=elsewhere", r"run of the ensemble .*: elsewhere is .*; write hf: before it"),
    ("export elsewhere", r"^elsewhere is a model of Hugging Face, which can only be read .*; name a run trained here$"),
    (f"{TRAIN} --init-from elsewhere", r"^elsewhere is a model of Hugging Face, which can only be read"),
    (
        "recipe copy elsewhere new.yaml",
        r"^elsewhere is a model of Hugging Face, .*`backstory evaluate hf:elsewhere TEXT`$",
    ),
    ("train ./elsewhere --resume", r"^elsewhere is a model of Hugging Face, which can only be read"),
    (
        "train elsewhere",
        r"^elsewhere is a .*, which is read here, not trained: `backstory evaluate hf:elsewhere TEXT`$",
    ),
    ("report elsewhere", r"^elsewhere is a model of Hugging Face; name the folder of its results, which --out kept$"),
    ("evaluate run --dtype float16", r"^--dtype is for models from elsewhere \(hf:...\); remove it to read run$"),
    (f"{TRAIN} --dtype float16", r"no flag --dtype \(did you mean '--precision'\?\)"),
    # Someone with the paper beside the code.
    ("train ptb", r"^ptb is a corpus, not a recipe: `backstory train demo --corpus ptb`$"),
    ("train ptb-small.yaml", r"^there is no file ptb-small.yaml; the packaged recipe is called ptb-small$"),
    ("train ptb_small", r"no recipe 'ptb_small' \(did you mean 'ptb-small'\?\)"),
    ("recipe ptb-small", r"\(did you mean `backstory recipe show ptb-small`\?\); there is show, copy, check"),
    ("sweep demo", r"\(did you mean `backstory sweep run demo`\?\); there is run, show"),
    ("sweep run demo --space demo --n-trials 3", r"no flag --n-trials \(did you mean '--trials'\?\)"),
    ("examine run truncate", r"^there is no run folder truncate; an experiment is given as `--experiment truncate`$"),
    ("reproduce base --only lstm", r"no system 'lstm' \(did you mean 'awd-lstm'\?\)"),
    ("reproduce base --known nowhere.json", r"cannot read nowhere.json: No such file"),
    # Someone with a stream of text.
    ("read run good.txt", r"unexpected argument 'good.txt'; it reads standard input: `backstory read RUN < good.txt`$"),
    ("read run --resume", r"--resume needs a saved session; say which with --session"),
    ("read run --session other", r"other holds something other than a session; choose another folder with --session"),
    ("read run --session new --resume", r"new holds no session to resume; leave --resume out to begin one"),
    ("read run --reader cache:window=0", r"reader cache: window must be at least 1, not 0"),
    ("read run --split test", r"there is no flag --split"),
    (
        "generate run --session nowhere",
        r"nowhere holds no session; begin one with `backstory read run --session nowhere`",
    ),
    ("evaluate run --reader cache dynamic", r"there is no file 'dynamic'; each reader .* own: `--reader dynamic`$"),
]


@pytest.mark.parametrize("typed, says", MISTAKES, ids=[typed.replace(" ".join(SMALL), "...") for typed, _ in MISTAKES])
def test_a_mistake_is_one_line_and_nothing_is_written(
    typed: str, says: str, untouched_desk: Path, command_at_untouched_desk: Command
) -> None:
    before = tree(untouched_desk)
    line = command_at_untouched_desk(*typed.split()).mistake()
    assert re.search(says, line), line
    assert tree(untouched_desk) == before
    assert "(required)" not in line and "╭" not in line and "---" not in line


def test_cuda_where_there_is_none(desk: Path, command: Command, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("torch.cuda.is_available", lambda: False)
    before = tree(desk)
    line = command(*TRAIN.split(), "--training.device", "cuda").mistake()
    assert line == "device 'cuda' is not available here; use auto or cpu"
    assert tree(desk) == before


def test_a_disk_that_fails_is_one_line(command: Command, run_copy: Path) -> None:
    (run_copy / "evaluate-test").write_text("in the way")
    assert "run/evaluate-test" in command("evaluate", "run").mistake()


@pytest.mark.parametrize("typed", ["ls models", "evaluate run", "export run --out e", "demo"])
def test_a_folder_that_is_gone_is_one_line(typed: str, command: Command, desk: Path) -> None:
    (desk / "gone").mkdir()
    try:
        os.chdir(desk / "gone")
        (desk / "gone").rmdir()
        assert command(*typed.split()).mistake().startswith("the current folder was deleted; change to")
    finally:
        os.chdir(desk)


@pytest.mark.parametrize("flag", ["--lr", "--model.head.experts", "--completely-else", "-"])
def test_no_flag_is_suggested_where_none_is_near(flag: str) -> None:
    assert nearest_flag(flag, ["--training.epochs", "--model.head.tied", "--model.head.bias", "--out"]) == ""


def test_a_settings_value_is_not_taken_for_a_flag(command: Command, desk: Path) -> None:
    """`-5` and `-inf` are numbers, so that the range is what is wrong with them."""
    assert "must be at least 0" in command("examine", "run", "--seed", "-5").mistake()


def test_a_file_whose_name_begins_with_a_hyphen_is_told(command: Command, run_copy: Path) -> None:
    (run_copy.parent / "-a text").write_text("ann saw the tea\n")
    problem = "there is no flag -a text; a file or folder of that name is given as './-a text'"
    assert problem in command("evaluate", "run", "-a text").mistake()


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["evaluate", "run", "--out", ""], "--out must be a path or none, not ''"),
        (["evaluate", "run", "--out="], "--out must be a path or none, not ''"),
        (["evaluate", ""], "RUN must be a path, not ''; the command is `backstory evaluate RUN [TEXT]`"),
        (["report", "run", ""], "RUN must be a path, not ''; the command is `backstory report RUN...`"),
    ],
)
def test_an_empty_path_is_not_the_present_folder(
    command: Command, run_copy: Path, arguments: list[str], said: str
) -> None:
    before = sorted(Path().iterdir())
    done = command(*arguments)
    assert (done.code, done.err) == (2, f"backstory: {said}\n")
    assert sorted(Path().iterdir()) == before


def test_a_prompt_that_is_the_name_of_a_file_is_told(command: Command, run_copy: Path) -> None:
    (run_copy.parent / "good.txt").write_text("word1 word2")
    done = command("generate", "run", "--prompt", "good.txt", "--tokens", "1")
    assert done.code == 0 and "the prompt is the name of a file; `--prompt - < good.txt` takes its text\n" in done.err


@pytest.mark.parametrize(
    "error", [MemoryError(), RuntimeError("DefaultCPUAllocator: can't allocate memory: you tried to allocate 5 bytes.")]
)
def test_memory_that_runs_out_is_told_in_one_line(
    error: Exception, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def run(arguments: list[str]) -> int:
        raise error

    monkeypatch.setattr("backstory.cli.main._run", run)
    assert main(["read"]) == 2
    assert capsys.readouterr().err.startswith("backstory: there is not enough memory")


@pytest.mark.parametrize(
    ("typed", "said"),
    [
        ("examine run --experiment trunc", r"there is no experiment 'trunc' \(did you mean 'truncate'\?\)"),
        ("evaluate run --split validation", r"there is no split 'validation'.* there are train, valid, test"),
        ("evaluate run --reader cahce", r"there is no reader 'cahce' \(did you mean 'cache'\?\)"),
        ("generate run --reader dynamic+cahce", r"there is no reader 'cahce' \(did you mean 'cache'\?\)"),
        ("explain cahce run", r"there is no explanation 'cahce' \(did you mean 'cache'\?\)"),
        ("report run runs/nosuch", r"runs/nosuch does not exist; name the folder of a run"),
        ("export elsewhere", r"elsewhere is a model of Hugging Face, which can only be read"),
        (f"{TRAIN} --init-from elsewhere", r"elsewhere is a model of Hugging Face, which can only be read"),
    ],
)
def test_a_misspelt_name_is_refused_before_the_work_is_announced(
    typed: str, said: str, command_at_untouched_desk: Command, monkeypatch: pytest.MonkeyPatch
) -> None:
    for library in ("torch", "numpy"):  # as in a process that has just begun
        monkeypatch.delitem(sys.modules, library)
    assert re.search(said, command_at_untouched_desk(*typed.split()).mistake())


@pytest.mark.parametrize(
    ("corpus", "said"),
    [
        ("blank.txt", "the train text of blank.txt is empty"),
        ("same", "validation and test of same are the same text"),
        ("nowhere", "unknown corpus 'nowhere'"),
    ],
)
def test_a_text_is_refused_before_its_training_is_announced(
    corpus: str, said: str, command_at_untouched_desk: Command, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delitem(sys.modules, "torch")  # as in a process that has just begun
    assert command_at_untouched_desk("train", "demo", "--corpus", corpus).mistake().startswith(said)
