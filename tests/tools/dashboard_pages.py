"""Opens the dashboard, navigates to another page and another table, and prints the content as JSON. Argument: the
dashboard's URL.
"""

import json
import os
import sys
from pathlib import Path

import sqlalchemy as sa
from streamlit.testing.v1 import AppTest


def main(url: str) -> None:
    engine = sa.create_engine(url)
    metadata = sa.MetaData()
    for name, rows in (("dash_items", 120), ("dash_sales", 20)):
        key = sa.Column("id", sa.Integer, autoincrement=False, primary_key=True)
        table = sa.Table(name, metadata, key, sa.Column("name", sa.String(20)))
        table.create(engine)
        with engine.begin() as connection:
            connection.execute(table.insert(), [{"id": n, "name": f"n{n:03}"} for n in range(rows)])
    os.environ["DASHBOARD_URL"] = url
    app = AppTest.from_file(str(Path(__file__).with_name("dashboard.py")), default_timeout=60).run()
    shown = [_shown(app)]
    app.number_input[0].set_value(3).run()
    shown.append(_shown(app))
    app.number_input[0].set_value(1).run()
    app.selectbox[0].set_value("dash_sales").run()
    shown.append(_shown(app))
    print(json.dumps(shown))


def _shown(app: AppTest) -> dict[str, object]:
    frame = app.dataframe[0].value if app.dataframe else None
    return {
        "errors": [one.value for one in app.exception],
        "tables": app.selectbox[0].options,
        "columns": app.selectbox[1].options,
        "ids": [int(frame["id"].iloc[0]), int(frame["id"].iloc[-1])] if frame is not None else [],
        "metrics": [one.value for one in app.metric],
    }


main(*sys.argv[1:])
