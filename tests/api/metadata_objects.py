"""Tables for the metadata tests. They are created through the service, in any dialect."""

from dataclasses import dataclass
from itertools import count

from tests.api.dialects import Dialect
from tests.api.driving import Caller

_numbers = count(1)
SCHEMAS = {"sqlite": "main", "duckdb": "main", "postgresql": "public"}


@dataclass(frozen=True, slots=True)
class Shop:
    """The tables `items` and `people` and the view `cheap` of one test. Their names are unique."""

    dialect: Dialect
    schema: str
    items: str
    people: str
    cheap: str

    @property
    def snippet(self) -> str:
        """The value of the field `snippet` that selects the connector."""
        return f'{{"type": "{self.dialect}"}}'


async def make_shop(caller: Caller, dialect: Dialect) -> Shop:
    """Create the tables, which have three items of two owners. One item has no name."""
    number = next(_numbers)
    shop = Shop(dialect, SCHEMAS[dialect.name], f"items{number}", f"people{number}", f"cheap{number}")
    for statement in (
        f"CREATE TABLE {shop.people} (id integer PRIMARY KEY, name varchar(20))",
        (
            f"CREATE TABLE {shop.items} (id integer PRIMARY KEY, name varchar(20) DEFAULT 'pen',"
            f" owner_id integer REFERENCES {shop.people} (id))"
        ),
        f"INSERT INTO {shop.people} VALUES (1, 'Ana'), (2, 'Bob')",
        f"INSERT INTO {shop.items} VALUES (1, 'pen', 1), (2, NULL, 2), (3, 'ink', 2)",
        f"CREATE VIEW {shop.cheap} AS SELECT name FROM {shop.items}",
    ):
        body = await caller.run(dialect, statement)
        assert body["status"] == 0, body
    return shop
