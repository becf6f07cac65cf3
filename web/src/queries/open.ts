/** Queries of lists go into tabs of the editor, as texts or as running statements. */
import { api, data } from "../api/client.ts";
import { ApiError } from "../api/errors.ts";
import { openDocument, openTab } from "../editor/openTab.ts";
import { getDocument } from "./documents.ts";

/** Run a saved query with the defaults of its parameters, in a tab that shows the run. Throws ApiError. */
export async function runDocument(uuid: string): Promise<void> {
  const body = { document: uuid, rows: null };
  try {
    const { history_uuid: operationId } = await data(api.POST("/api/v1/editor/execute", { body }));
    const { statement, connector, database, name } = await getDocument(uuid);
    openTab({ operationId, statement, title: name, connector: connector ?? "", database: database ?? "" });
  } catch (problem) {
    // A parameter without a default: the tab has a field for it.
    if (!(problem instanceof ApiError) || problem.code !== "missing_parameter") throw problem;
    await openDocument(uuid);
  }
}

/** Return the whole statement of an operation; lists cut it after 1001 characters. Throws ApiError. */
export async function statementOf(operationId: string): Promise<string> {
  const options = { params: { path: { operation_id: operationId } } };
  return (await data(api.POST("/api/v1/editor/watch/{operation_id}", options))).statement;
}
