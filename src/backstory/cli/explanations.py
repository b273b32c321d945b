"""What the verbs that explain do with a result."""

from collections.abc import Callable
from pathlib import Path
from typing import Any


def tell(
    result: dict[str, Any],
    page: Path | None,
    as_json: bool,
    write: Callable[[dict[str, Any], Path], None],
    show: Callable[[dict[str, Any]], None],
) -> None:
    """Write the page if one is wanted, and print the result as JSON, the page's path, or the result for a person."""
    if page is not None:
        write(result, page)
    if as_json:
        from backstory.evaluation.evaluation import as_json as written

        print(written(result))
    elif page is not None:
        print(page)
    else:
        show(result)
