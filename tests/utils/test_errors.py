"""Unknown names are reported in the same way everywhere, and errors of the system with a remedy."""

import errno
import os

import pytest

from backstory.utils.errors import UserError, check_name, nearest, refused, written_out


@pytest.mark.parametrize(
    ("name", "known", "listing", "says"),
    [
        ("statik", {"static": 1, "cache": 2}, "", "(did you mean 'static'?); there are static, cache"),
        ("zzz", ["static"], "", "; there is static"),
        ("zzz", (n for n in "ab"), "backstory ls readers", "; `backstory ls readers` lists them"),
    ],
)
def test_an_unknown_name(name: str, known: list[str], listing: str, says: str) -> None:
    with pytest.raises(UserError) as caught:
        check_name(name, known, "reader", listing)
    assert str(caught.value).replace(" (", "(") == f"there is no reader '{name}'{says}"


def test_an_unknown_name_that_may_be_of_a_plugin() -> None:
    known = ("static", "cache")
    with pytest.raises(
        UserError, match=r"`ls` lists them, and one of a plugin needs --plugin FILE, or its import in Py"
    ):
        check_name("sharp", known, "reader", "ls", from_plugins=True)
    with pytest.raises(UserError, match=r"\(did you mean 'static'\?\); `ls` lists them$"):
        check_name("statik", known, "reader", "ls", from_plugins=True)


def test_a_known_name() -> None:
    check_name("static", {"static": 1}, "reader")


def test_a_name_is_not_proposed_for_itself() -> None:
    """A broken link is listed in its folder, and is not there."""
    assert nearest("runs/a", ["runs/a"]) == ""
    assert nearest("runs/a", ["runs/a", "runs/ab"]) == " (did you mean 'runs/ab'?)"


@pytest.mark.parametrize(
    ("value", "hint"),
    [
        ("10%", "; write 0.1"),
        ("64k", "; write 64000"),
        ("1,000,000", "; write 1000000"),
        ("2.5 K", "; write 2500"),
        ("30m", "; write 30, without a unit"),
        ("15min", "; write 15, without a unit"),
        ("1,000.5", "; write 1000.5"),
        ("1,2", ""),
        ("fast", ""),
        ("3", ""),
        ("m30", ""),
        ("", ""),
    ],
)
def test_a_number_with_a_unit_is_written_out(value: str, hint: str) -> None:
    assert written_out(value, whole=False) == hint


def test_no_fraction_is_proposed_for_a_whole_number() -> None:
    assert written_out("10%", whole=True) == written_out("2.5h", whole=True) == ""
    assert written_out("64k", whole=True) == "; write 64000"


@pytest.mark.parametrize("otherwise", [None, "choose another folder"])
def test_a_limit_on_open_files_is_to_be_raised(otherwise: str | None) -> None:
    error = OSError(errno.EMFILE, "Too many open files", "runs/a")
    assert str(refused(error, otherwise=otherwise)) == (
        "runs/a: Too many open files; raise the limit on them (ulimit -n)"
    )


def test_links_in_a_circle_are_to_be_mended() -> None:
    error = OSError(errno.ELOOP, os.strerror(errno.ELOOP), "self/y")
    assert str(refused(error)) == "self/y: its links lead in a circle; mend them or give another path"
