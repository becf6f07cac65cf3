import { expect, test } from "vitest";
import { type Account, changesOf, fullName, rightChoices, rightText, utc, without } from "./people.ts";
import { bodyOf, type TokenForm } from "./tokens.ts";

const ANA: Account = {
  id: 4,
  username: "ana",
  first_name: "Ana",
  last_name: "",
  email: "",
  groups: ["analysts", "default"],
  is_active: true,
  is_admin: false,
  superuser: true,
  is_service_account: false,
  has_password: true,
  identities: [],
  last_login: null,
  created_at: "2026-01-05T09:10:11Z",
};

const TOKEN: TokenForm = { name: " nightly ", username: "", scopes: ["query"], connectors: ["7"], days: "30" };

test("a change contains only what differs, and the order of groups is no difference", () => {
  expect(changesOf(ANA, { ...ANA, groups: ["default", "analysts"] })).toEqual({});
  expect(changesOf(ANA, { ...ANA, first_name: "", groups: ["default"] })).toEqual({
    first_name: "",
    groups: ["default"],
  });
  expect(changesOf(ANA, { ...ANA, is_admin: true, email: "a@b" })).toEqual({ is_admin: true, email: "a@b" });
});

test("granted and revoked rights are the differences of the two lists", () => {
  expect(without(["admin", "download"], ["download", "importer"])).toEqual(["admin"]);
});

test("rights on connectors are named by the connector, and unknown ones stay choices", () => {
  const known = [
    { id: "7", displayName: "Lake" },
    { id: "duckdb", displayName: "DuckDB" },
  ];
  expect(rightChoices(["admin", "download"], ["download", "connector:9"], known)).toEqual([
    "admin",
    "download",
    "connector:7",
    "connector:9",
  ]);
  expect(rightText("connector:7", known)).toBe("Data source Lake");
  expect(rightText("connector:9", known)).toBe("Data source 9");
  expect(rightText("nonsense", known)).toBe("nonsense");
});

test("a time without a zone is UTC", () => {
  expect(utc("2026-01-05T09:10:11.123")).toBe("2026-01-05T09:10:11.123Z");
  expect(utc("2026-01-05T09:10:11Z")).toBe("2026-01-05T09:10:11Z");
});

test("the full name has no blanks around it", () => {
  expect(fullName(ANA)).toBe("Ana");
});

test("a token is limited to the chosen connectors, unless it has the scope admin", () => {
  expect(bodyOf(TOKEN)).toEqual({ name: "nightly", scopes: ["query"], expires_in_days: 30, connectors: ["7"] });
  expect(bodyOf({ ...TOKEN, scopes: ["admin"] })).toEqual({ name: "nightly", scopes: ["admin"], expires_in_days: 30 });
  expect(bodyOf({ ...TOKEN, connectors: [], username: "bob" })).toEqual({
    name: "nightly",
    scopes: ["query"],
    expires_in_days: 30,
    username: "bob",
  });
});
