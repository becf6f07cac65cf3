"""Matches statements by their form and produces plans: columns, rows, metadata changes or a sleep."""

import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field

import duckdb
from tests.engines.scripted_hs2 import listings, objects
from tests.engines.scripted_hs2.sql_text import for_duckdb, name_of
from tests.engines.scripted_hs2.warehouse import StatementRefusal, Warehouse

TEXT = "string"
_MARKED = re.compile(r"(LINE (\d+): )(.*)\n( *)\^")
_SLEEP = re.compile(r"\s*SELECT\s+SLEEP\((\d+)\)\s*", re.IGNORECASE)
_WORD = re.compile(r"[a-z]+(?: (?:extended|formatted|column|database|functions|table|view))*", re.IGNORECASE)
_MISSING = re.compile(r"Table with name (\S+) does not exist")
_LENGTHS = re.compile(r"\bAS ((?:VAR)?CHAR\(\d+\))\s*\)", re.IGNORECASE)
_SCANNED = re.compile(r"\b(?:from|join) (\w+)", re.IGNORECASE)
_CHANGES = ("insert", "update", "delete", "upsert")


@dataclass(slots=True)
class Plan:
    """The result of a statement. `columns` are names and types, or None if there is no result set; `cursor` has rows
    that are still to be fetched.
    """

    columns: Sequence[tuple[str, str]] | None = None
    rows: Sequence[tuple[object, ...]] = ()
    cursor: duckdb.DuckDBPyConnection | None = None
    sleep_s: float = 0
    modified_rows: int | None = None
    is_query: bool = False


@dataclass(slots=True)
class Context:
    """The session state that affects statements."""

    warehouse: Warehouse
    database: str = "default"
    options: dict[str, str] = field(default_factory=dict)
    statement_options: dict[str, str] = field(default_factory=dict)
    """The options of the current statement only (`confOverlay`)."""
    cursors: list[duckdb.DuckDBPyConnection] = field(default_factory=list)


def plan(context: Context, statement: str) -> Plan:
    """Analyze the statement, and execute it unless it is a query. Raises StatementRefusal."""
    text = for_duckdb(statement).strip().rstrip(";").strip()
    if not text:
        raise StatementRefusal(
            "ParseException: Syntax error in line 1:\n\n^\nEncountered: EOF\nExpected: SELECT, SHOW, USE"
        )
    if sleep := _SLEEP.fullmatch(text):
        return Plan([("sleep", "boolean")], [(True,)], sleep_s=int(sleep.group(1)) / 1000, is_query=True)
    for form, rule in _FORMS:
        if match := form.fullmatch(statement.strip().rstrip(";")):
            return rule(context, match)
    return _by_duckdb(context, text)


def _use(context: Context, match: re.Match[str]) -> Plan:
    name = name_of(match.group(1))
    context.warehouse.database(name)
    context.database = name
    return Plan()


def _set(context: Context, match: re.Match[str]) -> Plan:
    name, value = match.group(1).upper(), match.group(2).strip("'\"")
    if name not in objects.QUERY_OPTIONS:
        raise StatementRefusal(f"Invalid query option: {match.group(1)}")
    context.options[name] = value
    return Plan()


def _options(context: Context, _: re.Match[str]) -> Plan:
    options = {**objects.QUERY_OPTIONS, **context.options}
    return Plan([("option", TEXT), ("value", TEXT), ("level", TEXT)], [(*one, "REGULAR") for one in options.items()])


def _current_database(context: Context, match: re.Match[str]) -> Plan:
    return Plan([(match.group(1) or "current_database()", TEXT)], [(context.database,)], is_query=True)


def _explain(context: Context, match: re.Match[str]) -> Plan:
    inner = for_duckdb(match.group(1))
    _run(context, f"EXPLAIN {inner}").close()
    lines = ["Max Per-Host Resource Reservation: Memory=0B Threads=1", "", "PLAN-ROOT SINK", "|"]
    options = {**objects.QUERY_OPTIONS, **context.options, **context.statement_options}
    for number, table in enumerate(_SCANNED.findall(inner)):
        lines.append(f"{number:02}:SCAN HDFS [{context.database}.{table}]")
        lines += ["   HDFS partitions=1/1 files=1 size=1.50KB"] * (options["EXPLAIN_LEVEL"] != "0")
    return Plan([("Explain String", TEXT)], [(line,) for line in lines])


def _rows(columns: str, rule: Callable[[Context, re.Match[str]], Iterator[tuple[object, ...]]]):
    """Return a rule for a statement that lists objects. `columns` are names, or name:type."""
    declared = [tuple(one.partition(":")[::2]) for one in columns.split(",")]

    def listed(context: Context, match: re.Match[str]) -> Plan:
        return Plan([(name, kind or TEXT) for name, kind in declared], list(rule(context, match)))

    return listed


def _done(rule: Callable[[Context, re.Match[str]], str]):
    """Return a rule for a statement that changes metadata, for which Impala returns a summary."""
    return lambda context, match: Plan([("summary", TEXT)], [(rule(context, match),)])


def _by_duckdb(context: Context, text: str) -> Plan:
    verb = text.split(None, 1)[0].lower()
    cursor = _run(context, text)
    if verb in _CHANGES:
        (count,) = cursor.fetchone() or (0,)
        cursor.close()
        return Plan(modified_rows=count, is_query=True)
    declared = _LENGTHS.findall(text)
    columns = [
        (name, declared[0].lower() if declared and str(kind) == "VARCHAR" else objects.impala_type(str(kind)))
        for name, kind, *_ in cursor.description
    ]
    return Plan(columns, cursor=cursor, is_query=True)


def _syntax_error(text: str) -> str:
    """Format the error as Impala does: the line, a marker below it, then the token found (sql-parser.cup,
    getErrorMessage).
    """
    shown = _MARKED.search(text)
    if shown is None:
        return f"ParseException: Syntax error in line 1:\n{text.splitlines()[0]}"
    label, number, line, blanks = shown.groups()
    # Java counts UTF-16 code units, and DuckDB counts display columns; both count two for an emoji.
    mark = " " * (len(blanks) - len(label)) + "^"
    return f"ParseException: Syntax error in line {number}:\n{line}\n{mark}\nEncountered: )\nExpected: FROM, LIMIT"


def _run(context: Context, text: str) -> duckdb.DuckDBPyConnection:
    cursor = context.warehouse.rows.cursor()
    context.cursors.append(cursor)
    try:
        cursor.execute(f"SET schema = '{context.database}'")
        return cursor.execute(text)
    except duckdb.ParserException as error:
        raise StatementRefusal(_syntax_error(str(error))) from error
    except duckdb.InterruptException as error:
        raise StatementRefusal("Cancelled") from error
    except duckdb.Error as error:
        missing = _MISSING.search(str(error))
        words = f"Could not resolve table reference: '{missing.group(1)}'" if missing else _first_line(error)
        raise StatementRefusal(f"AnalysisException: {words}") from error


def _first_line(error: Exception) -> str:
    return str(error).split("\n", 1)[0]


def _form(text: str) -> re.Pattern[str]:
    name, string = r"(`(?:\\.|[^`\\])*`|\w+)", r"('(?:\\.|''|[^'\\])*')"
    pattern = (
        text.replace(" ", r"\s+").replace("<t>", rf"(?:{name}\.)?{name}").replace("<n>", name).replace("<s>", string)
    )
    return re.compile(pattern, re.IGNORECASE | re.DOTALL)


_FORMS: Sequence[tuple[re.Pattern[str], Callable[[Context, re.Match[str]], Plan]]] = (
    (_form(r"use <n>"), _use),
    (_form(r"set"), _options),
    (_form(r"set (\w+)\s*=\s*(.*)"), _set),
    (_form(r"select current_database\(\)(?: as <n>)?"), _current_database),
    (_form(r"explain (.*)"), _explain),
    (_form(r"create database <n>(?: comment <s>)?"), _done(objects.create_database)),
    (_form(r"drop database <n>(?: cascade)?"), _done(objects.drop_database)),
    (_form(r"comment on database <n> is <s>"), _done(objects.comment_database)),
    (_form(r"create( external)? table <t>\s*\((.*?)\)(?: comment <s>)?(?: stored as (\w+))?"),
     _done(objects.create_table)),
    (_form(r"create view <t>(?: comment <s>)? as (.*)"), _done(objects.create_view)),
    (_form(r"drop (table|view) <t>"), _done(objects.drop_table)),
    (_form(r"compute stats <t>(?:\s*\((.*)\))?"), _done(objects.compute_statistics)),
    (_form(r"show databases"), _rows("name,comment", listings.databases)),
    (_form(r"show tables in <n>"), _rows("name", listings.tables)),
    (_form(r"show views in <n>"), _rows("name", listings.views)),
    (_form(r"show functions in <n>(?: like <s>)?"),
     _rows("return type,signature,binary type,is persistent", listings.functions)),
    (_form(r"show column stats <t>"),
     _rows("Column,Type,#Distinct Values:bigint,#Nulls:bigint,Max Size:bigint,Avg Size:double,#Trues:bigint,"
           "#Falses:bigint", listings.column_statistics)),
    (_form(r"show partitions <t>"), _rows("#Rows:bigint", listings.partitions)),
    (_form(r"describe database extended <n>"), _rows("name,location,comment", listings.database)),
    (_form(r"describe formatted <t>"), _rows("name,type,comment", listings.formatted)),
    (_form(r"describe <t>"), _rows("name,type,comment", listings.described)),
)  # fmt: skip
