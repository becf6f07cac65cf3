"""Runs the unchanged package hueclientrest: saves many rows of a query as a CSV file, and makes file calls.

Arguments: base URL, password, number of rows. Prints its results as JSON.
"""

import csv
import json
import sys
from pathlib import Path

from hueclientrest import HueClientREST


def main(url: str, password: str, rows: str) -> None:
    statement = f"SELECT i AS id, 'row ' || i AS name FROM range({rows}) AS r(i) ORDER BY i"
    client = HueClientREST(url, "admin", password)
    saved = {}
    for batch in (1000, 20_000):
        client.run(statement, dialect="duckdb", filename=f"rows-{batch}.csv", batch_size=batch)
        with Path(f"rows-{batch}.csv").open(newline="") as file:
            header, *lines = csv.reader(file)
        saved[batch] = [header, len(lines), lines[-1]]
    uploaded = client.upload_file("file:///user/admin", "rows-1000.csv")
    names = [one["name"] for one in client.list_directory("file:///user/admin")]
    taken = client.download_file("file:///user/admin/rows-1000.csv", "taken.csv")
    found = {
        "saved": saved,
        "uploaded": [uploaded["status"], uploaded["path"]],
        "is_listed": "rows-1000.csv" in names,
        "is_same": Path(taken).read_bytes() == Path("rows-1000.csv").read_bytes(),
        "exists": [client.check_directory_exists(f"file:///{one}") for one in ("user/admin", "user/admin/nope")],
    }
    print(json.dumps(found))


main(*sys.argv[1:])
