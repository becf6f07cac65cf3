/** Opens tabs of the editor from other views, which need not load the editor itself. */
import { useCallback } from "preact/hooks";
import { useLocation } from "preact-iso";
import { api, data } from "../api/client.ts";
import { errorOf } from "../api/errors.ts";
import { connectors } from "../app/config.ts";
import { at } from "../app/prefix.ts";
import type { ParameterValue } from "./sql/parameters.ts";
import { parameterType } from "./tabContent.ts";
import { addTab, type EditorTab, selectTab, tabs } from "./tabs.ts";

export interface TabRequest {
  /** The text of the tab. With `operationId` only, it is that of the operation. */
  statement?: string | undefined;
  /** The id of a connector, or a dialect: then the first connector of it. */
  connector?: string | undefined;
  database?: string | undefined;
  title?: string | undefined;
  parameters?: Readonly<Record<string, ParameterValue>> | undefined;
  /** The uuid of the saved query whose text this is. */
  document?: string | undefined;
  /** The version of that query. */
  documentVersion?: number | undefined;
  /** An operation whose result the tab shows. */
  operationId?: string | undefined;
}

/** Return a function that opens a tab and then shows the editor. */
export function useOpenTab(): (request: TabRequest) => void {
  const { route } = useLocation();
  return useCallback(
    (request) => {
      openTab(request);
      route(at("/editor"));
    },
    [route],
  );
}

/** Open a tab, or select the one that shows the same operation or the same saved query. Nothing is run. */
export function openTab(request: TabRequest): EditorTab {
  const { operationId, document } = request;
  const same = tabs.value.find(({ content: { value } }) =>
    operationId ? value.run?.operationId === operationId : document && value.document === document,
  );
  if (same) {
    selectTab(same);
    return same;
  }
  const text = request.statement ?? "";
  return addTab({
    title: request.title ?? "",
    text,
    connector: connectorId(request.connector ?? ""),
    database: request.database ?? "",
    parameters: request.parameters ?? {},
    document: document ?? null,
    documentVersion: request.documentVersion ?? 0,
    run: operationId ? { operationId, from: 0, source: text } : null,
  });
}

/** Open a tab with the text, connector, database and parameters of a saved query. Throws ApiError. */
export async function openDocument(uuid: string, signal?: AbortSignal): Promise<EditorTab> {
  const call = { params: { path: { uuid } }, ...(signal ? { signal } : {}) };
  const { document } = await data(api.GET("/api/v1/documents/{uuid}", call));
  const parameters: Record<string, ParameterValue> = {};
  for (const { name, type, default: value } of document.parameters) {
    parameters[name] = { type: parameterType(type), text: fieldText(value) };
  }
  return openTab({
    statement: document.statement,
    connector: document.connector ?? document.dialect ?? "",
    database: document.database ?? "",
    title: document.name,
    parameters,
    document: uuid,
    documentVersion: document.version,
  });
}

/** Open a tab with an operation: its text and its result. Throws ApiError. */
export async function openOperation(operationId: string, signal?: AbortSignal): Promise<EditorTab> {
  const open = tabs.value.find(({ content }) => content.value.run?.operationId === operationId);
  if (open) return openTab({ operationId });
  const call = { params: { path: { operation_id: operationId } }, ...(signal ? { signal } : {}) };
  const { data: succeeded, error, response } = await api.POST("/api/v1/editor/watch/{operation_id}", call);
  // The watch call describes a failed statement too; only a call that failed itself has no statement.
  const watched = succeeded ?? error;
  if (watched && "statement" in watched && typeof watched.statement === "string") {
    const dialect = "handle" in watched ? watched.handle.session_type : "";
    return openTab({ operationId, statement: watched.statement, connector: dialect });
  }
  throw errorOf(response, error);
}

function connectorId(named: string): string {
  const byId = connectors.value.find(({ id }) => id === named);
  return (byId ?? connectors.value.find(({ dialect }) => dialect === named))?.id ?? named;
}

/** Return a default value of a saved query as the text of its field. */
function fieldText(value: unknown): string {
  if (value === null || value === undefined) return "";
  return typeof value === "string" ? value : JSON.stringify(value);
}
