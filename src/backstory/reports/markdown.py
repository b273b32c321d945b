"""Generated tables inside hand-written Markdown, between a marker with the table's name and an end marker."""

import re

from backstory.config import UserError
from backstory.config.arguments import checked
from backstory.reports.tables import Table, to_markdown


@checked()
def fill(text: str, name: str, table: Table) -> str:
    """Replace what stands between `<!-- table: NAME -->` and the next `<!-- end -->` by the table.

    Filling again with the same table changes nothing. Raises UserError if the marker or its end is absent.
    """
    pattern = re.compile(rf"(<!-- table: {re.escape(name)} -->)((?:(?!<!-- table: ).)*?)(<!-- end -->)", re.DOTALL)
    filled, number = pattern.subn(lambda m: f"{m[1]}\n{to_markdown(table)}\n{m[3]}", text)
    if number == 0:
        raise UserError(
            f"the text has no place for table '{name}'; add the lines `<!-- table: {name} -->` and `<!-- end -->`"
        )
    return filled
