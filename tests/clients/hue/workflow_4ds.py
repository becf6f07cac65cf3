"""Runs the package workflow4ds, in which only the login is changed.

The package logs in through Hue's login form with cookies and a CSRF token. This server has no such form, so a token
from `api/token/auth` is used instead. Arguments: base URL, password, number of rows. Prints its results as JSON.
"""

import csv
import json
import sys
import time
from pathlib import Path
from typing import Any

from workflow4ds.hue.hue import Notebook


class TokenNotebook(Notebook):
    """A notebook that sends a bearer token with every call."""

    def login(self, username: str | None = None, password: str | None = None) -> "TokenNotebook":
        fields = {"username": username or self.username, "password": password or self._password}
        pair = self.post(f"{self.base_url}/api/token/auth", data=fields).json()
        self.headers["Authorization"] = f"Bearer {pair['access']}"
        self._last_execute = time.perf_counter()
        self._prepare_notebook(self.name, self.description, self.hive_settings)
        return self


def main(url: str, password: str, rows: str) -> None:
    statement = f"SELECT i AS id, 'row ' || i AS name FROM range({rows}) AS r(i) ORDER BY i"
    notebook = TokenNotebook("admin", password, name="field", base_url=url)
    result = notebook.execute(statement, database="main", progressbar=False)
    fetched: dict[str, Any] = result.fetchall(progressbar=False)
    size, _ = result.fetch_result_size()
    result.to_csv("rows.csv", progressbar=False)
    with Path("rows.csv").open(newline="") as file:
        header, *lines = csv.reader(file)
    closed, opened = notebook.recreate_session()
    again = notebook.execute("SELECT 42 AS answer", database="main", progressbar=False)
    found = {
        "settings": len(notebook.hive_settings),
        "fetched": [fetched["columns"], len(fetched["data"]), fetched["data"][-1]],
        "saved": [header, len(lines), lines[-1]],
        "size": size,
        "log": result.full_log,
        "sessions": [isinstance(closed, int), isinstance(opened, int), closed != opened],
        "again": again.fetchall(progressbar=False)["data"],
    }
    print(json.dumps(found))


main(*sys.argv[1:])
