"""Unknown names are told in one way, wherever they are given."""

import pytest

from backstory.config import UserError, check_name


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


def test_a_known_name() -> None:
    check_name("static", {"static": 1}, "reader")
