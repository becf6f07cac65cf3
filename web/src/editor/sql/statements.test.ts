import { describe, expect, test } from "vitest";
import { split, statementAt } from "./statements.ts";

function texts(script: string, dialect: string): string[] {
  return split(script, dialect).map(({ from, to }) => script.slice(from, to));
}

describe("scripts are cut as the server cuts them (Contract editor 5.1)", () => {
  test.each([
    ["hive", "SHOW TABLES;", ["SHOW TABLES"]],
    ["hive", "SELECT 1;\nSELECT 2;\n\n  SELECT 3", ["SELECT 1", "SELECT 2", "SELECT 3"]],
    ["hive", "-- first; one\nSELECT 1;\n/* two; */ SELECT 2", ["-- first; one\nSELECT 1", "/* two; */ SELECT 2"]],
    ["hive", "SELECT 1;\n-- done", ["SELECT 1"]],
    ["hive", "SELECT `a;b` FROM t; SELECT 2", ["SELECT `a;b` FROM t", "SELECT 2"]],
    ["hive", "SELECT 'it\\'s; one'; SELECT 2", ["SELECT 'it\\'s; one'", "SELECT 2"]],
    ["trino", "SELECT 'it\\'; SELECT 2", ["SELECT 'it\\'", "SELECT 2"]],
    ["trino", "SELECT 'it''s; one', \"a;b\"; SELECT 2", ["SELECT 'it''s; one', \"a;b\"", "SELECT 2"]],
    ["postgresql", "SELECT $$a;b$$; SELECT 2", ["SELECT $$a;b$$", "SELECT 2"]],
    ["postgresql", "SELECT $t$a;$$b$t$; SELECT 2", ["SELECT $t$a;$$b$t$", "SELECT 2"]],
    ["postgresql", "SELECT E'it\\'s; one'; SELECT 2", ["SELECT E'it\\'s; one'", "SELECT 2"]],
    ["postgresql", "/* a /* b; */ c; */ SELECT 1; SELECT 2", ["/* a /* b; */ c; */ SELECT 1", "SELECT 2"]],
    ["postgresql", "CREATE RULE r AS ON INSERT TO t DO ALSO (a; b); SELECT 2", null],
    [
      "postgresql",
      "CREATE FUNCTION f() RETURNS int BEGIN ATOMIC SELECT CASE WHEN true THEN 1 END; END; SELECT 2",
      null,
    ],
    ["sqlite", "CREATE TEMP TRIGGER a AFTER INSERT ON t BEGIN SELECT 1; SELECT 2; END; SELECT 2", null],
    ["sqlite", "BEGIN; SELECT [a;b]; END", ["BEGIN", "SELECT [a;b]", "END"]],
    ["mysql", "SELECT 5--3; # no; end\nSELECT 2", ["SELECT 5--3", "# no; end\nSELECT 2"]],
    ["mysql", "DELIMITER //\nCREATE PROCEDURE p() BEGIN SELECT 1; END//\nDELIMITER ;\nSELECT 2", null],
    ["snowflake", "SELECT 1; // a; b\nSELECT 2", ["SELECT 1", "// a; b\nSELECT 2"]],
    ["oracle", "SELECT q'[it's; one]' FROM dual; SELECT 2 FROM dual", null],
    ["hplsql", "a; b; c", ["a; b; c"]],
    ["duckdb", "SELECT 'never closed; SELECT 2", ["SELECT 'never closed; SELECT 2"]],
    ["duckdb", " ; ;\n-- nothing", []],
  ])("%s: %s", (dialect, script, expected) => {
    if (expected) expect(texts(script, dialect)).toEqual(expected);
    else expect(split(script, dialect)).toHaveLength(2);
  });
});

test("a script of 1 MB is cut within the time of a few frames", () => {
  const script = "SELECT 'a;b', \"c\" /* d; */ FROM t -- e;\n WHERE x = 1;\n".repeat(20_000);
  const begin = performance.now();
  expect(split(script, "postgresql")).toHaveLength(20_000);
  expect(performance.now() - begin).toBeLessThan(2000);
});

describe("the statement at the cursor", () => {
  const chosen = (marked: string) => {
    const offset = marked.indexOf("|");
    const script = marked.replace("|", "");
    const span = statementAt(script, split(script, "duckdb"), offset);
    return span && script.slice(span.from, span.to);
  };

  test.each([
    ["SEL|ECT 1; SELECT 2", "SELECT 1"],
    ["|SELECT 1; SELECT 2", "SELECT 1"],
    ["SELECT 1;|  SELECT 2", "SELECT 1"],
    ["SELECT 1;  |  SELECT 2", "SELECT 1"],
    ["SELECT 1;|SELECT 2", "SELECT 2"],
    ["SELECT 1;\n\n|\nSELECT 2", "SELECT 2"],
    ["SELECT 1;\n-- ab|out\nSELECT 2", "-- about\nSELECT 2"],
    ["SELECT 1; SELECT 2;\n\n|", "SELECT 2"],
    ["SELECT 1\n\n|", "SELECT 1"],
    ["|", null],
    ["-- only| a comment", null],
  ])("%s", (marked, expected) => {
    expect(chosen(marked)).toBe(expected);
  });
});
