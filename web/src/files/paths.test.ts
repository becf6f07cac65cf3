import { describe, expect, test } from "vitest";
import {
  addressOf,
  crumbsOf,
  isInTrash,
  isRestorable,
  isRoot,
  isWithin,
  join,
  nameOf,
  parentOf,
  rootOf,
} from "./paths.ts";

describe("paths of each store", () => {
  test.each([
    ["/user/ana", "/", "/user", "ana"],
    ["/user", "/", "/", "user"],
    ["s3a://bucket/a/b.csv", "s3a://", "s3a://bucket/a", "b.csv"],
    ["s3a://bucket", "s3a://", "s3a://", "bucket"],
    ["file:///user/ana", "file:///", "file:///user", "ana"],
    ["file:///user", "file:///", "file:///", "user"],
    ["abfs://container/a?b#c%d", "abfs://", "abfs://container", "a?b#c%d"],
  ])("%s", (path, root, parent, name) => {
    expect([rootOf(path), parentOf(path), nameOf(path)]).toEqual([root, parent, name]);
    expect(join(parent, name)).toBe(path);
  });

  test.each(["/", "s3a://", "file:///"])("%s is a root and its own parent", (root) => {
    expect([isRoot(root), parentOf(root), nameOf(root)]).toEqual([true, root, root]);
  });
});

test("crumbs lead from the root to the path", () => {
  expect(crumbsOf("s3a://b/bar/foo?x")).toEqual([
    { path: "s3a://", label: "s3a://" },
    { path: "s3a://b", label: "b" },
    { path: "s3a://b/bar", label: "bar" },
    { path: "s3a://b/bar/foo?x", label: "foo?x" },
  ]);
});

test("a path is within a directory by its segments, not by its text", () => {
  expect(isWithin("/a/b", "/a")).toBe(true);
  expect(isWithin("/a", "/a")).toBe(true);
  expect(isWithin("/ab", "/a")).toBe(false);
  expect(isWithin("s3a://a/b", "abfs://a")).toBe(false);
});

test("only entries below a checkpoint of the trash can be restored", () => {
  expect(isRestorable("/user/ana/.Trash/Current/user/ana/a.csv")).toBe(true);
  expect(isRestorable("/zone/.Trash/ana/1700000000/zone/a.csv")).toBe(true);
  expect(isRestorable("/user/ana/.Trash/Current")).toBe(false);
  expect(isRestorable("/user/ana/.Trash")).toBe(false);
  expect(isRestorable("/Current/a/.Trash/b")).toBe(false);
  expect(isInTrash("/user/ana/.TrashX/a")).toBe(false);
});

test("the address of a path leads back to the path", () => {
  const path = "s3a://b/50 % of é?#&=+.csv";
  const address = addressOf(path, { sort: "-size", filter: "" });
  expect(address.startsWith("/files?path=s3a://b/50%20%25")).toBe(true);
  expect(new URLSearchParams(address.split("?")[1]).get("path")).toBe(path);
  expect(address.endsWith("&sort=-size")).toBe(true);
});
