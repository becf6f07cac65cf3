/** The statements of all users: filters, texts, and which of them can be stopped (Contract platform 7.9). */

import { api, data, type Schemas } from "../api/client.ts";
import { STATE_TEXTS } from "../queries/states.ts";

export type Statement = Schemas["AdminStatement"];
export type Details = Schemas["AdminStatementResponse"];
export type State = Statement["state"];
export type StateChoice = State | "active" | "all";

/** What the user has chosen; an empty text selects all. */
export interface Filters {
  user: string;
  connector: string;
  state: StateChoice;
  olderThanS: number;
}

export interface StatementPage {
  statements: readonly Statement[];
  /** Where the next page begins; null on the last page. */
  nextAfter: number | null;
}

export const PAGE_SIZE = 100;
export const EVERYTHING_ACTIVE: Filters = { user: "", connector: "", state: "active", olderThanS: 0 };

/** `available` has rows, `success` has none. */
export const STATE_CHOICES: ReadonlyArray<{ value: StateChoice; label: string }> = [
  { value: "active", label: "Waiting or running" },
  { value: "all", label: "All" },
  { value: "waiting", label: "Waiting" },
  { value: "running", label: "Running" },
  { value: "available", label: "Done, with rows" },
  { value: "success", label: "Done, without rows" },
  { value: "failed", label: "Failed" },
  { value: "canceled", label: "Canceled" },
  { value: "timed_out", label: "Timed out" },
  { value: "expired", label: "Expired" },
  { value: "closed", label: "Closed" },
];

export const AGE_CHOICES: ReadonlyArray<{ value: string; label: string }> = [
  { value: "0", label: "Any time ago" },
  { value: "60", label: "A minute ago or more" },
  { value: "600", label: "10 minutes ago or more" },
  { value: "3600", label: "An hour ago or more" },
  { value: "86400", label: "A day ago or more" },
];

/** Return the parameters of a page of the list. */
export function queryOf({ user, connector, state, olderThanS }: Filters, after: number | null) {
  return {
    state,
    limit: PAGE_SIZE,
    ...(user ? { user } : {}),
    ...(connector ? { connector } : {}),
    ...(olderThanS > 0 ? { older_than_s: olderThanS } : {}),
    ...(after === null ? {} : { after }),
  };
}

/** Return whether a statement waits or runs. Its state is not final, so it can be stopped. */
export function isActive(state: State): boolean {
  return state === "waiting" || state === "running";
}

/** Return what the state column shows. A stop is complete only when the data source has confirmed it. */
export function stateText({ state, cancel_requested }: Statement): string {
  return isActive(state) && cancel_requested ? "Stopping" : STATE_TEXTS[state];
}

/** Request a page of the list. Throws ApiError. */
export async function statementPage(
  filters: Filters,
  after: number | null,
  signal: AbortSignal,
): Promise<StatementPage> {
  const query = queryOf(filters, after);
  const answer = await data(api.GET("/api/v1/admin/statements", { params: { query }, signal }));
  return { statements: answer.statements, nextAfter: answer.next_after };
}

/** Request a statement with its text. The server records who read it. Throws ApiError. */
export async function statementDetails(id: string, signal: AbortSignal): Promise<Details> {
  const params = { path: { operation_id: id } };
  return await data(api.GET("/api/v1/admin/statements/{operation_id}", { params, signal }));
}

/** Stop a statement, and return it as it is afterwards: it still runs if the data source has not confirmed the stop. */
export async function stopStatement(id: string): Promise<Statement> {
  const params = { path: { operation_id: id } };
  const { statement } = await data(api.POST("/api/v1/admin/statements/{operation_id}/cancel", { params }));
  return statement;
}
