/** Calls about connectors, and the forms that are open with unsaved changes (Contract platform 5). */
import { effect, signal } from "@preact/signals";
import { api, CALL_TIMEOUT_MS, data, type Schemas } from "../api/client.ts";
import { loadConfig } from "../app/config.ts";
import { session } from "../app/session.ts";
import { copiedForm, type Draft, type Fields, type Form, lacksSecret, newForm, storedForm } from "./connectorForm.ts";

export type ConnectorType = Schemas["ConnectorType"];
export type StoredConnector = Schemas["Connector"];
export type TestOutcome = Schemas["ConnectorTestResponse"];

/** Which form is open: that of a stored connector, of a copy of one, or of a new one of a type. */
export type Opened =
  | { what: "stored"; id: string }
  | { what: "copy"; id: string }
  | { what: "new"; dialect: string; interface: string };

export interface LoadedForm extends Form {
  /** Whether it is a copy of a connector whose secrets were not copied. */
  lacksSecret: boolean;
}

/** A connection test may take as long as the server permits, 10 s by default, after a wait for other tests. */
const TEST_TIMEOUT_MS = 120_000;

/** Request the types that this server offers. Throws ApiError. */
export async function connectorTypes(signal: AbortSignal): Promise<readonly ConnectorType[]> {
  const { connectors } = await data(api.GET("/api/v1/connector/types", { signal }));
  return connectors.flatMap(({ values }) => values);
}

/** Request the stored connectors. Throws ApiError. */
export async function storedConnectors(signal: AbortSignal): Promise<readonly StoredConnector[]> {
  const { connectors } = await data(api.GET("/api/v1/connector/instances", { signal }));
  return connectors.flatMap(({ values }) => values);
}

/** Request what the form needs. Throws ApiError. */
export async function loadForm(opened: Opened, signal: AbortSignal): Promise<LoadedForm> {
  if (opened.what === "new") {
    const params = { path: { dialect: opened.dialect, interface: opened.interface } };
    const { connector } = await data(
      api.POST("/api/v1/connector/instance/new/{dialect}/{interface}", { params, body: {}, signal }),
    );
    return { ...newForm(connector), lacksSecret: false };
  }
  const params = { path: { id: opened.id } };
  const [stored, types] = await Promise.all([
    data(api.GET("/api/v1/connector/instance/get/{id}", { params, signal })),
    connectorTypes(signal),
  ]);
  const type = types.find((one) => one.dialect === stored.dialect && one.interface === stored.interface);
  const form = storedForm(stored, type?.nice_name ?? stored.dialect);
  if (opened.what === "stored") return { ...form, lacksSecret: false };
  return { ...copiedForm(form), lacksSecret: lacksSecret(form.initial) };
}

/** Store a connector, and return it. Throws ApiError. */
export async function saveConnector(connector: Fields): Promise<StoredConnector> {
  const saved = await data(api.POST("/api/v1/connector/instance/update", { body: { connector } }));
  await refresh();
  return saved.connector;
}

/** Connect with these settings. Throws ApiError if they are not valid; a failed connection is an outcome. */
export async function testConnector(connector: Fields, signal: AbortSignal): Promise<TestOutcome> {
  const until = AbortSignal.any([signal, AbortSignal.timeout(TEST_TIMEOUT_MS)]);
  return await data(api.POST("/api/v1/connector/instance/test", { body: { connector }, signal: until }));
}

export async function deleteConnector(id: string): Promise<void> {
  await data(api.POST("/api/v1/connector/instance/delete", { body: { connector: { id } } }));
  forget(draftKey({ what: "stored", id }));
  await refresh();
}

/** Install the example connectors, and return what the server did. Throws ApiError. */
export async function installExamples(): Promise<string> {
  const { message } = await data(api.POST("/api/v1/connector/examples/install", {}));
  await refresh();
  return message;
}

/** Request names of groups that contain the text. Throws ApiError. */
export async function groupNames(text: string, signal: AbortSignal): Promise<readonly string[]> {
  const query = { filter: text, count: 20 };
  const { groups } = await data(api.GET("/api/v1/iam/users/autocomplete", { params: { query }, signal }));
  return groups.map(({ name }) => name);
}

/** The editor lists the connectors of the configuration. That it is not up to date does not make a change fail. */
async function refresh(): Promise<void> {
  await loadConfig(AbortSignal.timeout(CALL_TIMEOUT_MS)).catch(() => undefined);
}

/**
 * Unsaved changes by form. They are kept while the page is open, so that another view, or the browser's way back, does
 * not lose them; a reload of the page asks first.
 */
export const drafts = signal<ReadonlyMap<string, Draft>>(new Map());

export function draftKey(opened: Opened): string {
  return opened.what === "new" ? `new=${opened.dialect}/${opened.interface}` : `${opened.what}=${opened.id}`;
}

export function keep(key: string, draft: Draft): void {
  drafts.value = new Map(drafts.value).set(key, draft);
}

export function forget(key: string): void {
  const left = new Map(drafts.value);
  if (left.delete(key)) drafts.value = left;
}

/** Return the form that the query of an address opens; null for the list. */
export function openedBy(query: Readonly<Record<string, string>>): Opened | null {
  const [dialect, interfaceName] = (query.new ?? "").split("/");
  if (dialect && interfaceName) return { what: "new", dialect, interface: interfaceName };
  if (query.stored) return { what: "stored", id: query.stored };
  return query.copy ? { what: "copy", id: query.copy } : null;
}

const warn = (event: BeforeUnloadEvent) => event.preventDefault();
effect(() => {
  if (drafts.value.size > 0) addEventListener("beforeunload", warn);
  else removeEventListener("beforeunload", warn);
});
effect(() => {
  if (!session.isLoggedIn.value) drafts.value = new Map();
});
