"""External plugins: docs/extending.md works as written, and a plugin's error is one line with its place."""

import json
import os
import re
import shlex
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import runs
from tiers import fast_then_full

PAGE = Path(__file__).parent.parent / "docs" / "extending.md"


def page_file(name: str) -> str:
    """Return the code of a file that the page shows."""
    return re.findall(rf"```python {name}\n(.*?)```", PAGE.read_text(encoding="utf-8"), re.S)[0]


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "my_core.py").write_text(page_file("my_core.py"))
    return tmp_path


COMMANDS = """
import json, os, sys
import backstory.api, backstory.api_analysis, backstory.plugins, torch
from backstory.cli.main import main
for line in sys.stdin:
    folder, arguments = json.loads(line)
    child = os.fork()
    if not child:
        os.chdir(folder)
        for place, name in ((1, "stdout"), (2, "stderr")):
            os.dup2(os.open(name, os.O_WRONLY | os.O_CREAT | os.O_TRUNC), place)
        code = main(arguments)
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)
    print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]), flush=True)
"""
"""Runs each command line in a forked process that has already imported the slow modules."""

Backstory = Callable[..., subprocess.CompletedProcess[str]]


@pytest.fixture(scope="module")
def backstory(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Backstory]:
    """The command line in a folder, in processes that know of no plugin yet."""
    environment = {name: value for name, value in os.environ.items() if name != "BACKSTORY_PLUGINS"}
    command, pipe = [sys.executable, "-c", COMMANDS], subprocess.PIPE
    with subprocess.Popen(command, stdin=pipe, stdout=pipe, text=True, env=environment) as running:
        assert running.stdin is not None and running.stdout is not None
        asked, answers = running.stdin, running.stdout

        def call(folder: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
            print(json.dumps([str(folder), arguments]), file=asked, flush=True)
            code = int(answers.readline())
            said = [(folder / name).read_text(encoding="utf-8") for name in ("stdout", "stderr")]
            return subprocess.CompletedProcess(arguments, code, *said)

        yield call
        asked.close()


def test_the_core_of_the_page_is_short_and_keeps_the_contract(backstory: Backstory, folder: Path) -> None:
    code = [line for line in page_file("my_core.py").splitlines() if line.strip()]
    assert len(code) <= 40
    done = backstory(folder, "check", "my_core.py")
    assert (done.returncode, done.stderr) == (0, "")
    assert len(done.stdout.splitlines()) == 14 and "FAILED" not in done.stdout


def test_the_error_of_the_page_names_the_line_of_the_class() -> None:
    line = next(n for n, text in enumerate(page_file("my_core.py").splitlines(), 1) if text.startswith("class GRU("))
    assert f"backstory: my_core.py, line {line}: core gru: " in PAGE.read_text(encoding="utf-8")


def test_the_core_of_the_page_trains_and_is_read(backstory: Backstory, folder: Path) -> None:
    corpus = runs.tiny_corpus(folder / "corpus")
    flags = [
        "--plugin",
        "my_core.py",
        "--model.core.kind",
        "gru",
        "--model.core.hidden",
        "8",
        "--model.embedding.size",
        "8",
    ]
    trained = backstory(
        folder, "train", "demo", *flags, "--corpus", str(corpus), "--out", "run", "--training.epochs", "1"
    )
    assert trained.returncode == 0, trained.stderr
    evaluate, report = (shlex.split(command) for command in re.findall(r"`backstory ([^`]*)`", trained.stdout))
    assert evaluate == ["evaluate", "run", "--plugin", "my_core.py"] and report == ["report", "run"]
    for command in (evaluate, report):
        done = backstory(folder, *command)
        assert done.returncode == 0, done.stderr
    learned = backstory(folder, "evaluate", "run", "--plugin", "my_core.py", "--reader", "dynamic")
    assert "`backstory reader statistics run --plugin my_core.py`" in learned.stderr
    read = backstory(folder, "evaluate", "run", "--plugin", "my_core.py", "--reader", "cache")
    assert read.returncode == 0 and "audit       passed" in read.stdout
    assert "core gru" in backstory(folder, "ls", "models", "--plugin=my_core.py").stdout
    exported = backstory(folder, "export", "run", "--plugin", "my_core.py")
    assert exported.returncode == 2 and not (folder / "run" / "export").exists()
    assert "the part gru of run comes from a plugin, and only models of Backstory's own parts" in exported.stderr
    without = backstory(folder, "evaluate", "run")
    assert without.returncode == 2 and without.stderr.count("\n") == 1
    assert "'gru'" in without.stderr and "--plugin" in without.stderr


def test_the_other_parts_of_the_page_work(backstory: Backstory, folder: Path, tiny_run: Path) -> None:
    shutil.copytree(tiny_run, folder / "run")
    for name in ("my_reader.py", "my_recent.py", "my_metric.py", "my_experiment.py"):
        (folder / name).write_text(page_file(name))
        checked = backstory(folder, "check", name)
        assert checked.returncode == 0 and "FAILED" not in checked.stdout, checked.stdout + checked.stderr
    flags = ["--plugin", "my_reader.py", "--plugin", "my_metric.py", "--json"]
    read = backstory(folder, "evaluate", "run", "--reader", "sharp:power=1.05", *flags)
    assert read.returncode == 0, read.stderr
    figures = json.loads(read.stdout)["figures"]
    assert 0 <= figures["sure"]["share"] <= 1 and figures["reader"] == "sharp:power=1.05" and figures["audit"]["passed"]
    tune = ["reader", "tune", "run", "--reader", "sharp", "--plugin", "my_reader.py"]
    refused = backstory(folder, *tune)
    assert refused.returncode == 2 and "give some, as in --in-turn --grid power=VALUE,VALUE\n" in refused.stderr
    tuned = backstory(folder, *tune, "--in-turn", "--grid", "power=1.05,1.1")
    assert tuned.returncode == 0 and (folder / "run" / "readers" / "sharp.json").exists(), tuned.stderr
    report = backstory(folder, "report", "run", "--out", "report.html")
    assert report.returncode == 0, report.stderr
    flags = ["--plugin", "my_experiment.py", "--targets", "20", "--maximum-context", "60", "--context", "40"]
    examined = backstory(folder, "examine", "run", "--experiment", "swap", *flags)
    assert examined.returncode == 0 and "swap-20" in examined.stdout, examined.stderr
    assert "swap" in backstory(folder, "ls", "experiments", "--plugin", "my_experiment.py").stdout


def test_what_an_edited_plugin_measures_is_measured_again(backstory: Backstory, folder: Path, tiny_run: Path) -> None:
    shutil.copytree(tiny_run, folder / "run")
    flags = ["--plugin", "my_experiment.py", "--targets", "20", "--maximum-context", "60", "--context", "40", "--json"]
    results = []
    for far in ("context[:far].reshape(-1, 2)[:, ::-1].reshape(-1)", "5"):
        code = page_file("my_experiment.py")
        changed = code.replace(
            "swapped[:far] = context[:far].reshape(-1, 2)[:, ::-1].reshape(-1)", f"swapped[:far] = {far}"
        )
        assert (changed == code) == (far != "5")
        (folder / "my_experiment.py").write_text(changed)
        done = backstory(folder, "examine", "run", "--experiment", "swap", *flags)
        if results:
            assert "holds an examination with another plugin, which would be lost" in done.stderr
            done = backstory(folder, "examine", "run", "--experiment", "swap", "--again", *flags)
        assert done.returncode == 0, done.stderr
        results.append(json.loads(done.stdout))
    first, second = (result["figures"]["conditions"][0]["nats"] for result in results)
    assert first != second, "the conditions of the file before are not taken over"
    hashes = [result["provenance"]["plugins"]["my_experiment.py"] for result in results]
    assert hashes[0] != hashes[1] and all(len(one) == 64 for one in hashes)


PEEK = """
import torch
from dataclasses import dataclass
import backstory as bs
from backstory.models import Prediction
from backstory.readers import Reader, ReaderKind

@dataclass(frozen=True)
class Settings:
    pass

@dataclass(frozen=True)
class Table(Prediction):
    table: torch.Tensor
    p: object = None
    def parts(self): return {parts}
    def log_probs(self): return self.table
    def log_prob(self, targets): return self.table.gather(2, targets[..., None])[..., 0]
    def select(self, rows, times): return Table(None, self.table[rows, times][:, None])

class Peek(Reader):
    name = "peek"
    def __init__(self, inner):
        self.inner, self.settings = inner, Settings()
        self.model, self.precision, self.block = inner.model, inner.precision, inner.block
        self.capabilities = inner.capabilities
    def start(self, batch_size): self.inner.start(batch_size)
    def predict(self, tokens):
        p = self.inner.predict(tokens)
        table = p.log_probs().clone()
        if {peeks}:
            table = torch.log_softmax(table + table.roll(1, 0), -1)
        return Table(None, table, p)
    def observe(self, targets): self.inner.observe(targets)
    def snapshot(self): return self.inner.snapshot()
    def restore(self, saved): self.inner.restore(saved)

bs.register("reader", ReaderKind("peek", "peeks", lambda c, s: Peek(c.wrapped()), Settings, wraps=True))
"""


@pytest.mark.parametrize(
    ("parts", "peeks", "problem"),
    [
        ("{'p': self.p}", "False", ""),
        ("{'p': self.p}", "True", "with 4 rows the audit fails: "),
        ("{}", "False", "its prediction does not hold that of the reader inside it"),
    ],
)
def test_a_reader_is_checked_in_several_rows_and_for_what_it_wraps(
    backstory: Backstory, tmp_path: Path, parts: str, peeks: str, problem: str
) -> None:
    (tmp_path / "peek.py").write_text(PEEK.replace("{parts}", parts).replace("{peeks}", peeks))
    done = backstory(tmp_path, "check", "peek.py")
    assert problem in done.stderr and done.returncode == (2 if problem else 0), done.stdout + done.stderr


METRIC = """
import math, numpy as np
import backstory as bs
from backstory.evaluation.metrics import Metric

class Odd(Metric):
    name = "odd"
    @classmethod
    def for_evaluation(cls, setup, options): return cls()
    def update(self, scored): {update}
    def result(self): return {"mean": np.float32(0.5), "each": np.arange(2), "last": math.nan}

bs.register("metric", Odd)
"""


def test_a_metric_may_count_in_numpy_and_its_errors_are_one_line(
    backstory: Backstory, folder: Path, tiny_run: Path
) -> None:
    shutil.copytree(tiny_run, folder / "run")
    (folder / "odd.py").write_text(METRIC.replace("{update}", "pass"))
    done = backstory(folder, "evaluate", "run", "--plugin", "odd.py", "--json")
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)["figures"]["odd"] == {"mean": 0.5, "each": [0, 1], "last": None}
    assert "the metric odd has nan, which is not a number; the result holds null" in done.stderr
    (folder / "odd.py").write_text(METRIC.replace("{update}", "raise KeyError('sum')"))
    done = backstory(folder, "evaluate", "run", "--plugin", "odd.py", "--out", "again")
    assert done.returncode == 2 and "backstory: odd.py, line 10: KeyError: 'sum'\n" in done.stderr
    (folder / "odd.py").write_text("import sys\nsys.exit(0)\n")
    done = backstory(folder, "evaluate", "run", "--plugin", "odd.py", "--out", "again")
    assert done.returncode == 2 and "odd.py, line 2: the plugin does not load (SystemExit: 0)" in done.stderr


BROKEN = {
    "import": ("import nothing_like_this\n", r"bad.py, line 1: the plugin does not load \(ModuleNotFoundError: .*\)"),
    "syntax": ("x = 1\ndef f(:\n", r"bad.py, line 2: the plugin does not load \(SyntaxError: .*\)"),
    "nothing": ("x = 1\n", "bad.py registers nothing"),
    "kind": (
        "import backstory as bs\nbs.register('cor', 1, 2)\n",
        r"bad.py, line 2: register takes core, .* \(did you mean 'core'\?\)",
    ),
    "type": (
        "import backstory as bs\n\nbs.register('core', 1, 2)\n",
        "bad.py, line 3: a core is registered with a dataclass",
    ),
}


def test_a_core_with_the_former_name_of_param_groups_is_refused(backstory: Backstory, folder: Path) -> None:
    old = "    def l2_groups(self):\n        return []\n\n    def start("
    (folder / "my_core.py").write_text(page_file("my_core.py").replace("    def start(", old))
    done = backstory(folder, "check", "my_core.py")
    assert (done.returncode, done.stdout, done.stderr.count("\n")) == (2, "", 1)
    assert "GRU defines l2_groups, which is now called param_groups; rename it" in done.stderr


@pytest.mark.parametrize("name", fast_then_full(BROKEN, ["kind"]))
def test_a_plugin_that_does_not_load_is_one_line_with_its_place(
    backstory: Backstory, tmp_path: Path, name: str
) -> None:
    code, message = BROKEN[name]
    (tmp_path / "bad.py").write_text(code)
    done = backstory(tmp_path, "check", "bad.py")
    assert (done.returncode, done.stdout) == (2, "")
    assert re.fullmatch(rf"backstory: .*{message}.*\n", done.stderr), done.stderr


@pytest.mark.full
def test_a_name_that_exists_is_refused_with_both_places(backstory: Backstory, folder: Path) -> None:
    code = page_file("my_core.py")
    (folder / "again.py").write_text(code)
    (folder / "lstm.py").write_text(code.replace('"gru"', '"lstm"'))
    done = backstory(folder, "ls", "models", "--plugin", "my_core.py", "--plugin", "again.py")
    last = len(code.splitlines())
    assert done.returncode == 2
    assert done.stderr == (
        f"backstory: again.py, line {last}: there is a core named gru already, in my_core.py, line {last}; "
        "choose another name\n"
    )
    assert "lstm already, in backstory" in backstory(folder, "check", "lstm.py").stderr


def test_a_core_that_cannot_be_outlined_trains_and_one_that_fails_is_told(backstory: Backstory, folder: Path) -> None:
    """The estimate of memory builds a model without its numbers, which a core may look at."""
    corpus = runs.tiny_corpus(folder / "corpus")
    flags = ["--model.core.kind", "gru", "--model.embedding.size", "8", "--training.epochs", "1"]
    built = "batch_first=True)\n"
    for name, change, code, said in (
        (
            "narrow.py",
            "        self.gru.register_forward_hook(lambda part, _, out: (out[0][..., 1:], out[1]))\n",
            2,
            "`backstory check narrow.py`",
        ),
        ("looking.py", "        self.first = float(self.gru.weight_hh_l0[0, 0])\n", 0, "validation perplexity"),
        ("failing.py", "        raise ValueError('units must be even')\n", 2, "ValueError: units must be even"),
    ):
        (folder / name).write_text(page_file("my_core.py").replace(built, built + change))
        done = backstory(folder, "train", "demo", "--plugin", name, *flags, "--corpus", str(corpus), "--out", name[:-3])
        assert done.returncode == code, done.stderr
        assert said in (done.stderr if code else done.stdout)
        assert not code or f"{name}, line " in done.stderr or f"it fails with --plugin {name} (Value" in done.stderr
        assert "Traceback" not in done.stderr
    read = backstory(folder, "evaluate", "looking", "--plugin", "looking.py")
    assert read.returncode == 0 and "audit       passed" in read.stdout, read.stderr
    (folder / "looking.py").write_text((folder / "failing.py").read_text())
    read = backstory(folder, "evaluate", "looking", "--plugin", "looking.py")
    assert read.returncode == 2 and "looking.py, line " in read.stderr and "units must be even" in read.stderr


def test_what_a_core_keeps_beside_its_weights_is_saved_if_it_is_a_buffer(backstory: Backstory, folder: Path) -> None:
    corpus, built = runs.tiny_corpus(folder / "corpus"), "batch_first=True)\n"
    code = page_file("my_core.py").replace("from torch import nn", "import torch\nfrom torch import nn")
    code = code.replace(
        "return CoreOutput((output,)", "output = output @ self.fixed\n        return CoreOutput((output,)"
    )
    matrix = "torch.randn(self.output_size, self.output_size)"
    for name, kept in (
        ("buffer.py", f"self.register_buffer('fixed', {matrix})"),
        ("attribute.py", f"self.fixed = {matrix}"),
    ):
        (folder / name).write_text(code.replace(built, f"{built}        {kept}\n"))
    failed = backstory(folder, "check", "attribute.py")
    assert failed.returncode == 2 and "a saved model predicts the same ... FAILED" in failed.stdout
    assert "keep its tensors as nn.Parameter or by register_buffer" in failed.stderr
    assert backstory(folder, "check", "buffer.py").returncode == 0
    flags = [
        "--plugin",
        "buffer.py",
        "--model.core.kind",
        "gru",
        "--model.embedding.size",
        "8",
        "--training.epochs",
        "1",
        "--training.precision",
        "float32",
    ]
    trained = backstory(folder, "train", "demo", *flags, "--corpus", str(corpus), "--out", "kept", "--json")
    read = backstory(
        folder, "evaluate", "kept", "--plugin", "buffer.py", "--split", "valid", "--batch-size", "10", "--json"
    )
    figures = [json.loads(done.stdout)["figures"] for done in (trained, read)]
    assert figures[1]["nats_per_token"] == pytest.approx(figures[0]["valid_nats"], abs=1e-4)


@pytest.mark.full
def test_a_core_that_breaks_the_contract_is_told_with_its_line(backstory: Backstory, folder: Path) -> None:
    code = page_file("my_core.py")
    line = next(n for n, text in enumerate(code.splitlines(), 1) if text.startswith("class GRU("))
    for change, sentence in {
        "output = output + output.mean(1, keepdim=True)": "a prediction depends on tokens after it",
        "output = output + output.mean(0, keepdim=True)": "depend on the other texts of the batch",
        "state.add_(1)": "forward changes the state",
    }.items():
        broken = code.replace("        return CoreOutput", f"        {change}\n        return CoreOutput")
        (folder / "my_core.py").write_text(broken)
        done = backstory(folder, "check", "my_core.py")
        assert (
            done.returncode == 2 and f"my_core.py, line {line}: core gru: " in done.stderr and sentence in done.stderr
        )


def test_a_core_that_the_training_cannot_use_fails_its_check(backstory: Backstory, folder: Path) -> None:
    code = page_file("my_core.py")
    for change, sentence in {
        "    parameters = None\n": "its attribute parameters hides the method of torch.nn.Module; give it another name",
        "    def param_groups(self):\n        return None\n": "param_groups() must return a list of ",
        "    def extra_activations(self):\n        return 0\n": "extra_activations() takes 1 positional argument",
    }.items():
        (folder / "my_core.py").write_text(code.replace("    def start(", f"{change}\n    def start("))
        done = backstory(folder, "check", "my_core.py")
        assert done.returncode == 2 and sentence in done.stderr, done.stderr
        assert done.stdout.endswith("core gru: a step of training can be taken ... FAILED\n")


def test_a_plugin_that_is_no_file_is_refused(backstory: Backstory, tmp_path: Path) -> None:
    for arguments, message in {
        ("ls", "--plugin"): "--plugin needs a Python file",
        ("ls", "--plugin", "none.py"): "there is no Python file 'none.py'; give --plugin a .py file",
        ("check", str(tmp_path)): "; give `backstory check` a .py file",
    }.items():
        done = backstory(tmp_path, *arguments)
        assert done.returncode == 2 and message in done.stderr and done.stderr.count("\n") == 1


def test_a_plugin_imports_what_is_beside_it_and_an_edit_there_is_an_edit_of_it(
    backstory: Backstory, folder: Path, tiny_run: Path
) -> None:
    shutil.copytree(tiny_run, folder / "run")
    metric = page_file("my_metric.py").replace("> 0.5", "> limits.LIMIT")
    (folder / "my_metric.py").write_text(
        metric.replace("import backstory as bs\n", "import backstory as bs\nimport limits\n")
    )
    results = []
    for limit in ("0.0", "1.00"):  # of other sizes, as Python tells edits within a second apart by these alone
        (folder / "limits.py").write_text(f"LIMIT = {limit}\n")
        done = backstory(folder, "evaluate", "run", "--plugin", "my_metric.py", "--json")
        assert done.returncode == 0, done.stderr
        results.append(json.loads(done.stdout))
    assert [result["figures"]["sure"]["share"] for result in results] == [1.0, 0.0]
    assert len({result["provenance"]["plugins"]["my_metric.py"] for result in results}) == 2


def test_a_plugin_may_be_a_package(backstory: Backstory, folder: Path, tiny_run: Path) -> None:
    shutil.copytree(tiny_run, folder / "run")
    package = folder / "memlab"
    package.mkdir()
    (package / "__init__.py").write_text("from . import metrics, reading\nprint('loaded')\n")
    (package / "reading.py").write_text(page_file("my_reader.py"))
    (package / "metrics.py").write_text(page_file("my_metric.py"))
    checked = backstory(folder, "check", "memlab")
    assert (checked.returncode, checked.stderr) == (0, "loaded\n")
    assert {line.split(":")[0] for line in checked.stdout.splitlines()} == {"reader sharp", "metric sure"}
    flags = ["--plugin", "memlab", "--json"]
    read = backstory(folder, "evaluate", "run", "--reader", "sharp:power=1.05", *flags)
    assert read.returncode == 0, read.stderr
    result = json.loads(read.stdout)
    assert 0 <= result["figures"]["sure"]["share"] <= 1 and list(result["provenance"]["plugins"]) == ["memlab"]
    (package / "metrics.py").write_text("import nothing_like_this\n")
    broken = backstory(folder, "evaluate", "run", *flags)
    assert broken.returncode == 2
    assert "metrics.py, line 1: the plugin does not load (ModuleNotFoundError: No module" in broken.stderr
    absent = backstory(folder, "ls", "models", "--plugin", "memlab2")
    assert absent.stderr == (
        "backstory: there is no Python file 'memlab2'; give --plugin a .py file, or the name of a module that is installed\n"
    )


IMPORTED = """
import hashlib, importlib, os
from pathlib import Path
import my_experiment
import backstory as bs
from backstory.config.plugin_files import plugin_flags, plugin_hashes
from backstory.context.experiments import EXPERIMENTS

file = Path("my_experiment.py")
digest = lambda: hashlib.sha256(file.read_bytes()).hexdigest()
assert plugin_hashes() == {"my_experiment.py": digest()}
assert os.environ["BACKSTORY_PLUGINS"] == str(file.resolve()) and plugin_flags() == " --plugin my_experiment.py"
before, first = EXPERIMENTS["swap"], digest()
file.write_text("# edited\\n" + file.read_text())
importlib.reload(my_experiment)
assert EXPERIMENTS["swap"] is not before and plugin_hashes() == {"my_experiment.py": digest()} and digest() != first

cell = Path("my_core.py").read_text()
for _ in range(2):  # as a cell of a notebook that is run again
    exec(compile(cell, "<cell>", "exec"), globals())
assert bs.recipe("demo", {"model.core.kind": "gru"}).model.core == GRUConfig()
assert list(plugin_hashes()) == ["my_experiment.py", "notebook: core gru"] and "gru" not in plugin_flags()
try:
    exec(compile(cell.replace("GRU)", "Other)").replace("class GRU(", "class Other("), "<cell>", "exec"), globals())
except bs.UserError as error:
    assert "there is a core named gru already, in <cell>, line" in str(error)
else:
    raise AssertionError("another core has the name")
"""


@pytest.mark.full
def test_a_part_that_a_program_imports_is_as_one_of_the_flag(folder: Path) -> None:
    """Else results of an edited experiment were taken over, and other processes did not know it."""
    (folder / "my_experiment.py").write_text(page_file("my_experiment.py"))
    environment = {name: value for name, value in os.environ.items() if name != "BACKSTORY_PLUGINS"}
    done = subprocess.run(
        [sys.executable, "-c", IMPORTED], cwd=folder, env=environment, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
