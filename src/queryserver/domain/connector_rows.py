"""The types of connectors as data (Contract platform 5.10), in the order of the catalogue."""

from queryserver.domain.connector_instances import SettingValue
from queryserver.domain.connector_types import Category, ConnectorType, Runs, Settings, flags

_SQLALCHEMY = "sqlalchemy"
_HS2 = "hiveserver2"
_REST = "rest"

_TUNNEL: Settings = (("has_ssh", False), ("ssh_server_host", "127.0.0.1"))
_IMPERSONATION: Settings = (("has_impersonation", False),)

_HIVE = flags("b", "TFTTFTTFTTT")
_HIVE_PLAIN = flags("b", "TFTTFTTFFFF")
_FULL = flags("d", "TTTTFTTFFFF")
_FULL_BACKTICK = flags("b", "TTTTFTTFFFF")
_NO_DATABASES = flags("d", "TFFTFTTFFFF")


def _hs2(nice_name: str, dialect: str, *settings: tuple[str, SettingValue], description: str = "") -> ConnectorType:
    flagged = flags("b", "TFTTFTTFFFT") if dialect == "sparksql" else _HIVE
    listed = (*settings, *_optional_of_hs2(dialect, {name for name, _ in settings}))
    return ConnectorType(dialect, _HS2, nice_name, Runs.YES, listed, flagged, description)


def _optional_of_hs2(dialect: str, listed: set[str]) -> Settings:
    """Further settings of hiveserver2 (Contract platform 5.11) with their defaults."""
    is_impala = dialect == "impala"
    further: Settings = (
        ("auth_mechanism", ""),
        ("transport_mode", "binary"),
        ("http_path", "cliservice"),
        ("username", ""),
        ("password", ""),
        ("impersonation_enabled", dialect in {"hive", "hplsql"}),
        ("kerberos_service_name", "impala" if is_impala else "hive"),
        ("kerberos_host", ""),
        ("use_ssl", False),
        ("ssl_validate", True),
        ("ssl_ca", ""),
        ("allow_insecure_http", False),
        ("database", "default"),
        ("connect_timeout_s", 10),
        ("query_timeout_s", 600 if is_impala else 0),
        ("session_timeout_s", 3600 if is_impala else 0),
        ("close_queries", False),
        ("session_conf", ""),
        ("is_llap", False),
    )
    return tuple((name, value) for name, value in further if name not in listed)


_HS2_ADDRESS: Settings = (("server_host", "localhost"), ("server_port", 10000))

EDITORS = (
    _hs2("Hive", "hive", *_HS2_ADDRESS, ("is_llap", False), ("use_sasl", True), description="Recommended"),
    ConnectorType(
        "hive",
        _SQLALCHEMY,
        "Hive",
        Runs.DRIVER,
        (("url", "hive://localhost:10000"), *_TUNNEL),
        _HIVE,
        "Via SqlAlchemy interface",
    ),
    _hs2(
        "Impala",
        "impala",
        ("server_host", "localhost"),
        ("server_port", 21050),
        ("impersonation_enabled", False),
        ("use_sasl", False),
    ),
    ConnectorType(
        "impala",
        _SQLALCHEMY,
        "Impala",
        Runs.DRIVER,
        (("url", "impala://localhost:21050"), *_TUNNEL),
        _HIVE,
        "Via SqlAlchemy interface",
    ),
    ConnectorType(
        "druid",
        _SQLALCHEMY,
        "Druid",
        Runs.DRIVER,
        (("url", "druid://localhost:8082/druid/v2/sql/"), *_TUNNEL),
        flags("d", "TFTTFTTFFFF"),
    ),
    ConnectorType(
        "ksql",
        "ksql",
        "ksqlDB",
        Runs.NO,
        (("url", "http://localhost:8088"), *_TUNNEL),
        flags("b", "TFFTTTTFFFF"),
    ),
    ConnectorType(
        "flink",
        "flink",
        "Flink SQL",
        Runs.NO,
        (("url", "http://localhost:8083"), *_TUNNEL),
        flags("b", "TTFTFTTFFFF"),
    ),
    ConnectorType(
        "sparksql",
        _SQLALCHEMY,
        "SparkSQL",
        Runs.DRIVER,
        (("url", "hive://localhost:10000"), *_TUNNEL),
        _HIVE_PLAIN,
        "Via Thrift Server and SqlAlchemy interface",
    ),
    _hs2(
        "SparkSQL",
        "sparksql",
        *_HS2_ADDRESS,
        ("impersonation_enabled", False),
        *_TUNNEL,
        ("use_sasl", True),
        description="Via Thrift Server and Hive interface",
    ),
    ConnectorType(
        "sparksql",
        "livy",
        "SparkSQL",
        Runs.NO,
        (("api_url", "http://localhost:8998"), *_TUNNEL),
        _HIVE_PLAIN,
        "Via Livy server",
    ),
    ConnectorType(
        "phoenix",
        _SQLALCHEMY,
        "Phoenix SQL",
        Runs.YES,
        (("url", "phoenix://localhost:8765/"), *_TUNNEL),
        _NO_DATABASES,
    ),
    _hs2("Hplsql", "hplsql", *_HS2_ADDRESS, ("is_llap", False), ("use_sasl", True)),
    ConnectorType(
        "mysql",
        _SQLALCHEMY,
        "MySQL",
        Runs.YES,
        (("url", "mysql://username:password@localhost:3306/database"), *_TUNNEL),
        _FULL_BACKTICK,
    ),
    ConnectorType(
        "postgresql",
        _SQLALCHEMY,
        "PostgreSQL",
        Runs.YES,
        (("url", "postgresql://username:password@localhost:5432/database"), *_TUNNEL),
        _FULL,
    ),
    ConnectorType(
        "trino",
        _SQLALCHEMY,
        "Trino",
        Runs.YES,
        (("url", "trino://localhost:8080/tpch"), *_TUNNEL, *_IMPERSONATION),
        _FULL,
    ),
    ConnectorType(
        "presto",
        _SQLALCHEMY,
        "Presto",
        Runs.DRIVER,
        (("url", "presto://localhost:8080/tpch"), *_TUNNEL, *_IMPERSONATION),
        _FULL,
    ),
    ConnectorType(
        "dasksql",
        _SQLALCHEMY,
        "DaskSql",
        Runs.DRIVER,
        (("url", "presto://localhost:8080/catalog/default"), *_TUNNEL, *_IMPERSONATION),
        flags("d", "TTTTFFTFFFF"),
    ),
    ConnectorType(
        "elasticsearch",
        _SQLALCHEMY,
        "Elasticsearch SQL",
        Runs.DRIVER,
        (("url", "elasticsearch+http://localhost:9200/"), *_TUNNEL),
        flags("d", "TFFTFFFFFFF"),
    ),
    ConnectorType(
        "calcite",
        _SQLALCHEMY,
        "Calcite",
        Runs.DRIVER,
        (("url", "calcite://localhost:10000/"), *_TUNNEL),
        _HIVE_PLAIN,
    ),
    ConnectorType(
        "athena",
        _SQLALCHEMY,
        "Athena",
        Runs.DRIVER,
        (
            (
                "url",
                (
                    "awsathena+rest://ACCESS_KEY:SECRET_KEY@athena.us-west-2.amazonaws.com:443/default"
                    "?s3_staging_dir=s3://bucket/scratch"
                ),
            ),
        ),
        _FULL,
    ),
    ConnectorType(
        "redshift",
        _SQLALCHEMY,
        "Redshift",
        Runs.DRIVER,
        (("url", "redshift+psycopg2://username@host.amazonaws.com:5439/database"),),
        _FULL_BACKTICK,
    ),
    ConnectorType(
        "snowflake",
        _SQLALCHEMY,
        "Snowflake",
        Runs.DRIVER,
        (("url", "snowflake://{user}:{password}@{account}/{database}"),),
        _FULL_BACKTICK,
    ),
    ConnectorType(
        "bigquery",
        _SQLALCHEMY,
        "Big Query",
        Runs.DRIVER,
        (
            ("url", "bigquery://project-XXXXXX/dataset_name"),
            ("credentials_json", '{"type": "service_account", ...}'),
        ),
        _FULL_BACKTICK,
    ),
    ConnectorType(
        "oracle",
        _SQLALCHEMY,
        "Oracle",
        Runs.DRIVER,
        (("url", "oracle://user:password@localhost"), *_TUNNEL),
        _FULL_BACKTICK,
    ),
    ConnectorType(
        "clickhouse",
        _SQLALCHEMY,
        "Clickhouse",
        Runs.DRIVER,
        (("url", "clickhouse://localhost:8123"), *_TUNNEL),
        _NO_DATABASES,
    ),
    ConnectorType(
        "solr",
        "solr",
        "Solr SQL",
        Runs.NO,
        (("url", "solr://user:password@localhost:8983/solr/<collection>[?use_ssl=true|false]"), *_TUNNEL),
        _FULL_BACKTICK,
    ),
    ConnectorType(
        "sql",
        _SQLALCHEMY,
        "SQL Database",
        Runs.DRIVER,
        (("url", "name://projectName/datasetName"), *_TUNNEL),
        _FULL_BACKTICK,
    ),
    ConnectorType(
        "sql",
        "jdbc",
        "SQL Database (JDBC)",
        Runs.NO,
        (
            ("url", "jdbc:db2://localhost:50000/SQOOP"),
            ("driver", "com.ibm.db2.jcc.DB2Driver"),
            ("user", "username"),
            ("password", "password"),
            *_TUNNEL,
        ),
        flags("b", "TTTTFFFFFFF"),
        "Deprecated: older way to connect to any database.",
    ),
    ConnectorType(
        "sqlflow",
        "sqlflow",
        "SqlFlow",
        Runs.NO,
        (("url", "localhost:50051"), ("datasource", "hive://localhost:10000/iris")),
        _FULL_BACKTICK,
    ),
    ConnectorType("pyspark", "livy", "PySpark", Runs.NO),
    ConnectorType("spark", "livy", "Spark", Runs.NO),
    ConnectorType("pig", "oozie", "Pig", Runs.NO),
    ConnectorType("java", "oozie", "Java", Runs.NO),
)

OTHERS = (
    ConnectorType(
        "hdfs",
        _REST,
        "HDFS",
        Runs.TEST,
        (("server_url", "http://localhost:9870/webhdfs/v1"), ("default_fs", "hdfs://localhost:8020")),
        category=Category.BROWSERS,
    ),
    ConnectorType("yarn", _REST, "YARN", Runs.NO, category=Category.BROWSERS),
    ConnectorType("s3", "s3", "S3", Runs.NO, category=Category.BROWSERS),
    ConnectorType("adls-v1", _REST, "ADLS", Runs.NO, category=Category.BROWSERS),
    ConnectorType(
        "hms",
        _HS2,
        "Hive Metastore",
        Runs.NO,
        (("server_host", "localhost"), ("server_port", 9083)),
        category=Category.CATALOGS,
    ),
    ConnectorType(
        "atlas",
        _REST,
        "Atlas",
        Runs.TEST,
        (("url", "http://localhost:21000"), ("username", ""), ("password", "")),
        category=Category.CATALOGS,
    ),
    ConnectorType("navigator", _REST, "Navigator", Runs.NO, category=Category.CATALOGS),
    ConnectorType("optimizer", _REST, "Optimizer", Runs.NO, category=Category.OPTIMIZERS),
    ConnectorType("oozie", _REST, "Oozie", Runs.NO, category=Category.SCHEDULERS),
    ConnectorType("celery", "celery", "Celery", Runs.NO, category=Category.SCHEDULERS),
)

NATIVE = (
    ConnectorType(
        "trino",
        "trino",
        "Trino",
        Runs.YES,
        (
            ("url", "http://localhost:8080"),
            ("catalog", ""),
            ("schema", ""),
            ("username", ""),
            ("password", ""),
            ("auth_mechanism", "NONE"),
            *_IMPERSONATION,
            ("ssl_validate", True),
            ("ssl_ca", ""),
            ("session_properties", ""),
            ("client_tags", ""),
        ),
        _FULL,
        "Native protocol",
    ),
    ConnectorType(
        "phoenix",
        "phoenix",
        "Phoenix SQL",
        Runs.YES,
        (
            ("url", "http://localhost:8765/"),
            ("username", ""),
            ("password", ""),
            ("auth_mechanism", "NONE"),
            ("ssl_validate", True),
            ("ssl_ca", ""),
            ("serialization", "PROTOBUF"),
        ),
        _NO_DATABASES,
        "Native Query Server protocol",
    ),
    ConnectorType(
        "duckdb",
        "duckdb",
        "DuckDB",
        Runs.YES,
        (("path", ":memory:"), ("read_only", False), ("memory_limit", "1GB"), ("threads", 2)),
        flags("d", "TTTTFFFFFFF"),
        "Embedded analytical database",
    ),
    ConnectorType(
        "sqlite",
        "sqlite",
        "SQLite",
        Runs.YES,
        (("path", ":memory:"), ("read_only", False)),
        flags("d", "TFTTFFFFFFF"),
        "Embedded database file",
    ),
)

ROWS = (*EDITORS, *OTHERS, *NATIVE)
