"""An import as text for people: what histories show. No engine ever gets it (Contract importer 13)."""

from queryserver.services.importing.plans import ImportPlan

_BACKTICKS = frozenset({"hive", "impala", "sparksql", "mysql"})
_SHOWN_COLUMNS = 100


def history_text(plan: ImportPlan, dialect: str) -> str:
    """A comment that names the file, and the CREATE TABLE statement that would make such a table."""
    columns = [
        f"  {_quoted(column.name, dialect)} {declared}" + ("" if column.nullable else " NOT NULL")
        for column, declared in zip(plan.columns[:_SHOWN_COLUMNS], plan.declared, strict=False)
    ]
    left = len(plan.columns) - len(columns)
    more = f"\n  -- and {left} more columns" if left else ""
    names = (name for name in (plan.database, plan.table) if name is not None)
    target = ".".join(_quoted(name, dialect) for name in names)
    head = "CREATE TABLE IF NOT EXISTS" if plan.append else "CREATE TABLE"
    head = "CREATE OR REPLACE TABLE" if plan.replace else head
    return f"-- Import of {_line(plan.shown)}\n{head} {target} (\n" + ",\n".join(columns) + more + "\n)"


def _quoted(name: str, dialect: str) -> str:
    mark = "`" if dialect in _BACKTICKS else '"'
    return mark + name.replace(mark, mark * 2) + mark


def _line(text: str) -> str:
    """On one line, whatever ends lines and comments in whichever dialect."""
    return "".join(one if one.isprintable() else " " for one in text)
