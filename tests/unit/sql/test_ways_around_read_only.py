"""Known ways around a read-only mode that judges statements by their text; each is refused.

Sources: reports about other query servers (a comment before the first word, `WITH … DELETE`, `EXPLAIN ANALYZE DELETE`,
`COMMIT; DROP`), and the grammars of the engines: words, functions, programs and comments that change something.
"""

import pytest

from queryserver.sql.classification import only_reads, read_only_refusal

EVERY_DIALECT = (
    "hive", "impala", "sparksql", "hplsql", "trino", "presto", "phoenix", "postgresql", "mysql", "mariadb", "sqlite",
    "duckdb", "oracle", "mssql", "clickhouse", "snowflake", "bigquery", "unknown",
)  # fmt: skip

IN_EVERY_DIALECT = {
    "change": "DELETE FROM t",
    "change in lower case": "drop table t",
    "comment before": "/* SELECT */ DELETE FROM t",
    "line comment before": "-- SELECT 1\nDELETE FROM t",
    "nested comment before": "/* /* */ SELECT */ DELETE FROM t",
    "query hidden by a nested comment": "/* /* */ SELECT 1, ' */ INSERT INTO t SELECT 1 -- '",
    "brackets before": "((( DELETE FROM t )))",
    "line end of a comment": "-- x\rSELECT 1\nDELETE FROM t",
    "line end that opens a quote": "SELECT 1 -- x\r'\nINTO OUTFILE '/tmp/x' -- '",
    "second statement": "SELECT 1; DROP TABLE t",
    "end of the transaction": "COMMIT; DROP TABLE t",
    "end of the transaction alone": "COMMIT",
    "change in WITH": "WITH a AS (DELETE FROM t RETURNING *) SELECT * FROM a",
    "change after WITH": "WITH a AS (SELECT 1) INSERT INTO t SELECT * FROM a",
    "delete after WITH": "WITH a AS (SELECT 1) DELETE FROM t WHERE b IN (SELECT * FROM a)",
    "merge after WITH": "WITH a AS (SELECT 1 AS n) MERGE INTO t USING (a) ON t.n = a.n WHEN MATCHED THEN DELETE",
    "table after WITH": "WITH a AS (SELECT 1) CREATE TABLE t AS SELECT * FROM a",
    "explained and run": "EXPLAIN ANALYZE DELETE FROM t",
    "explained and run, British": "EXPLAIN (VERBOSE, ANALYSE) DELETE FROM t",
    "explained change": "EXPLAIN DELETE FROM t",
    "table from a query": "SELECT * INTO made FROM t",
    "file from a query": "SELECT * FROM t INTO OUTFILE '/tmp/x'",
    "locked rows": "SELECT * FROM t FOR UPDATE",
    "call": "CALL p()",
    "prepared statement": "EXECUTE p",
    "prepared text": "EXECUTE IMMEDIATE 'DELETE FROM t'",
    "setting": "SET x = 1",
    "database": "USE other",
    "rights": "GRANT ALL ON t TO ana",
    "sequence": "SELECT nextval('s')",
    "sequence of the standard": "SELECT NEXT VALUE FOR s",
    "function by a quoted name": "SELECT \"nextval\"('s')",
    "statistics": "ANALYZE TABLE t COMPUTE STATISTICS",
    "refresh": "REFRESH t",
    "load": "LOAD DATA INPATH '/x' INTO TABLE t",
    "copy": "COPY t TO PROGRAM 'rm -rf /'",
    "dotless i": "WITH a AS (SELECT 1) \u0131NSERT \u0131NTO t SELECT * FROM a",
    "long s": "WITH a AS (SELECT 1) IN\u017fERT TABLE t SELECT * FROM a",
    "number before a word": "SELECT 1INTO made FROM t",
    "decimal before a word": "SELECT 1.INTO made FROM t",
    "dot and a blank before a word": "SELECT a. INTO made FROM t",
    "dot and a comment before a word": "SELECT a./**/INTO made FROM t",
    "NUL": "SELECT 1 \0 DELETE FROM t",
    "nothing": " -- nothing\n",
}  # fmt: skip

WAYS = {
    ("hive", "sparksql"): {
        "multiple insert": "FROM t INSERT OVERWRITE TABLE u SELECT *",
        "insert into a directory": "FROM t INSERT OVERWRITE DIRECTORY '/x' SELECT *",
        "program": "SELECT TRANSFORM (a) USING 'rm -rf /' AS (b) FROM t",
        "program, quotes of the other kind": 'SELECT TRANSFORM (a) USING "rm -rf /" FROM t',
        "program after a comment": "SELECT TRANSFORM (a) USING /* */ 'rm' FROM t",
        "program of FROM": "FROM t SELECT TRANSFORM (a) ROW FORMAT DELIMITED USING 'rm'",
        "program of MAP": "FROM t MAP a USING 'rm' AS b",
        "program of REDUCE": "FROM (SELECT a FROM t) x REDUCE a USING 'rm' AS b",
        "method": "SELECT reflect('java.lang.System', 'exit', 1)",
        "method after a blank": "SELECT java_method /**/ ('java.lang.Runtime', 'getRuntime')",
        "method in back ticks": "SELECT `reflect`('java.lang.System', 'exit', 1)",
        "method that tries": "SELECT try_reflect('java.lang.System', 'exit', 1)",
        "method by a computed name": "SELECT IDENTIFIER('ref' || 'lect')('java.lang.System', 'exit', 1)",
        "variable": "SELECT 1 ${hiveconf:rest}",
        "variable in quotes": "SELECT '${hiveconf:rest}'",
        "jar": "ADD JAR /tmp/x.jar",
        "jar, deleted": "DELETE JAR /tmp/x.jar",
        "files": "DFS -rm -r /",
        "shell": "!rm -rf /",
        "functions": "RELOAD FUNCTIONS",
        "program text": "COMPILE `x` AS GROOVY NAMED x",
        "import": "IMPORT TABLE t FROM '/x'",
        "repair": "MSCK REPAIR TABLE t",
        "explained and run again": "EXPLAIN REOPTIMIZATION SELECT 1",
        "comment that hides a command": "-- x\rSELECT 1\nDFS -rm -r /",
        "comment in the style of beeline": "# x\nDFS -rm -r /",
        "control character before": "\x01DFS -rm -r /",
        "backslash before a quote": "WITH a AS (SELECT '\\\\'), b AS (SELECT 1) INSERT INTO t SELECT 1 -- \\'",
    },
    ("sparksql",): {
        "cache": "CACHE TABLE t AS SELECT 1",
        "cache, lazily": "CACHE LAZY TABLE t",
        "cache, removed": "UNCACHE TABLE t",
        "comment that goes on": "WITH a AS (SELECT 1) -- \\\n'\n INSERT INTO t SELECT * FROM a --'",
        "jar in Spark": "LIST JARS",
        "query that inserts": "DESCRIBE QUERY FROM t INSERT INTO u SELECT *",
        "raw literal": "WITH a AS (SELECT r'\\') INSERT INTO t SELECT '1' --'",
        "plan that runs": "EXPLAIN CODEGEN INSERT INTO t SELECT 1",
    },
    ("hplsql",): {"query": "SELECT 1", "shell": "HOST 'rm'", "print": "SELECT 1 PRINT a"},
    ("impala",): {
        "metadata": "INVALIDATE METADATA",
        "statistics": "COMPUTE STATS t",
        "upsert": "WITH a AS (SELECT 1) UPSERT INTO t SELECT * FROM a",
    },
    ("trino", "presto"): {
        "table function": "SELECT * FROM TABLE(pg.system.query(query => 'DELETE FROM t RETURNING a'))",
        "table function in quotes": "SELECT * FROM TABLE(pg.system.\"query\"(query => 'DROP'))",
        "table function, raw": "SELECT * FROM TABLE (es.system.raw_query(index => 'a'))",
        "table function, procedure": "SELECT * FROM TABLE /**/ ( mssql.system.procedure(query => 'EXECUTE p'))",
        "role": "SET ROLE admin",
        "procedure": "CALL system.runtime.kill_query('x')",
        "maintenance": "ALTER TABLE t EXECUTE optimize",
        "prepared statement": "PREPARE p FROM DELETE FROM t",
        "transaction": "START TRANSACTION READ WRITE",
    },
    ("postgresql",): {
        "function": "SELECT pg_catalog.set_config('transaction_read_only', 'off', false)",
        "escaped name": "SELECT U&\"\\006eextval\"('s')",
        "text that is run": "SELECT query_to_xml('DELETE FROM t', true, false, '')",
        "text that is run for a schema": "SELECT query_to_xmlschema ('DELETE FROM t', true, false, '')",
        "text that is run on another server": "SELECT dblink_exec('', 'DROP TABLE t')",
        "text that is searched": "SELECT * FROM ts_stat('SELECT nextval($$s$$)::text::tsvector')",
        "large object": "SELECT lo_from_bytea(0, 'x')",
        "file": "SELECT pg_file_write('x', 'y', false)",
        "process": "SELECT pg_terminate_backend(1)",
        "lock": "SELECT pg_try_advisory_xact_lock(1)",
        "block": "DO $$ BEGIN DELETE FROM t; END $$",
        "unusual tag": "SELECT $\U0001f418$ ' $\U0001f418$, nextval('s') --'",
        "backslash before a quote": "SELECT '\\', ' , nextval(E'\\'s')",
        "table as a command": "TABLE t FOR UPDATE",
        "values": "WITH a AS (VALUES (1)) UPDATE t SET b = 1",
        "cursor": "DECLARE c CURSOR FOR SELECT 1",
        "notification": "NOTIFY x",
    },
    ("mysql", "mariadb"): {
        "executable comment": "/*!50000 DELETE FROM t */",
        "executable comment within": "SELECT 1 /*!, sleep(1) */",
        "executable comment of MariaDB": "SELECT 1 /*M! INTO OUTFILE 'x' */",
        "file": "SELECT a INTO DUMPFILE '/tmp/x' FROM t",
        "file from a table": "TABLE t INTO OUTFILE '/tmp/x'",
        "variable": "SELECT 1 INTO @a",
        "variable with a dot": "SELECT @a.INTO OUTFILE '/tmp/x'",
        "mode without backslashes": "SELECT '\\' INTO OUTFILE '/tmp/x' -- '",
        "mode without backslashes, double": 'SELECT "\\" INTO OUTFILE "/tmp/x" -- "',
        "lock": "SELECT GET_LOCK('a', 1)",
        "shared lock": "SELECT * FROM t LOCK IN SHARE MODE",
        "sequence": "SELECT PREVIOUS VALUE FOR s, NEXTVAL(s)",
        "program": "SELECT sys_exec('rm')",
        "function in back ticks": "SELECT `get_lock`('a', 1)",
        "handler": "HANDLER t OPEN",
        "statement with settings": "SET STATEMENT sql_mode = '' FOR DELETE FROM t",
        "analyzed": "ANALYZE FORMAT=JSON DELETE FROM t",
        "described and run": "DESCRIBE ANALYZE DELETE FROM t",
        "comment in the style of a shell": "# x\nDELETE FROM t",
        "no comment without a blank": "SELECT 1 --DELETE FROM t\nINTO OUTFILE '/tmp/x'",
    },
    ("sqlite",): {
        "extension": "SELECT load_extension('x')",
        "file": "SELECT writefile('x', 'y')",
        "replace": "WITH a AS (SELECT 1) REPLACE INTO t SELECT * FROM a",
        "pragma": "PRAGMA writable_schema = 1",
        "attached": "ATTACH 'x' AS y",
        "name in brackets": "SELECT [load_extension]('x')",
    },
    ("duckdb",): {
        "copy": "COPY (SELECT 1) TO 'x.csv'",
        "export": "EXPORT DATABASE 'x'",
        "attached": "ATTACH 'x' AS y",
        "extension": "INSTALL httpfs",
        "pragma": "PRAGMA memory_limit = '1GB'",
        "call": "CALL force_checkpoint()",
        "checkpoint": "FROM force_checkpoint()",
        "text that is run": "FROM query('SELECT nextval(''s'')')",
        "text that is run on another server": "FROM postgres_execute('db', 'DROP TABLE t')",
        "serialized text": "FROM json_execute_serialized_sql('{}')",
        "described change": "DESCRIBE DELETE FROM t",
        "summarized sequence": "SUMMARIZE SELECT nextval('s')",
        "name with an escape": "SELECT 'a'.nextval()",
    },
    ("phoenix",): {
        "sequence": "SELECT NEXT 100 VALUES FOR s",
        "upsert": "UPSERT INTO t SELECT * FROM u",
        "slashes": "SELECT :// '\n NEXT VALUE FOR s //'",
        "jar": "ADD JARS '/x.jar'",
        "statistics": "UPDATE STATISTICS t",
    },
    ("mssql",): {
        "no semicolon": "SELECT 1 EXEC xp_cmdshell 'x'",
        "no semicolon before TRUNCATE": "SELECT 1 TRUNCATE TABLE t",
        "name in brackets": "SELECT [a'b] INTO made FROM t --'",
        "function in brackets": "SELECT [dbo].[f](1)",
        "text that is run on another server": "SELECT * FROM OPENQUERY(other, 'DELETE FROM t')",
    },
    ("oracle",): {
        "package": "SELECT DBMS_XMLGEN.GETXML('x') FROM dual",
        "stored plan": "EXPLAIN PLAN FOR SELECT 1 FROM dual",
        "sequence": "SELECT s.NEXTVAL FROM dual",
        "inline function": "WITH FUNCTION f RETURN number IS PRAGMA AUTONOMOUS_TRANSACTION SELECT f FROM dual",
    },
    ("snowflake",): {"function": "SELECT SYSTEM$CANCEL_QUERY('x')"},
}  # fmt: skip

CASES = [
    *((dialect, name, text) for dialect in EVERY_DIALECT for name, text in IN_EVERY_DIALECT.items()),
    *((dialect, name, text) for dialects, ways in WAYS.items() for dialect in dialects for name, text in ways.items()),
]


@pytest.mark.parametrize(("dialect", "text"), [pytest.param(d, t, id=f"{d}: {name}") for d, name, t in CASES])
def test_way_around_is_refused(dialect: str, text: str):
    assert not only_reads(text, dialect)
    refusal = read_only_refusal(text, dialect, strict=True, rule="This call must only read")
    assert refusal is not None
    assert refusal.startswith("This call must only read")


READING = {
    ("hive", "impala", "sparksql", "trino", "postgresql", "mysql", "sqlite", "duckdb", "phoenix"): [
        "SELECT comment, load, cache, refresh, export FROM t",
        "SELECT t.set, t.use, t.update, a.b.into FROM a.b AS t",
        "SELECT a FROM t WHERE kind = 'DELETE' AND note <> 'it''s; DROP'",
        "SELECT replace(a, 'x', 'y'), truncate(b, 2) FROM t",
        "WITH a AS (SELECT 1 AS n), b AS (SELECT 2 AS n) SELECT * FROM a JOIN b USING (n)",
        "EXPLAIN SELECT comment FROM t",
        "/* DELETE */ SELECT 1 -- INSERT INTO t",
        'SELECT "a" FROM "t" AS "x" WHERE "a" IN (1, 2)',
        "SELECT update_time, created, dropped, inserted_at FROM t",
    ],
    ("hive", "impala", "sparksql", "trino", "mysql"): ["SHOW CREATE TABLE t", "DESCRIBE t"],
    ("hive", "sparksql"): [
        "SELECT transform(a, x -> x + 1), map('a', 1) FROM t",
        "SELECT `comment`, `set` FROM `use` CLUSTER BY a",
        "SELECT 'it\\'s' AS note FROM t",
        "SELECT a FROM t LATERAL VIEW explode(b) x AS c DISTRIBUTE BY a SORT BY a",
        "SHOW GRANT USER ana ON TABLE t",
        "SELECT /*+ MAPJOIN(u) */ * FROM t JOIN u USING (a)",
        "FROM t SELECT a, count(*) GROUP BY a",
    ],
    ("trino",): [
        "SELECT reduce(a, 0, (s, x) -> s + x, s -> s), transform(a, x -> x + 1) FROM t",
        "SELECT * FROM TABLE(sequence(start => 1, stop => 9))",
        "SELECT * FROM TABLE(exclude_columns(input => TABLE(orders), columns => DESCRIPTOR(a)))",
        "TABLE t",
    ],
    ("postgresql",): [
        "SELECT * FROM (VALUES (1)) AS \"v\" (\"n\") WHERE note = E'it\\'s deleted' AND x = $1",
        "SELECT $q$ drop table t; $q$, a <@ b FROM t",
        "SELECT reflect, query, edit FROM t",
    ],
    ("mysql",): ["SELECT `comment`, \"it's\" FROM t # DELETE\nLIMIT 3", "SHOW GRANTS"],
    ("duckdb",): ["FROM t SELECT comment", "SUMMARIZE t", "SELECT [1, 2][1], {'set': 1} FROM read_csv('x.csv')"],
    ("unknown",): ["SELECT a FROM t"],
}  # fmt: skip


@pytest.mark.parametrize(
    ("dialect", "text"),
    [(dialect, text) for dialects, texts in READING.items() for dialect in dialects for text in texts],
)
def test_query_with_harmless_words_is_accepted(dialect: str, text: str):
    assert read_only_refusal(text, dialect, strict=True) is None


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("DELETE FROM t", "this one begins with DELETE."),
        ("EXPLAIN ANALYZE SELECT 1", "contains the word ANALYZE. If it is a name, quote it"),
        ("SELECT a INTO b", "contains the word INTO. If it is a name, quote it or put its table's name and a dot"),
        ("SELECT reflect('a', 'b')", "calls REFLECT, which may have effects."),
        ("SELECT TRANSFORM(a) USING 'x'", "runs a program (USING)."),
        ("SELECT '\\' INSERT '", "has quotes or comments whose end is unclear, and contains INSERT."),
    ],
)
def test_refusal_names_the_reason_and_what_to_do(text: str, reason: str):
    refusal = read_only_refusal(text, "hive", strict=True)
    assert refusal is not None
    assert reason in refusal
    assert refusal.endswith("use a login that has only read rights on the engine.")


@pytest.mark.parametrize("sign", ["a.", "@a.", '"a".'])
def test_long_chain_of_names_is_judged_in_linear_time(sign: str, monkeypatch: pytest.MonkeyPatch):
    links = 0

    def count(*_: object) -> bool:
        nonlocal links
        links += 1
        return True

    monkeypatch.setattr("queryserver.sql.classification._ChangeSearch._is_linked", count)
    only_reads("SELECT " + sign * 2_000 + "a", "mysql")
    assert links <= 2_000
