"""Runs a notebook with JupySQL in a separate kernel, and prints the output of its cells as JSON. Argument: the database
URL.
"""

import json
import os
import sys

import nbformat
from nbclient import NotebookClient

CELLS = (
    "%load_ext sql\n%config SqlMagic.named_parameters = 'enabled'\n%config SqlMagic.feedback = 0\n%sql",
    "%sql CREATE TABLE note_orders (id INTEGER PRIMARY KEY, item VARCHAR(20), price DECIMAL(8, 2))",
    """\
import sqlalchemy as sa
engine = sa.create_engine(url)
table = sa.Table("note_orders", sa.MetaData(), autoload_with=engine)
with engine.begin() as connection:
    connection.execute(table.insert(), [{"id": n, "item": f"item {n % 7}", "price": n / 4} for n in range(2500)])""",
    "%sqlcmd tables",
    "%sqlcmd columns --table note_orders",
    "%%sql --save cheap --no-execute\nSELECT * FROM note_orders WHERE price < 100",
    "found = %sql --with cheap SELECT item, count(*) AS n, sum(price) AS total FROM cheap GROUP BY item ORDER BY item",
    "print(found.DataFrame().astype(str).to_json(orient='values'))",
    "wanted = 'item 3'\nnamed = %sql SELECT count(*) AS n FROM note_orders WHERE item = :wanted\nprint(named[0].n)",
    "everything = %sql SELECT id FROM note_orders\nprint(len(everything.DataFrame()))",
    "%sql SELECT nothing FROM note_orders",
)


def main(url: str) -> None:
    os.environ["DATABASE_URL"] = url  # the %sql magic reads its connection from here
    notebook = nbformat.v4.new_notebook()
    setup = f"url = {url!r}"
    notebook.cells = [nbformat.v4.new_code_cell(text) for text in (setup, *CELLS)]
    NotebookClient(notebook, timeout=120, kernel_name="python3", allow_errors=True).execute()
    print(json.dumps([_text(cell.outputs) for cell in notebook.cells[1:]]))


def _text(outputs: list[dict[str, object]]) -> str:
    """Return all output of a cell as plain text."""
    parts = []
    for one in outputs:
        shown = one.get("data", {}).get("text/plain") or one.get("text") or one.get("evalue") or ""
        parts.append(f"{one.get('ename', '')} {shown}".strip())
    return "\n".join(parts)


main(*sys.argv[1:])
