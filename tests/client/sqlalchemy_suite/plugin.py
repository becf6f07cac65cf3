"""Loaded with `-p` by the process that runs SQLAlchemy's dialect suite: its plugin, and what its tests need to know."""

import pytest

pytest.register_assert_rewrite("sqlalchemy.testing.assertions")

from sqlalchemy.testing.plugin.pytestplugin import *  # noqa: E402, F403
from sqlalchemy.testing.provision import temp_table_keyword_args  # noqa: E402


@temp_table_keyword_args.for_db("queryserver")
def _temporary(config, engine):
    return {"prefixes": ["TEMPORARY"]}
