"""The catalogue of types of connectors, one row for each dialect and interface (Contract platform 5.1).

What else a new dialect needs is listed in `connectors/engine_builders.py`.
"""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from enum import StrEnum
from types import MappingProxyType
from typing import Any, TypeAlias

from queryserver import errors
from queryserver.connectors import options
from queryserver.connectors.model import SettingValue
from queryserver.connectors.urls import UrlOptions
from queryserver.platform.settings.editor import GeneralSettings

Settings: TypeAlias = Mapping[str, SettingValue]
Flags: TypeAlias = Mapping[str, str | bool]


class Runs(StrEnum):
    """The use of connectors of a type on this server."""

    YES = "yes"
    """Statements run, without further installation."""
    DRIVER = "driver"
    """Statements run when the SQLAlchemy dialect that the url names is installed and allowed."""
    TEST = "test"
    """A connection can be tested; no statement is taken."""
    NO = "no"
    """Can be stored, listed and edited only."""


class Category(StrEnum):
    """Groups of a listing, in their order."""

    EDITOR = "editor"
    BROWSERS = "browsers"
    CATALOGS = "catalogs"
    OPTIMIZERS = "optimizers"
    SCHEDULERS = "schedulers"
    PLUGINS = "plugins"

    @property
    def label(self) -> str:
        return self.value.capitalize()


_ORDER = (
    "is_sql",
    "has_catalog",
    "has_database",
    "has_table",
    "has_live_queries",
    "has_optimizer_risks",
    "has_optimizer_values",
    "has_auto_limit",
    "has_reference_language",
    "has_reference_functions",
    "has_use_statement",
)
_QUOTES = {"b": "`", "d": '"'}


def flags(quote: str, letters: str) -> Flags:
    """All 13 flags of an SQL type: `quote` is b or d, `letters` are eleven T or F in the catalogue's order."""
    is_sql, *others = (letter == "T" for letter in letters)
    return MappingProxyType(
        {
            "is_sql": is_sql,
            "sql_identifier_quote": _QUOTES[quote],
            "sql_identifier_comment_single": "--",
            **dict(zip(_ORDER[1:], others, strict=True)),
        }
    )


@dataclass(frozen=True, slots=True)
class ConnectorType:
    """One row of the catalogue."""

    dialect: str
    interface: str
    nice_name: str
    runs: Runs
    settings: Settings
    """Names and default values in the order of the form, as listings show them."""
    flags: Flags
    """Empty for what is not SQL."""
    description: str = ""
    category: Category = Category.EDITOR

    @property
    def takes_statements(self) -> bool:
        """Whether an instance may become an interpreter of this server."""
        return self.runs in {Runs.YES, Runs.DRIVER}


_TUNNEL: Settings = MappingProxyType({"has_ssh": False, "ssh_server_host": "127.0.0.1"})
_SSH = tuple(_TUNNEL)
_SSH_AND_CALLER = (*_SSH, "has_impersonation")

_HIVE = flags("b", "TFTTFTTFTTT")
_HIVE_PLAIN = flags("b", "TFTTFTTFFFF")
_FULL = flags("d", "TTTTFTTFFFF")
_FULL_BACKTICK = flags("b", "TTTTFTTFFFF")
_NO_DATABASES = flags("d", "TFFTFTTFFFF")
_PLAIN_SQL = flags("d", "TFTTFFFFFFF")
_SPARK = flags("b", "TFTTFTTFFFT")
_ATHENA = "awsathena+rest://ACCESS_KEY:SECRET_KEY@athena.us-west-2.amazonaws.com:443/default?s3_staging_dir=s3://bucket/scratch"
_SOLR = "solr://user:password@localhost:8983/solr/<collection>[?use_ssl=true|false]"
_SQLFLOW: Settings = {"url": "localhost:50051", "datasource": "hive://localhost:10000/iris"}
_JDBC: Settings = {
    "url": "jdbc:db2://localhost:50000/SQOOP",
    "driver": "com.ibm.db2.jcc.DB2Driver",
    "user": "username",
    "password": "password",
    **_TUNNEL,
}
_NONE: Mapping[str, Any] = MappingProxyType({})


def _type(
    pair: str,
    name: str,
    settings: Settings = _NONE,
    flagged: Flags = _NONE,
    description: str = "",
    *,
    runs: Runs = Runs.NO,
    category: Category = Category.EDITOR,
) -> ConnectorType:
    """`pair`: dialect and interface."""
    dialect, interface = pair.split()
    return ConnectorType(dialect, interface, name, runs, settings, flagged, description, category)


def _own(
    pair: str,
    name: str,
    model: type[options.Options],
    flagged: Flags = _NONE,
    description: str = "",
    *,
    runs: Runs = Runs.YES,
    category: Category = Category.EDITOR,
) -> ConnectorType:
    return _type(pair, name, options.listed_options(model), flagged, description, runs=runs, category=category)


def _hs2(
    dialect: str, name: str, form: tuple[str, ...], flagged: Flags = _HIVE, description: str = ""
) -> ConnectorType:
    """`form`: the options that the listing has first, behind host and port."""
    listed = {**options.listed_options(options.HS2_OPTIONS[dialect]), **_TUNNEL}
    first = {setting: listed[setting] for setting in ("server_host", "server_port", *form)}
    rest = {setting: value for setting, value in listed.items() if setting not in _TUNNEL}
    return _type(f"{dialect} hiveserver2", name, {**first, **rest}, flagged, description, runs=Runs.YES)


def _url(
    dialect: str,
    name: str,
    url: str,
    flagged: Flags,
    description: str = "",
    *,
    form: Sequence[str] = _SSH,
    runs: Runs = Runs.DRIVER,
) -> ConnectorType:
    """`form`: the options that the listing has behind the url."""
    listed = options.listed_options(UrlOptions)
    settings = {"url": url, **{setting: listed[setting] for setting in form}}
    return _type(f"{dialect} sqlalchemy", name, settings, flagged, description, runs=runs)


def _only_stored(
    pair: str, name: str, url: str, flagged: Flags, description: str = "", option: str = "url"
) -> ConnectorType:
    return _type(pair, name, {option: url, **_TUNNEL}, flagged, description)


TYPES: Sequence[ConnectorType] = (
    _hs2("hive", "Hive", ("is_llap", "use_sasl"), description="Recommended"),
    _url("hive", "Hive", "hive://localhost:10000", _HIVE, "Via SqlAlchemy interface"),
    _hs2("impala", "Impala", ("impersonation_enabled", "use_sasl")),
    _url("impala", "Impala", "impala://localhost:21050", _HIVE, "Via SqlAlchemy interface"),
    _url("druid", "Druid", "druid://localhost:8082/druid/v2/sql/", flags("d", "TFTTFTTFFFF")),
    _only_stored("ksql ksql", "ksqlDB", "http://localhost:8088", flags("b", "TFFTTTTFFFF")),
    _only_stored("flink flink", "Flink SQL", "http://localhost:8083", flags("b", "TTFTFTTFFFF")),
    _url("sparksql", "SparkSQL", "hive://localhost:10000", _HIVE_PLAIN, "Via Thrift Server and SqlAlchemy interface"),
    _hs2(
        "sparksql",
        "SparkSQL",
        ("impersonation_enabled", *_SSH, "use_sasl"),
        _SPARK,
        "Via Thrift Server and Hive interface",
    ),
    _only_stored("sparksql livy", "SparkSQL", "http://localhost:8998", _HIVE_PLAIN, "Via Livy server", "api_url"),
    _url("phoenix", "Phoenix SQL", "phoenix://localhost:8765/", _NO_DATABASES, runs=Runs.YES),
    _hs2("hplsql", "Hplsql", ("is_llap", "use_sasl")),
    _url("mysql", "MySQL", "mysql://username:password@localhost:3306/database", _FULL_BACKTICK, runs=Runs.YES),
    _url("postgresql", "PostgreSQL", "postgresql://username:password@localhost:5432/database", _FULL, runs=Runs.YES),
    _url("trino", "Trino", "trino://localhost:8080/tpch", _FULL, form=_SSH_AND_CALLER, runs=Runs.YES),
    _url("presto", "Presto", "presto://localhost:8080/tpch", _FULL, form=_SSH_AND_CALLER),
    _url(
        "dasksql", "DaskSql", "presto://localhost:8080/catalog/default", flags("d", "TTTTFFTFFFF"), form=_SSH_AND_CALLER
    ),
    _url("elasticsearch", "Elasticsearch SQL", "elasticsearch+http://localhost:9200/", flags("d", "TFFTFFFFFFF")),
    _url("calcite", "Calcite", "calcite://localhost:10000/", _HIVE_PLAIN),
    _url("athena", "Athena", _ATHENA, _FULL, form=()),
    _url(
        "redshift", "Redshift", "redshift+psycopg2://username@host.amazonaws.com:5439/database", _FULL_BACKTICK, form=()
    ),
    _url("snowflake", "Snowflake", "snowflake://{user}:{password}@{account}/{database}", _FULL_BACKTICK, form=()),
    _url("bigquery", "Big Query", "bigquery://project-XXXXXX/dataset_name", _FULL_BACKTICK, form=("credentials_json",)),
    _url("oracle", "Oracle", "oracle://user:password@localhost", _FULL_BACKTICK),
    _url("clickhouse", "Clickhouse", "clickhouse://localhost:8123", _NO_DATABASES),
    _only_stored("solr solr", "Solr SQL", _SOLR, _FULL_BACKTICK),
    _url("sql", "SQL Database", "name://projectName/datasetName", _FULL_BACKTICK),
    _type(
        "sql jdbc",
        "SQL Database (JDBC)",
        _JDBC,
        flags("b", "TTTTFFFFFFF"),
        "Deprecated: older way to connect to any database.",
    ),
    _type("sqlflow sqlflow", "SqlFlow", _SQLFLOW, _FULL_BACKTICK),
    _type("pyspark livy", "PySpark"),
    _type("spark livy", "Spark"),
    _type("pig oozie", "Pig"),
    _type("java oozie", "Java"),
    _own("hdfs rest", "HDFS", options.HdfsOptions, runs=Runs.TEST, category=Category.BROWSERS),
    _type("yarn rest", "YARN", category=Category.BROWSERS),
    _type("s3 s3", "S3", category=Category.BROWSERS),
    _type("adls-v1 rest", "ADLS", category=Category.BROWSERS),
    _type(
        "hms hiveserver2",
        "Hive Metastore",
        {"server_host": "localhost", "server_port": 9083},
        category=Category.CATALOGS,
    ),
    _own("atlas rest", "Atlas", options.AtlasOptions, runs=Runs.TEST, category=Category.CATALOGS),
    _type("navigator rest", "Navigator", category=Category.CATALOGS),
    _type("optimizer rest", "Optimizer", category=Category.OPTIMIZERS),
    _type("oozie rest", "Oozie", category=Category.SCHEDULERS),
    _type("celery celery", "Celery", category=Category.SCHEDULERS),
    _own("trino trino", "Trino", options.TrinoOptions, _FULL, "Native protocol"),
    _own("phoenix phoenix", "Phoenix SQL", options.PhoenixOptions, _NO_DATABASES, "Native Query Server protocol"),
    _own("duckdb duckdb", "DuckDB", options.DuckdbOptions, flags("d", "TTTTFFFFFFF"), "Embedded analytical database"),
    _own("sqlite sqlite", "SQLite", options.SqliteOptions, _PLAIN_SQL, "Embedded database file"),
)
"""All rows in their order."""

Catalogue: TypeAlias = Mapping[tuple[str, str], ConnectorType]

BY_PAIR: Catalogue = MappingProxyType({(row.dialect, row.interface): row for row in TYPES})
"""Types by dialect and interface, in their order."""


def flags_of(dialect: str, interface: str) -> Flags:
    """The flags of a pair. An interpreter of the settings may have another: then those of its dialect, or plain SQL."""
    row = BY_PAIR.get((dialect, interface)) or next((one for one in TYPES if one.dialect == dialect), None)
    return _PLAIN_SQL if row is None else row.flags


def with_defaults(row: ConnectorType, defaults: Settings) -> ConnectorType:
    """The type with these defaults for what it lists; other names do not count."""
    return replace(row, settings={name: defaults.get(name, value) for name, value in row.settings.items()})


_LONGEST_S = 365 * 24 * 3600
_MOST_CHARACTERS = 64 * 1024
_WHOLE = re.compile(r"\s*[+-]?[0-9]{1,19}\s*")
_CONTROLS = re.compile(r"[\x00-\x1f\x7f\ud800-\udfff]")
_NO_LINES = {ord(one): None for one in "\r\n\t"}
_OF_LINES = frozenset({"ssl_ca", "credentials_json"})
_NAME_SHOWN = 100
_GENERAL: Settings = MappingProxyType(
    {name: 1 if name.endswith("_s") else False for name in GeneralSettings.model_fields}
)
"""Further settings of every type that runs here, each with a value of its type."""


def complete_settings(row: ConnectorType, given: Mapping[str, object]) -> dict[str, SettingValue]:
    """The given settings, in the order and with the types of the row; defaults for the others.

    Raises unknown_setting, ConnectorRefused; their texts hold no values.
    """
    kinds = {**(_GENERAL if row.takes_statements else {}), **row.settings}
    unknown = [name for name in given if name not in kinds]
    if unknown:
        text = f"Connectors of {row.dialect} with interface {row.interface} have no such setting."
        raise errors.unknown_setting({name[:_NAME_SHOWN]: [text] for name in unknown})
    settings, problems = dict(row.settings), dict[str, list[str]]()
    for name, kind in kinds.items():
        if given.get(name) is None:
            continue
        try:
            settings[name] = _typed(name, given[name], kind)
        except ValueError as problem:
            problems[name] = [str(problem)]
    for name in _GENERAL:
        if name.endswith("_s") and not 1 <= int(settings.get(name, 1)) <= _LONGEST_S:
            problems[name] = [f"Must be between 1 and {_LONGEST_S}."]
    if problems:
        raise errors.ConnectorRefused(problems)
    return settings


def _typed(name: str, value: object, kind: SettingValue) -> SettingValue:
    """The value in the type of `kind`. Raises ValueError with the text of the problem."""
    problem = None
    if isinstance(kind, bool):
        if (flag := options.flag_of(value)) is not None:
            return flag
        problem = "Must be true or false."
    elif isinstance(kind, int):
        text = value if isinstance(value, str) else str(value) if type(value) is int else ""
        if isinstance(value, float) and value.is_integer() and abs(value) <= 2**53:
            text = str(int(value))
        if _WHOLE.fullmatch(text) and abs(int(text)) <= 2**63 - 1:
            return int(text)
        problem = "Must be a whole number."
    elif not isinstance(value, str):
        problem = "Must be text."
    elif len(value) > _MOST_CHARACTERS:
        problem = f"Must have at most {_MOST_CHARACTERS} characters."
    elif _CONTROLS.search(value.translate(_NO_LINES) if name in _OF_LINES else value):
        problem = "Must be free of control characters."
    else:
        return value
    raise ValueError(problem)
