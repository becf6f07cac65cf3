import { expect, test } from "vitest";
import { ApiError } from "../api/errors.ts";
import {
  copiedForm,
  isChanged,
  labelOf,
  lacksSecret,
  MASK,
  newForm,
  type Option,
  problemsOf,
  requestFields,
  storedForm,
} from "./connectorForm.ts";

function option(name: string, kind: Option["kind"], more: Partial<Option> = {}): Option {
  const none = { description: "", default: "", required: false, choices: [], minimum: null, maximum: null };
  return { name, kind, section: "main", ...none, ...more };
}

const OPTIONS: Option[] = [
  option("url", "url", { required: true, default: "mysql://username:password@localhost:3306/database" }),
  option("password", "secret"),
  option("threads", "integer", { default: 2 }),
  option("catalog", "text", { default: "hive" }),
  option("has_ssh", "boolean", { section: "unused", default: false }),
  option("read_only", "boolean", { section: "general", default: false }),
  option("shared_session", "boolean", { section: "general", default: null }),
  option("retry", "choice", { section: "general", default: "never", choices: ["never", "read_only"] }),
  option("session_idle_s", "integer", { section: "general", default: null }),
];
const FLAGS = { is_sql: true };
const TYPE = {
  dialect: "mysql",
  interface: "sqlalchemy",
  category: "editor",
  description: "",
  is_runnable: true,
} as const;

function created() {
  const settings = OPTIONS.filter(({ section }) => section !== "general");
  return newForm({
    ...TYPE,
    nice_name: "MySQL",
    name: "",
    id: null,
    settings: settings.map(({ name, default: value }) => ({ name, value: value ?? "" })),
    properties: FLAGS,
    dialect_properties: FLAGS,
    options: OPTIONS,
  });
}

function stored(settings: Record<string, string | number | boolean>) {
  return storedForm(
    {
      ...TYPE,
      id: "7",
      name: "7",
      nice_name: "Shop",
      settings: Object.entries(settings).map(([name, value]) => ({ name, value })),
      dialect_properties: FLAGS,
      version: 3,
      groups: ["default"],
      last_modified: "2026-01-05T09:10:11Z",
      options: OPTIONS,
      status: 0,
    },
    "MySQL",
  );
}

function sent(fields: ReturnType<typeof requestFields>): Record<string, unknown> {
  return Object.fromEntries((fields.settings ?? []).map(({ name, value }) => [name, value]));
}

test("a new form has the defaults, and examples only as the beginning of a URL", () => {
  const { initial, options } = created();
  expect(initial.values).toMatchObject({ url: "mysql://:3306", threads: "2", catalog: "hive", retry: "never" });
  const request = requestFields(initial, options);
  expect(request).toMatchObject({ dialect: "mysql", interface: "sqlalchemy" });
  expect(request).not.toHaveProperty("groups");
  expect(sent(request)).toEqual({
    url: "mysql://:3306",
    password: "",
    threads: "2",
    catalog: "hive",
    has_ssh: "false",
  });
});

test("general settings are sent where they differ from their defaults, and an emptied number takes the default", () => {
  const { initial, options } = created();
  const values = { ...initial.values, read_only: "true", shared_session: "false", session_idle_s: "60", threads: "" };
  expect(sent(requestFields({ ...initial, values }, options))).toEqual({
    url: "mysql://:3306",
    password: "",
    catalog: "hive",
    has_ssh: "false",
    read_only: "true",
    shared_session: "false",
    session_idle_s: "60",
  });
});

test("an emptied text is sent, because it is a value of its own", () => {
  const { initial, options } = created();
  const request = requestFields({ ...initial, values: { ...initial.values, catalog: "" } }, options);
  expect(sent(request)).toMatchObject({ catalog: "" });
});

test("a stored connector is sent back as it was, with masked secrets and settings that the type no longer has", () => {
  const settings = { url: `mysql://svc:${MASK}@db/shop`, password: MASK, threads: 4, read_only: true, old: "x" };
  const { initial, options } = stored(settings);
  const request = requestFields(initial, options);
  expect(request).toMatchObject({ id: "7", version: 3, groups: ["default"], nice_name: "Shop" });
  expect(request).not.toHaveProperty("dialect");
  expect(sent(request)).toMatchObject({ ...settings, threads: "4", read_only: "true" });
});

test("a copy has no id, another name and no secrets", () => {
  const original = stored({ url: `mysql://svc:${MASK}@db/shop`, password: MASK });
  const { initial } = copiedForm(original);
  expect(initial).toMatchObject({ id: null, version: null, niceName: "Shop (copy)" });
  expect(initial.values).toMatchObject({ url: "mysql://svc@db/shop", password: "" });
  expect(lacksSecret(original.initial)).toBe(true);
  expect(lacksSecret(initial)).toBe(false);
});

test("a form is changed until each value is what it was", () => {
  const { initial } = stored({ threads: 4 });
  const changed = { ...initial, values: { ...initial.values, threads: "5" } };
  expect(isChanged(changed, initial)).toBe(true);
  expect(isChanged({ ...changed, values: { ...changed.values, threads: "4" } }, initial)).toBe(false);
});

test("refused values are shown at their fields, and those without a field in the message", () => {
  const errors = {
    threads: ["Must be at least 1.", "Really."],
    has_ssh: ["Must be false."],
    groups: ["No such group."],
  };
  const body = { message: "The connector is not valid.", errors };
  const found = problemsOf(new ApiError(400, "validation_failed", "with all texts", body), OPTIONS);
  expect(found.message).toBe("The connector is not valid.\nhas_ssh: Must be false.");
  expect(found.fields).toEqual({ threads: "Must be at least 1.\nReally.", groups: "No such group." });
});

test("a name that is taken is a problem of the name, other failures of the whole form", () => {
  const taken = problemsOf(new ApiError(409, "name_taken", "The name is taken."), OPTIONS);
  expect(taken).toEqual({ message: "", fields: { nice_name: "The name is taken." } });
  expect(problemsOf(new ApiError(0, "no_response", "No answer."), OPTIONS)).toEqual({
    message: "No answer.",
    fields: {},
  });
});

test("labels are the words of a setting, with its unit", () => {
  expect(labelOf("server_host")).toBe("Server host");
  expect(labelOf("session_idle_s")).toBe("Session idle (seconds)");
  expect(labelOf("ssl_ca")).toBe("SSL CA");
});
