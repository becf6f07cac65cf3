"""Server messages and logs without internal details, and the domain errors of server failures."""

import pytest
from tests.timing import processor_s

from queryserver.engines.hiveserver2.errors import (
    MAX_LINE_CHARACTERS,
    LogFilter,
    Purpose,
    ServerRefused,
    clean_message,
    domain_error,
    without_internals,
)
from queryserver.engines.hiveserver2.structs import TStatus, TStatusCode
from queryserver.errors.statements import (
    CredentialsRequired,
    EngineTimeout,
    EngineUnavailable,
    OutcomeUnknown,
    SessionLost,
    StatementDenied,
    StatementRejected,
)

SPARK = (
    "org.apache.hive.service.cli.HiveSQLException: Error running query: [TABLE_OR_VIEW_NOT_FOUND]"
    " org.apache.spark.sql.AnalysisException: [TABLE_OR_VIEW_NOT_FOUND] The table or view `t` cannot be found.\n"
    "To tolerate the error use IF EXISTS.\n\n"
    "\tat org.apache.spark.sql.hive.thriftserver.X$.run(X.scala:43)\n\tat y.Z.a(Z:1)"
)
OPENING = (
    "*org.apache.hive.service.cli.HiveSQLException:Failed to open new session:"
    " org.apache.spark.sql.catalyst.analysis.NoSuchDatabaseException:"
    " [SCHEMA_NOT_FOUND] The schema `x` is missing.:14:13"
)


@pytest.mark.parametrize(
    ("raw", "clean"),
    [
        (
            SPARK,
            "[TABLE_OR_VIEW_NOT_FOUND] The table or view `t` cannot be found.\nTo tolerate the error use IF EXISTS.",
        ),
        (OPENING, "[SCHEMA_NOT_FOUND] The schema `x` is missing."),
        (
            "Error while compiling statement: FAILED: ParseException line 1:0 cannot recognize input",
            "Error while compiling statement: FAILED: ParseException line 1:0 cannot recognize input",
        ),
        (
            "AnalysisException: Could not resolve table reference: 'x'",
            "AnalysisException: Could not resolve table reference: 'x'",
        ),
        ("Cannot read file:/var/lib/secret/part-0 now", "Cannot read (path) now"),
    ],
)
def test_error_messages_lose_exception_wrappers(raw, clean):
    assert clean_message(raw) == clean


def test_first_info_message_replaces_missing_error_message():
    status = TStatus(status_code=TStatusCode.ERROR, info_messages=[OPENING, "a.B:c:B.scala:1"])
    assert str(ServerRefused(status)) == "[SCHEMA_NOT_FOUND] The schema `x` is missing."


@pytest.mark.parametrize(
    ("message", "purpose", "expected"),
    [
        ("Database nope does not exist", Purpose.OPEN, StatementRejected),
        ("Cannot modify x at runtime. It is not in list of params", Purpose.OPEN, StatementRejected),
        ("User: svc is not allowed to impersonate ada", Purpose.OPEN, CredentialsRequired),
        ("Cannot open sessions on an inactive HS2 instance", Purpose.OPEN, EngineUnavailable),
        ("Hs2Connection limit per user reached (user: ada limit: 1)", Purpose.OPEN, EngineUnavailable),
        ("Invalid SessionHandle: SessionHandle [5f2]", Purpose.SUBMIT, SessionLost),
        ("Invalid session id: 5f2:9", Purpose.SUBMIT, SessionLost),
        ("Client session expired due to more than 3600s of inactivity", Purpose.SUBMIT, SessionLost),
        ("Invalid SessionHandle: SessionHandle [5f2]", Purpose.FOLLOW, OutcomeUnknown),
        ("Invalid OperationHandle: OperationHandle [opType=EXECUTE_STATEMENT]", Purpose.FOLLOW, OutcomeUnknown),
        ("Invalid query handle: 12:ab", Purpose.FOLLOW, OutcomeUnknown),
        ("Query 12:ab expired due to client inactivity (timeout is 5m)", Purpose.FOLLOW, OutcomeUnknown),
        ("Query timed out after 10 seconds", Purpose.FOLLOW, EngineTimeout),
        ("Table not found 'x'", Purpose.SUBMIT, StatementRejected),
        ("Vertex failed", Purpose.FOLLOW, StatementRejected),
        ("Permission denied: user [ada] does not have [SELECT] privilege on [d/t]", Purpose.SUBMIT, StatementDenied),
        (
            "AuthorizationException: User 'ada' does not have privileges to execute 'SELECT'",
            Purpose.SUBMIT,
            StatementDenied,
        ),
    ],
)
def test_server_messages_map_to_domain_errors(message, purpose, expected):
    assert type(domain_error(message, purpose)) is expected


def test_invalid_operation_handle_means_expired_results():
    error = domain_error("anything", Purpose.FOLLOW, TStatusCode.INVALID_HANDLE)
    assert error.message.startswith("Results have expired")


@pytest.mark.parametrize("unit", ["\n", " \n", "a.", "\n  at ", "x.Y: ", "file:/a "])
def test_message_cleaning_takes_linear_time(unit: str) -> None:
    message = "org.apache.ParseException: bad\n" + unit * (500_000 // len(unit)) + "q"
    # A pattern with quadratic run time would take minutes.
    assert processor_s(lambda: clean_message(message)) < 5


SPARK_LOG = """\
26/11/23 11:43:55 ERROR SparkExecuteStatementOperation: Error executing query with ba3b7151, currentState RUNNING
org.apache.spark.SparkArithmeticException: [DIVIDE_BY_ZERO] Division by zero. Use `try_divide` to tolerate it.
== SQL(line 1, position 8) ==
SELECT 1/0
       ^^^

\tat org.apache.spark.sql.errors.QueryExecutionErrors$.divideByZeroError(QueryExecutionErrors.scala:204)
\tat org.apache.spark.sql.catalyst.expressions.GeneratedClass$Stage1.hashAgg_doConsume_0$(Unknown Source)
\tat scala.collection.immutable.List.foreach(List.scala:431)
\tat java.base/jdk.internal.reflect.NativeConstructorAccessorImpl.newInstance0(Native Method)
\tat org.apache.spark.sql.catalyst.expressions.JsonToStructs.<init>(jsonExpressions.scala:564)
\t... 19 more

Driver stacktrace:
\tat org.apache.spark.scheduler.DAGScheduler.abortStage(DAGScheduler.scala:2833)
Caused by: org.apache.orc.FileFormatException: Malformed ORC file file:/opt/spark/data/x.orc. Invalid postscript.
\tat org.apache.orc.impl.ReaderImpl.ensureOrcFooter(ReaderImpl.java:284)
\t... 3 more
Caused by: java.lang.reflect.InvocationTargetException
\tat java.base/java.lang.reflect.Method.invoke(Method.java:569)"""
SPARK_LOG_CLEAN = """\
26/11/23 11:43:55 ERROR SparkExecuteStatementOperation: Error executing query with ba3b7151, currentState RUNNING
[DIVIDE_BY_ZERO] Division by zero. Use `try_divide` to tolerate it.
== SQL(line 1, position 8) ==
SELECT 1/0
       ^^^


Cause: Malformed ORC file (path). Invalid postscript.
Cause: InvocationTargetException"""

ATTEMPT = """\
], TaskAttempt {n} failed, [Error: Node: worker-7/10.1.2.3 : Error: \
attempt_1_{n}:java.lang.RuntimeException: org.apache.hadoop.hive.ql.metadata.HiveException: Hive Runtime Error
\tat org.apache.hadoop.hive.ql.exec.tez.TezProcessor.run(TezProcessor.java:276)
Caused by: java.lang.RuntimeException: org.apache.hadoop.hive.ql.metadata.HiveException: Hive Runtime Error
\tat org.apache.hadoop.hive.ql.exec.tez.MapRecordSource.processRow(MapRecordSource.java:110)
\t... 16 more
Caused by: org.apache.hadoop.hive.ql.metadata.HiveException: ASSERT_TRUE(): assertion failed.
\t... 20 more"""
HIVE_LOG = "\n".join(
    [
        "INFO  : HS2 Host: [hs2-internal], Query ID: [root_2026]",
        "INFO  : Moving data to directory file:/tmp/wh/n3 from file:/tmp/wh/.hive-staging_1/-ext-10002",
        "INFO  : Loading data to table default.n3 from hdfs://nn:8020/user/hive/n3/.hive-staging_2/-ext-10000",
        *(ATTEMPT.format(n=number) for number in range(4)),
        "ERROR : FAILED: Execution Error, return code 2 from org.apache.hadoop.hive.ql.exec.tez.TezTask. Vertex failed",
    ]
)
HIVE_LOG_CLEAN = [
    "INFO  : HS2 Host: [(host)], Query ID: [root_2026]",
    "INFO  : Moving data to directory (path) from (path)",
    "INFO  : Loading data to table default.n3 from hdfs://nn:8020/user/hive/n3/.hive-staging_2/-ext-10000",
    *(
        line
        for number in range(4)
        for line in (
            f"], TaskAttempt {number} failed, [Error: Node: (address) : Error: attempt_1_{number}:Hive Runtime Error",
            *(() if number else ("Cause: Hive Runtime Error", "Cause: ASSERT_TRUE(): assertion failed.")),
        )
    ),
    "ERROR : FAILED: Execution Error, return code 2 from TezTask. Vertex failed",
]


def cleaned(lines: list[str]) -> list[str]:
    log = LogFilter()
    return [clean for line in lines if (clean := log.line(line)) is not None]


def test_spark_failure_log_has_no_stack_trace() -> None:
    assert "\n".join(cleaned(SPARK_LOG.splitlines())) == SPARK_LOG_CLEAN


def test_hive_task_failure_log_shows_each_cause_once() -> None:
    assert cleaned(HIVE_LOG.splitlines()) == HIVE_LOG_CLEAN


@pytest.mark.parametrize(
    ("text", "clean"),
    [
        ("a\tat x.Y.z(Y.java:1)\tat x.Y.w(Y.java:2) ~[x.jar:1.0]", "a"),
        ("java.io.FileNotFoundException: /var/lib/hive/aux/x.jar (No such file)", "(path) (No such file)"),
        ("log in '/tmp/root/op_1.log', done", "log in '(path)', done"),
        ("The url of the job: http://rm.internal:8088/proxy/application_1/", "The url of the job: (address)"),
        ("jdbc:derby://db:1527/metastore;create=true refused", "(address) refused"),
        ("jdbc:sqlserver://db;user=sa;password=s3cret failed", "(address) failed"),
        ("jdbc:oracle:thin:scott/tiger@db:1521/x failed", "(address) failed"),
        ("no answer of ldap://dir.internal:389, spark://10.0.0.1:7077", "no answer of (address), (address)"),
        ("refused: nn.internal/<unresolved>:8020", "refused: (address)"),
        (
            "Call From hs2.internal/10.0.0.1 to nn.internal:8020 failed on x",
            "Call From (address) to (host) failed on x",
        ),
        ("error:/opt/hive/x.xml, local:/opt/spark/x.jar", "error:(path), local:(path)"),
        ("to /hadoop/yarn/nm-local-dir/usercache/bob/x.jar", "to (path)"),
        ("[/data/1/yarn/filecache/12, /d2/blockmgr-1/0a]", "[(path), (path)]"),
        (
            r"[boom\n\tat a.X.y(X.java:1)\n\tat b/c.T.run(T.java:8)\nCaused by: a.XException: b\n\t... 3 more]",
            r"[boom\nCaused by: b]",
        ),
        ("lost task 1.0 (TID 2) (10.0.0.9 executor 3): gone", "lost task 1.0 (TID 2) ((host) executor 3): gone"),
        ("broadcast on 10.0.0.9:41233 (size", "broadcast on (address) (size"),
        ("no more space at com.sun.proxy.$Proxy1.get(Unknown Source)", "no more space"),
    ],
)
def test_server_addresses_and_paths_are_hidden_in_logs(text: str, clean: str) -> None:
    assert [one.rstrip() for one in cleaned([text])] == [clean]


@pytest.mark.parametrize(
    "text",
    [
        "INFO  : Compiling command(queryId=root_1): SELECT reflect('java.lang.Integer', 'parseInt', '1')",
        "INFO  : Reading hdfs://nn:8020/tmp/t/part-0, s3a://bucket/var/x.parquet, abfs://c@a.dfs.core/opt/x",
        "Path does not exist: /user/hive/warehouse/t",
        "hdfs:/tmp/x, s3:/var/x, viewfs:/opt/y",
        'SELECT reflect("java.lang.Math", "max", 1, 2), `java.lang.Table`',
        "    'Node: alpha' AS name",
        "26/11/23 11:43:58 INFO FileSourceScanExec: max size: 4194304 bytes",
        "meet me at home (x.java:3), or at noon",
        "Cannot load class no.such.Cls, sales.Orders is a table of mine, 3/4 of 1.2.3.4",
        "",
        "   indented",
        "== SQL ==",
    ],
)
def test_user_text_in_logs_is_unchanged(text: str) -> None:
    assert cleaned([text]) == [text]


UNITS = (
    "/opt/", "a.B", "at x(", "\tat a.", "file:/", "http://", "1.2.3.", "(a", "a.a.", "x/1.", r"\n", "jdbc:a:;",
    "hdfs:/", "/a", "=/a",
)  # fmt: skip


@pytest.mark.parametrize("unit", UNITS)
def test_log_line_cleaning_takes_linear_time(unit: str) -> None:
    """A pattern with quadratic run time would exceed the time limit of the test."""
    without_internals(unit * (100_000 // len(unit)))
    for line in cleaned([unit * (100_000 // len(unit))]):
        assert len(line) <= MAX_LINE_CHARACTERS + 1
