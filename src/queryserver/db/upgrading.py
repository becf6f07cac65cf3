"""Alembic at work, in a process of its own: `python -m queryserver.db.upgrading`, with the DSN on standard input.

SQLAlchemy and Alembic would stay in the server's memory for good (28 MiB), and are needed for a moment only.
"""

import sys

from alembic import command
from alembic.config import Config
from alembic.script import ScriptDirectory

from queryserver.db.migrations import SCRIPTS


def upgrade(dsn: str) -> None:
    """Bring the schema to the newest revision."""
    config = Config()
    config.set_main_option("script_location", str(SCRIPTS).replace("%", "%%"))
    config.set_main_option("path_separator", "os")
    config.attributes["dsn"] = dsn
    command.upgrade(config, "head")


def head() -> str | None:
    """The newest revision, as Alembic finds it by following the scripts."""
    return ScriptDirectory(str(SCRIPTS)).get_current_head()


if __name__ == "__main__":
    upgrade(sys.stdin.read())
