"""Help: common flags in groups, all flags on request, each explained; and the same names in a shell's completion."""

import os
import pty
import re
import shlex
import shutil
import subprocess
from pathlib import Path

import pytest
from commands import Command

from backstory.cli import train
from backstory.cli.command_line import parse
from backstory.cli.completion import COMMANDS, REGISTRIES, registered
from backstory.cli.examples import EXAMPLES
from backstory.cli.flags import SHORT, Setting, settings
from backstory.cli.help_page import COMMON
from backstory.cli.ls import KINDS
from backstory.cli.main import GROUPS, VERBS
from backstory.config import RunConfig, from_dict

MIXTURE = from_dict(RunConfig, {"model": {"head": {"kind": "mixture"}}}, "a test")
PAGES = COMMANDS | {
    "train demo": (train.TrainArguments, train.TrainArguments()),
    "train demo --model.head.kind mixture": (train.TrainArguments, train.TrainArguments(config=MIXTURE)),
    "train demo --head=mixture": (train.TrainArguments, train.TrainArguments(config=MIXTURE)),
}
FEW = 20
"""Maximum number of flags on a page of help."""


def flags(setting: Setting) -> str:
    """Return the flag of a setting as in the help: `--training.[no-]partial-shuffle`."""
    on, *off = setting.flags()
    last = re.split(r"[.]|--", on)[-1]
    return f"{on.removesuffix(last)}[no-]{last}" if off else on


@pytest.mark.parametrize("verb", PAGES)
def test_help_explains_every_flag(verb: str, command: Command, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "100")
    shown = command(*verb.split(), "--help-all")
    assert (shown.code, shown.err) == (0, "")
    assert shown.out.startswith(f"usage: backstory {verb.split()[0]} ")
    assert max(map(len, shown.out.splitlines())) <= 100
    words = shown.out.replace(",", " ").split()
    for setting in settings(*PAGES[verb]):
        for flag in [setting.name] if setting.positional else [flags(setting), *setting.short]:
            assert flag in words, f"{flag} is not on the page"
    # Every entry has its text next to it, or below if the entry is long.
    lines = shown.out.partition("\nexamples:\n")[0].splitlines()
    entries = [i for i, line in enumerate(lines) if re.match(r"  \S", line) and "  -h, --help " not in line]
    bare = [lines[i] for i in entries if re.fullmatch(r"  \S+(,? \S+)*", lines[i]) and lines[i + 1][:5].strip()]
    assert bare == [], "flags without a word of explanation"


@pytest.mark.parametrize("verb", [verb for verb, page in PAGES.items() if len(list(settings(*page))) > FEW])
def test_long_help_shows_the_common_flags_first(verb: str, command: Command) -> None:
    short, whole = command(*verb.split(), "--help"), command(*verb.split(), "--help-all")
    assert (short.code, short.err, whole.code) == (0, "", 0)
    assert len(short.out.splitlines()) < len(whole.out.splitlines())
    count = len([s for s in settings(*PAGES[verb]) if not s.positional])
    shown = len([line for line in short.out.splitlines() if line.startswith("  --") and "--help-all" not in line])
    assert shown <= 36 and f"Show all flags ({count}; these are {shown})." in short.out


@pytest.mark.parametrize("verb", COMMANDS)
def test_help_of_a_reader_says_which_is_the_default(verb: str, command: Command) -> None:
    for setting in settings(*COMMANDS[verb]):
        if setting.name == "--reader":
            words = " ".join(command(*verb.split(), "--help-all").out.split())
            default = "dynamic" if verb in ("reader tune", "reader train") else "static"
            assert re.search(rf"--reader TEXT .*?(else {default}|{default} \(the default\)|\[{default}\])", words)


@pytest.mark.parametrize("verb", ["read", "generate", "reader audit", "evaluate"])
def test_help_lists_the_flags_of_a_model_elsewhere_last(verb: str, command: Command) -> None:
    shown = re.findall(r"^  (--\S+)", command(*verb.split(), "--help-all").out, re.MULTILINE)
    flags = [flag for flag in shown if flag not in ("--help-all", "--text.field")]
    elsewhere = ["--revision", "--dtype", "--device-map", "--window", "--stride", "--corpus"]
    count = sum(flag in flags for flag in elsewhere)
    assert set(flags[-count:]) <= set(elsewhere) and flags[-count - 1] in ("--device", "--data-dir"), flags
    assert flags.index("--json") < flags.index("--device")


@pytest.mark.full
def test_examples_of_a_command_can_be_parsed(command: Command) -> None:
    assert {*EXAMPLES} == {*COMMANDS} - {"completion"}  # its text is examples
    for verb, examples in EXAMPLES.items():
        shown, (kind, default) = command(*verb.split(), "--help").out, COMMANDS[verb]
        for purpose, typed in examples.items():
            assert f"\n  {purpose}:\n    backstory {typed}\n" in shown and len(typed) <= 66
            words = shlex.split(typed.partition(" < ")[0])
            rest = words[len(verb.split()) :]
            assert words[: -len(rest) or None] == verb.split()
            if default is None:
                parse(kind, rest, verb)
            elif "--resume" not in rest:  # the settings are those of the run
                train.parse_with_recipe(kind, rest, verb)


@pytest.mark.parametrize("verb", ["train", "sweep run"])
def test_help_without_a_recipe_says_that_each_sets_its_own(verb: str, command: Command) -> None:
    said = f"`backstory {verb} demo --help` shows those of demo"
    without, of_demo = (" ".join(command(*verb.split(), *more, "--help").out.split()) for more in ([], ["demo"]))
    assert said in without and said not in of_demo


def test_help_of_explain_says_what_each_explanation_shows(command: Command) -> None:
    words = " ".join(command("explain", "cache", "--help").out.split())
    for name, shows in KINDS["explanations"]().items():
        assert f"{name}: {shows}" in words


def test_a_common_flag_is_one_of_its_command() -> None:
    for verb, groups in COMMON.items():
        known = {setting.name for setting in settings(*COMMANDS[verb])}
        common = [flag for names in groups.values() for flag in names]
        assert known.issuperset(common) and len(set(common)) == len(common), verb


def test_a_model_that_a_command_needs_is_required_in_its_help(command: Command) -> None:
    for verb in ("compress", "decompress"):
        assert re.search(r"--model PATH +Required\. ", command(verb, "--help").out)
    of_proof = " ".join(command("verify", "--help").out.split())
    assert "--model PATH The model that was evaluated" in of_proof and "(else the run that the proof names)" in of_proof


def test_short_names_stand_for_one_setting_each() -> None:
    for verb in ("train", "sweep run"):
        known = {setting.name for setting in settings(*COMMANDS[verb])}
        assert known.issuperset(SHORT.values()) and not known.intersection(SHORT)
    assert len(set(SHORT.values())) == len(SHORT)


def test_a_short_name_sets_what_its_long_one_sets() -> None:
    typed = "demo --lr 0.5 --epochs=3 --core mogrifier --batch_size 7"
    long = "demo --training.learning-rate 0.5 --training.epochs=3 --model.core.kind mogrifier --training.batch-size 7"
    short, whole = (train.parse_with_recipe(train.TrainArguments, shlex.split(t), "train") for t in (typed, long))
    assert short == whole and short[1].config.training.learning_rate == 0.5
    assert short[1].config.model.core.kind == "mogrifier"


@pytest.mark.parametrize("flag", ["-h", "--help", "help"])
def test_the_overview_names_every_verb(flag: str, command: Command) -> None:
    shown = command(flag)
    assert (shown.code, shown.err) == (0, "")
    assert {line.split()[0] for line in shown.out.splitlines() if line.startswith("  ")} == set(VERBS)
    assert [line[:-1] for line in shown.out.splitlines() if line.endswith(":")] == [*GROUPS]
    assert "--plugin FILE" in shown.out and max(map(len, shown.out.splitlines())) <= 80
    assert "(a few minutes)" in VERBS["demo"] and "(a few minutes)" in command("demo", "--help").out
    assert shown == command()


@pytest.mark.parametrize("verb", [["evaluate"], ["train", "demo"], ["sweep"], ["reader", "tune"]])
def test_help_of_a_verb_is_its_help(verb: list[str], command: Command) -> None:
    assert command("help", *verb) == command(*verb, "--help")


@pytest.mark.parametrize("verb", ["sweep", "reader", "data", "recipe"])
def test_verbs_of_verbs_say_what_each_action_does(verb: str, command: Command) -> None:
    shown = command(verb, "--help")
    assert (shown.code, shown.err) == (0, "")
    assert shown.out.startswith(f"usage: backstory {verb} {{") and max(map(len, shown.out.splitlines())) <= 80
    actions = [name.split()[1] for name in COMMANDS if name.startswith(f"{verb} ")]
    for action in actions:
        assert re.search(rf"^  {action} +\w+( \S+)+", shown.out, re.MULTILINE)
    assert shown.out.split("{")[1].split("}")[0] == ", ".join(actions)
    assert set(re.findall(r"\w+", VERBS[verb])).issuperset(actions)


@pytest.mark.parametrize("flag", ["--version", "-V"])
def test_the_version_is_told(flag: str, command: Command) -> None:
    shown = command(flag)
    assert shown.code == 0 and shown.out.startswith("backstory 0.")


# --- completion ---


@pytest.mark.parametrize(
    ("typed", "completed"),
    [
        ("ev", {"evaluate"}),
        ("train ptb-small-p", {"ptb-small-pointer"}),
        ("sweep s", {"show"}),
        ("help recip", {"recipe"}),
        ("ls rea", {"readers"}),
        ("train demo --epo", {"--epochs"}),
        ("train demo --optimizer na", {"nadam"}),
        ("train demo --core mo", {"mogrifier"}),
        ("reader tune run --in-", {"--in-turn"}),
        ("evaluate run --audit-", {"--audit-places", "--audit-seed"}),
        ("explain surprisal run --fin", {"--find"}),
        ("explain reading run --smo", {"--smooth"}),
        ("evaluate runs/", set()),
    ],
)
def test_bash_completes(typed: str, completed: set[str], command: Command) -> None:
    script = command("completion", "bash")
    assert (script.code, script.err) == (0, "")
    words = ["backstory", *typed.split(" ")]
    ask = f"COMP_WORDS=({shlex.join(words)}); COMP_CWORD={len(words) - 1}; _backstory; printf '%s\\n' \"${{COMPREPLY[@]}}\""
    done = subprocess.run(["bash"], input=f"{script.out}\n{ask}\n", capture_output=True, text=True, check=True)
    assert done.stderr == "" and set(done.stdout.split()) == completed


def test_fish_and_zsh_have_every_command(command: Command) -> None:
    fish, zsh = command("completion", "fish"), command("completion", "zsh")
    assert (fish.code, fish.err, zsh.code, zsh.err) == (0, "", 0, "")
    lines = [line for line in fish.out.splitlines() if line.startswith("complete ")]
    assert all(line.startswith("complete -c backstory ") and len(shlex.split(line)) > 6 for line in lines)
    assert {verb for verb in VERBS if f"-n __backstory_after -a {verb} " in fish.out} == set(VERBS)
    assert "'__backstory_in train' -l lr -r -d " in fish.out
    assert "bashcompinit" in zsh.out and zsh.out.endswith(command("completion", "bash").out)
    assert {name.split()[0] for name in COMMANDS} | {"help"} == set(VERBS)


@pytest.mark.parametrize("kind", REGISTRIES)
def test_the_names_that_a_shell_completes_are_those_that_there_are(kind: str) -> None:
    assert registered(kind) == tuple(sorted(KINDS[kind]()))


IN_A_SHELL = {
    "backstory ev": "backstory evaluate ",
    "backstory train ptb-small-p": "backstory train ptb-small-pointer ",
    "backstory data prepare wikitext-1": "backstory data prepare wikitext-103 ",
    "backstory explain sur": "backstory explain surprisal ",
    "backstory explain reading runs --smo": "backstory explain reading runs --smooth ",
    "backstory examine runs --experiment trunc": "backstory examine runs --experiment truncate ",
    "backstory evaluate no": "backstory evaluate notes.txt ",
}
"""Words typed before Tab, and the line after it, in a folder that holds notes.txt."""


@pytest.mark.full
@pytest.mark.skipif(shutil.which("fish") is None, reason="fish is not installed")
def test_fish_completes(tmp_path: Path, command: Command) -> None:
    scripts = tmp_path / "home" / ".config" / "fish" / "completions"
    scripts.mkdir(parents=True)
    (scripts / "backstory.fish").write_text(command("completion", "fish").out)
    (tmp_path / "notes.txt").touch()
    home = os.environ | {"HOME": str(tmp_path / "home"), "XDG_CONFIG_HOME": str(scripts.parents[1])}
    for typed, line in IN_A_SHELL.items():
        asked = ["fish", "-c", f"complete -C {shlex.quote(typed)}"]
        done = subprocess.run(asked, env=home, cwd=tmp_path, capture_output=True, text=True, check=True)
        candidates = [candidate.split("\t")[0] for candidate in done.stdout.splitlines()]
        assert done.stderr == "" and candidates == [line.split()[-1]], typed


@pytest.mark.full
@pytest.mark.skipif(shutil.which("zsh") is None, reason="zsh is not installed")
def test_zsh_completes(tmp_path: Path, command: Command) -> None:
    (tmp_path / "script").write_text(command("completion", "zsh").out)
    (tmp_path / "notes.txt").touch()
    # Control-X prints the line as it stands and empties it.
    show = """show() { print -r -- "<$BUFFER>"; BUFFER=; }; zle -N show; bindkey '^X' show; print ready"""
    (tmp_path / ".zshrc").write_text(f'eval "$(cat script)"\n{show}\n')
    terminal, other = pty.openpty()
    home = os.environ | {"ZDOTDIR": str(tmp_path), "TERM": "dumb"}
    zsh = subprocess.Popen(
        ["zsh", "-i"], env=home, cwd=tmp_path, stdin=other, stdout=other, stderr=other, start_new_session=True
    )
    os.close(other)

    def shown(until: str) -> str:
        text = ""
        while not (match := re.search(until, text)):
            text += os.read(terminal, 4096).decode(errors="replace")
        return match.group()

    try:
        shown("ready")
        for typed, line in IN_A_SHELL.items():
            os.write(terminal, f"{typed}\t\x18".encode())
            assert shown("<.*>") == f"<{line}>"
    finally:
        zsh.kill()
        zsh.wait()
        os.close(terminal)


@pytest.mark.parametrize("spelling", ["none", "None"])
def test_no_value_is_shown_and_read_as_none(spelling: str, command: Command) -> None:
    assert "None" not in command("train", "--help-all").out
    recipe = from_dict(RunConfig, {"training": {"steps": 7}}, "a test")
    args = parse(train.TrainArguments, ("--steps", spelling), "train", train.TrainArguments(config=recipe))
    assert args.config.training.steps is None
