import { expect, test } from "vitest";
import { urlBeginning, urlParts, urlText } from "./driverUrl.ts";

test.each([
  "postgresql://svc:secret@db.example.org:5432/shop?sslmode=require",
  "mysql://localhost/",
  "hive://localhost:10000",
  "bigquery://project-1/dataset",
  "awsathena+rest://KEY:********@athena.us-west-2.amazonaws.com:443/default?s3_staging_dir=s3://bucket/scratch",
  "trino://[::1]:8080/tpch",
  "mysql://$\u{7b}USER}:$\u{7b}PASSWORD}@db/shop",
  "druid://localhost:8082/druid/v2/sql/",
])("%s is built again from its parts", (url) => {
  const parts = urlParts(url);
  expect(parts).not.toBeNull();
  if (parts) expect(urlText(parts)).toBe(url.replace(/^(mysql:\/\/localhost)\/$/, "$1"));
});

test("reserved characters of names and passwords are encoded, and shown as they were typed", () => {
  const parts = { driver: "mysql", username: "a@b", password: "p/#?:%", host: "db", port: "", path: "", query: "" };
  const url = urlText(parts);
  expect(url).toBe("mysql://a%40b:p%2F%23%3F%3A%25@db");
  expect(urlParts(url)).toEqual(parts);
});

test.each(["", "no url", "mysql://u:100%@db", "mysql://db:port/x", "solr://x/<c>#y"])("%s has no parts", (text) => {
  expect(urlParts(text)).toBeNull();
});

test("a new URL begins with driver and port of the example", () => {
  expect(urlBeginning("postgresql://username:password@localhost:5432/database")).toBe("postgresql://:5432");
  expect(urlBeginning("no url")).toBeNull();
  expect(urlParts("postgresql://:5432")).toMatchObject({ host: "", port: "5432" });
});
