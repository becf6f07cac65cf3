/** The content of a connector's form, made from the options of its type (Contract platform 5.1). */

import type { Schemas } from "../api/client.ts";
import { type ApiError, isRecord } from "../api/errors.ts";
import { urlBeginning, urlParts, urlText } from "./driverUrl.ts";

export type Option = Schemas["ConnectorOption"];
export type Setting = Schemas["ConnectorSetting"];
export type Fields = Schemas["ConnectorFields"];
type Template = Schemas["ConnectorTemplate"];
type Stored = Schemas["ConnectorResponse"];

/** The text of a stored secret in responses; in requests it means that the secret is unchanged. */
export const MASK = "********";

export interface Draft {
  /** Null for a new connector. */
  id: string | null;
  /** The version that was loaded; null for a new connector. */
  version: number | null;
  dialect: string;
  interface: string;
  niceName: string;
  description: string;
  /** Null: the groups that the server's settings give to new connectors. */
  groups: readonly string[] | null;
  /** Values by the name of the setting, as texts; an empty text of a number or choice means the default. */
  values: Readonly<Record<string, string>>;
}

/** What the form shows about a type, and what it held when it was opened. */
export interface Form {
  options: readonly Option[];
  initial: Draft;
  /** Display name of the type. */
  typeName: string;
}

export interface Problems {
  /** The message about the whole connector; empty if each problem belongs to a field. */
  message: string;
  /** Texts by field: a setting, or `nice_name`, `description`, `groups`. */
  fields: Readonly<Record<string, string>>;
}

export const NO_PROBLEMS: Problems = { message: "", fields: {} };
const OWN_FIELDS = ["nice_name", "description", "groups"];

/** Return the form of a new connector. Required settings begin empty, because their defaults are only examples. */
export function newForm(template: Template): Form {
  const values = template.options.map((option) => [option.name, option.required ? beginning(option) : text(option)]);
  const initial: Draft = {
    id: null,
    version: null,
    dialect: template.dialect,
    interface: template.interface,
    niceName: "",
    description: "",
    groups: null,
    values: Object.fromEntries(values),
  };
  return { options: template.options, initial, typeName: template.nice_name };
}

/** Return the form of a stored connector. Settings that the type no longer has keep their values. */
export function storedForm(stored: Stored, typeName: string): Form {
  const values: Record<string, string> = Object.fromEntries(stored.options.map((one) => [one.name, text(one)]));
  for (const { name, value } of stored.settings) values[name] = String(value);
  const initial: Draft = {
    id: stored.id,
    version: stored.version,
    dialect: stored.dialect,
    interface: stored.interface,
    niceName: stored.nice_name,
    description: stored.description,
    groups: stored.groups ?? null,
    values,
  };
  return { options: stored.options, initial, typeName };
}

/** Return the form of a copy. Secrets are not copied, because the server does not return them. */
export function copiedForm({ options, initial, typeName }: Form): Form {
  const values = Object.entries(initial.values).map(([name, value]) => [name, withoutMask(value)]);
  const niceName = `${initial.niceName} (copy)`;
  return {
    options,
    typeName,
    initial: { ...initial, id: null, version: null, niceName, values: Object.fromEntries(values) },
  };
}

/** Return whether a copy lacks a secret that the original has. */
export function lacksSecret(original: Draft): boolean {
  return Object.values(original.values).some((value) => withoutMask(value) !== value);
}

/** Return the connector as `update` and `test` read it. */
export function requestFields(draft: Draft, options: readonly Option[]): Fields {
  const known = new Map(options.map((option) => [option.name, option]));
  const settings = Object.entries(draft.values)
    .filter(([name, value]) => !isLeftOut(value, known.get(name)))
    .map(([name, value]) => ({ name, value }));
  return {
    ...(draft.id === null ? { dialect: draft.dialect, interface: draft.interface } : { id: draft.id }),
    ...(draft.version === null ? {} : { version: draft.version }),
    ...(draft.groups === null ? {} : { groups: [...draft.groups] }),
    nice_name: draft.niceName,
    description: draft.description,
    settings,
  };
}

export function isChanged(draft: Draft, initial: Draft): boolean {
  return JSON.stringify(draft) !== JSON.stringify(initial);
}

/** Return the problems of a refused connector, by field where the form shows the field. */
export function problemsOf(problem: ApiError, options: readonly Option[]): Problems {
  if (problem.code === "name_taken") return { message: "", fields: { nice_name: problem.message } };
  const errors = isRecord(problem.body.errors) ? problem.body.errors : {};
  const shown = new Set([...OWN_FIELDS, ...options.filter(isShown).map(({ name }) => name)]);
  const texts = Object.entries(errors).map(
    ([name, found]) => [name, Array.isArray(found) ? found.join("\n") : String(found)] as const,
  );
  const others = texts.filter(([name]) => !shown.has(name)).map(([name, found]) => `${name}: ${found}`);
  const fields = Object.fromEntries(texts.filter(([name]) => shown.has(name)));
  const first = typeof problem.body.message === "string" ? problem.body.message : problem.message;
  return { message: [first, ...others].join("\n"), fields };
}

export function isShown({ section }: Option): boolean {
  return section !== "unused";
}

const UPPER = new Set(["url", "ssl", "ca", "http", "sasl", "jdbc", "fs", "api", "json", "sql"]);

/** Return the label of a setting, made of its name. */
export function labelOf(name: string): string {
  const words = name.replace(/_s$/, "_(seconds)").split("_").filter(Boolean);
  const shown = words.map((word) => (UPPER.has(word) ? word.toUpperCase() : word)).join(" ");
  return `${shown.charAt(0).toUpperCase()}${shown.slice(1)}`;
}

/** Return the text of the default of an option for its empty field. */
export function defaultText({ default: value }: Option): string {
  return value === null || value === "" ? "" : String(value);
}

/** Numbers and choices without a text take the default. So do general settings with their default. */
function isLeftOut(value: string, option: Option | undefined): boolean {
  if (!option) return false;
  if (option.section === "general") return value === "" || value === defaultText(option);
  return value === "" && (option.kind === "integer" || option.kind === "boolean");
}

function beginning({ kind, default: example }: Option): string {
  return kind === "url" ? (urlBeginning(String(example)) ?? "") : "";
}

function text(option: Option): string {
  return option.section === "general" && option.kind === "integer" ? "" : defaultText(option);
}

function withoutMask(value: string): string {
  if (value === MASK) return "";
  const parts = urlParts(value);
  return parts?.password === MASK ? urlText({ ...parts, password: "" }) : value;
}
