"""The service reads every settings key, except for the keys listed here with the reason."""

import ast
from collections.abc import Iterator
from pathlib import Path

import queryserver
from queryserver.platform.settings.sections import Section, keys
from queryserver.platform.settings.tree import Settings

PACKAGE = Path(queryserver.__file__).parent
# Modules that process the settings tree as a whole. A key that only these modules read counts as unused.
ABOUT_SETTINGS = {"contradictions.py", "loading.py", "report.py", "section.py", "tree.py"}

WITHOUT_EFFECT = {"beeswax.close_sessions", "beeswax.max_number_of_sessions", "hadoop.hdfs_clusters.temp_dir"}
"""Keys that are accepted because older settings files contain them. The documentation states that they have
no effect.
"""

CHECKED = {"desktop.ldap.use_start_tls"}
"""Keys that are only validated. `false` is reported as a problem: passwords must never be sent unencrypted."""

OTHER_NAMES = {"metastore.allow_sample_data_from_views"}
"""Keys whose values are copied to other keys, which the service reads."""

LIMITS_OF_USERS = {
    f"{table}.{key}"
    for table in ("editor", "editor.group_limits")
    for key in ("budget_engine_s_per_day", "budget_bytes_per_day")
}
"""Keys that `statements.user_limits` reads by names that it receives."""

OF_THE_TASK_SERVER = {
    *(f"desktop.smtp.{key}" for key in ("default_from_email", "host", "password", "port", "tls", "user")),
    *(
        f"desktop.task_server.{key}"
        for key in (
            "concurrency",
            "email_after_s",
            "email_allowed_domains",
            "email_max_bytes",
            "email_max_rows",
            "heartbeat_s",
            "queue",
        )
    ),
    "retention.tasks_days",
}
"""Keys that only workers and the beat process read."""


def leaves(section: type[Section], path: tuple[str, ...] = ()) -> Iterator[tuple[str, ...]]:
    for key in keys(section).values():
        place = (*path, key.attribute)
        inner = key.section or key.entries
        yield from leaves(inner, place) if inner else [place]


def attributes(tree: ast.AST) -> set[str]:
    return {node.attr for node in ast.walk(tree) if isinstance(node, ast.Attribute)}


def names_read() -> set[str]:
    """Return the attribute names that the service reads, including those inside the section properties that
    it reads.
    """
    found, properties = set[str](), dict[str, set[str]]()
    for file in PACKAGE.rglob("*.py"):
        tree = ast.parse(file.read_text(encoding="utf-8"))
        if file.parent.name != "settings":
            found |= attributes(tree)
        elif file.name not in ABOUT_SETTINGS - {"tree.py"}:
            for node in ast.walk(tree):
                if isinstance(node, ast.FunctionDef):
                    properties.setdefault(node.name, set()).update(attributes(node))
    while more := set().union(*(read for name, read in properties.items() if name in found)) - found:
        found |= more
    return found


def test_service_reads_every_settings_key() -> None:
    read = names_read()
    unread = {".".join(path) for path in leaves(Settings) if not set(path) <= read}
    assert unread - WITHOUT_EFFECT - CHECKED - OTHER_NAMES - LIMITS_OF_USERS - OF_THE_TASK_SERVER == set()
