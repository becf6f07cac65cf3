/** The highlighting and the keywords of the connectors' dialects. */
import {
  MariaSQL,
  MSSQL,
  MySQL,
  PLSQL,
  PostgreSQL,
  SQLDialect,
  type SQLDialectSpec,
  SQLite,
} from "@codemirror/lang-sql";

// The keywords of standard SQL, with those of many data sources that limit and explain.
const COMMON = SQLite.spec.keywords ?? "";
const TYPES = SQLite.spec.types ?? "";
const ANALYTIC =
  "filter over partition range rows groups preceding following unbounded window qualify exclude lateral unnest " +
  "tablesample rollup cube grouping sets within ordinality nulls first last try_cast limit offset if replace ";
const HADOOP =
  "add analyze bucket buckets cluster clustered clusters collection columns compute delimited describe directory " +
  "distribute dfs extended external fields fileformat format formatted functions inpath inputformat items keys lateral " +
  "lines load local location map metadata msck noscan outputformat overwrite partitioned partitions properties rcfile " +
  "refresh reload repair row schemas semi anti serde serdeproperties show skewed sort sorted stats statistics stored " +
  "tables tblproperties temporary terminated touch transform truncate unarchive uncache use using view views ";
const TYPES_MORE =
  "bigint binary boolean date double float int integer smallint string timestamp tinyint uuid varchar ";

const LIKE_HIVE: SQLDialectSpec = {
  keywords: COMMON + ANALYTIC + HADOOP,
  types: `${TYPES}${TYPES_MORE}array map struct uniontype`,
  builtin: "",
  backslashEscapes: true,
  doubleQuotedStrings: true,
  identifierQuotes: "`",
  caseInsensitiveIdentifiers: true,
};

const DUCKDB = SQLDialect.define({
  keywords:
    `${COMMON}${ANALYTIC}anti asof call checkpoint columns copy describe enum exclude export force import install ` +
    "load macro map positional pivot pivot_longer pivot_wider returning sample secret semi sequence show struct " +
    "summarize truncate unpivot use using view macro ",
  types:
    `${TYPES}${TYPES_MORE}bit blob hugeint interval json list struct map union time timestamptz text ubigint uhugeint ` +
    "uinteger usmallint utinyint ",
  doubleDollarQuotedStrings: true,
  identifierQuotes: '"`',
  caseInsensitiveIdentifiers: true,
});

const TRINO = SQLDialect.define({
  keywords:
    `${COMMON}${ANALYTIC}analyze catalogs columns describe distributed excluding functions graphviz including ` +
    "input io json logical materialized refresh schemas session show stats tables text truncate uescape use validate ",
  types: `${TYPES}${TYPES_MORE}array hyperloglog interval ipaddress json map row time varbinary qdigest tdigest`,
  caseInsensitiveIdentifiers: true,
});

const BY_DIALECT = new Map<string, SQLDialect>([
  ["postgresql", PostgreSQL],
  ["duckdb", DUCKDB],
  ["sqlite", SQLite],
  ["mysql", MySQL],
  ["mariadb", MariaSQL],
  ["mssql", MSSQL],
  ["oracle", PLSQL],
  ["trino", TRINO],
  ["presto", TRINO],
  ["athena", TRINO],
  ["hive", SQLDialect.define(LIKE_HIVE)],
  ["impala", SQLDialect.define({ ...LIKE_HIVE, keywords: `${LIKE_HIVE.keywords}incremental invalidate kudu upsert ` })],
  ["sparksql", SQLDialect.define({ ...LIKE_HIVE, keywords: `${LIKE_HIVE.keywords}cache clear lazy pivot unpivot ` })],
  ["databricks", SQLDialect.define({ ...LIKE_HIVE, keywords: `${LIKE_HIVE.keywords}copy optimize vacuum zorder ` })],
  [
    "phoenix",
    SQLDialect.define({
      keywords: `${COMMON}upsert sequence salt_buckets `,
      backslashEscapes: true,
      slashComments: true,
    }),
  ],
  [
    "clickhouse",
    SQLDialect.define({ ...LIKE_HIVE, doubleQuotedStrings: false, identifierQuotes: '"`', hashComments: true }),
  ],
  ["bigquery", SQLDialect.define({ ...LIKE_HIVE, hashComments: true })],
  [
    "snowflake",
    SQLDialect.define({
      keywords: COMMON + ANALYTIC,
      backslashEscapes: true,
      slashComments: true,
      doubleDollarQuotedStrings: true,
    }),
  ],
]);
const OTHER = SQLDialect.define({ keywords: COMMON + ANALYTIC, types: TYPES + TYPES_MORE });

export function sqlDialect(dialect: string): SQLDialect {
  return BY_DIALECT.get(dialect.toLowerCase()) ?? OTHER;
}

/** Return the character that quotes identifiers. */
export function identifierQuote(dialect: string): string {
  return BY_DIALECT.get(dialect.toLowerCase())?.spec.identifierQuotes?.[0] ?? '"';
}
