"""Prepares the process that runs SQLAlchemy's dialect suite. This module is loaded with `-p`. It contains the suite's
own plugin and the provisioning for its tests.
"""

import pytest

pytest.register_assert_rewrite("sqlalchemy.testing.assertions")

# The imports follow the registration, because pytest rewrites the assertions of a module when it is imported.
from sqlalchemy.testing import config as suite_config  # noqa: E402
from sqlalchemy.testing import provision  # noqa: E402
from sqlalchemy.testing.plugin import pytestplugin  # noqa: E402
from sqlalchemy.testing.plugin.pytestplugin import *  # noqa: E402, F403
from tests.client.sqlalchemy_suite.exclusions import reason_for  # noqa: E402


def pytest_collection_modifyitems(session, config, items):
    """Skip excluded tests after SQLAlchemy's plugin has created a class for each engine."""
    pytestplugin.pytest_collection_modifyitems(session, config, items)
    for item in items:
        reason = reason_for(_engine(), item.nodeid.partition("::")[2])
        if reason:
            item.add_marker(pytest.mark.skip(reason=reason))


def _engine() -> str:
    return suite_config.db.name


@provision.temp_table_keyword_args.for_db("queryserver")
def _temporary(config, engine):
    return {"prefixes": ["TEMPORARY"]}


@provision.set_default_schema_on_connection.for_db("queryserver")
def _default_schema(config, dbapi_connection, schema_name):
    was_autocommit, dbapi_connection.autocommit = dbapi_connection.autocommit, True
    change = {"duckdb": "SET schema = '{}'", "mysql": "USE {}"}.get(_engine(), "SET search_path = '{}'")
    dbapi_connection.execute(change.format(schema_name))
    dbapi_connection.autocommit = was_autocommit


@provision.delete_from_all_tables.for_db("queryserver")
def _delete(connection, cfg, metadata):
    """Delete the rows of all tables.

    On DuckDB, each table is emptied in a separate transaction, because foreign keys still see rows that were deleted in
    the same one. On MariaDB, foreign keys are not checked, because MariaDB would check for each deleted row whether
    other rows refer to it, even within a single statement.
    """
    if _engine() == "mysql":
        connection.exec_driver_sql("SET foreign_key_checks = 0")
        provision.delete_from_all_tables.call_original(connection, cfg, metadata)
        connection.exec_driver_sql("SET foreign_key_checks = 1")
        return
    if _engine() != "duckdb":
        provision.delete_from_all_tables.call_original(connection, cfg, metadata)
        return
    with connection.engine.connect().execution_options(isolation_level="AUTOCOMMIT") as own:
        for table in reversed(metadata.sorted_tables):
            own.execute(table.delete())
