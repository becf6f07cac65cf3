"""The catalog contract for SQLAlchemy's Inspector, with PyMySQL and MariaDB as the example of a dialect."""

from dataclasses import replace

import pytest
from tests.contract.catalog_contract import CatalogContract
from tests.contract.catalog_facts import ODD_NAMES, TypeText
from tests.contract.mariadb_basis import MariadbBasis
from tests.contract.test_mysql_catalog import FACTS as MARIADB_FACTS
from tests.contract.test_sqlalchemy_engine import engine_on

FACTS = replace(
    MARIADB_FACTS,
    int_type=TypeText("INT", "INTEGER(11)"),
    text_type=TypeText("VARCHAR(100)", "VARCHAR(100)"),
    types=(
        TypeText("DECIMAL(10,2)", "DECIMAL(10, 2)"),
        TypeText("TINYINT(1)", "TINYINT(1)"),
        TypeText("DATETIME(3)", "DATETIME(3)"),
        TypeText("LONGBLOB", "LONGBLOB"),
    ),
    tables=(),
    # SQLAlchemy parses MySQL columns from SHOW CREATE TABLE and does not unescape doubled backticks.
    odd_columns=tuple(name for name in ODD_NAMES if "`" not in name),
    comment_database=(),
    analyzes_tables=False,
    analyzes_columns=False,
    statistics={},
    column_statistics={},
    builtin_function=None,
    overloaded_function=None,
    create_function=(),
    drop_function=(),
    catalog_on=None,
)


@pytest.mark.engine("mariadb")
class TestSqlalchemyCatalog(MariadbBasis, CatalogContract):
    catalog_facts = FACTS
    tested_with = "MariaDB 10.11 through PyMySQL"
    engine_on = staticmethod(engine_on)
