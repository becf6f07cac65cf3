"""Loads tables with dlt, with reflection and in chunks, and prints the loaded rows as JSON. Arguments: the database
URL, a folder.
"""

import json
import sys
from pathlib import Path

import dlt
import sqlalchemy as sa
from dlt.sources.sql_database import sql_database

CHUNK_ROWS = 700
ROWS = 2500


def main(url: str, folder: str) -> None:
    engine = sa.create_engine(url)
    target = dlt.destinations.filesystem(bucket_url=Path(folder, "loaded").as_uri())
    pipeline = dlt.pipeline("load", pipelines_dir=folder, destination=target, dataset_name="shop")
    loads = []
    for numbers, backend in ((range(ROWS), "sqlalchemy"), (range(ROWS, ROWS + 10), "pyarrow")):
        _fill(engine, numbers)
        source = sql_database(
            engine,
            table_names=["loaded_orders", "loaded_customers"],
            chunk_size=CHUNK_ROWS,
            backend=backend,
            reflection_level="full_with_precision",
        )
        source.resources["loaded_orders"].apply_hints(incremental=dlt.sources.incremental("id"))
        pipeline.run(source)
        counts = pipeline.last_trace.last_normalize_info.row_counts
        loads.append({name: n for name, n in counts.items() if name.startswith("loaded_")})
    columns = pipeline.default_schema.tables["loaded_orders"]["columns"]
    kept = ("data_type", "nullable", "primary_key", "precision", "scale")
    described = {name: {key: one[key] for key in kept if key in one} for name, one in columns.items() if name[0] != "_"}
    print(json.dumps({"loads": loads, "columns": described}))


def _fill(engine: sa.Engine, numbers: range) -> None:
    metadata = sa.MetaData()
    sa.Table("loaded_customers", metadata, sa.Column("id", sa.Integer, primary_key=True), sa.Column("name", sa.Text))
    orders = sa.Table(
        "loaded_orders",
        metadata,
        sa.Column("id", sa.Integer, primary_key=True, autoincrement=False),
        sa.Column("customer", sa.ForeignKey("loaded_customers.id"), nullable=False),
        sa.Column("price", sa.Numeric(8, 2)),
        sa.Column("day", sa.Date),
    )
    metadata.create_all(engine)
    with engine.begin() as connection:
        customers = metadata.tables["loaded_customers"]
        if connection.scalar(sa.select(sa.func.count()).select_from(customers)) == 0:
            connection.execute(customers.insert(), [{"id": n, "name": f"c{n}"} for n in range(10)])
        rows = [{"id": n, "customer": n % 10, "price": f"{n}.25", "day": None} for n in numbers]
        connection.execute(orders.insert(), rows)


main(*sys.argv[1:])
