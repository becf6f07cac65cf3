/** Calls for results that are shared with other users (Contract sharing). Each throws ApiError. */
import { api, data, type Schemas } from "../api/client.ts";
import { at } from "../app/prefix.ts";
import type { Grantee } from "./documents.ts";

type Shares = Schemas["SharesResponse"];
export type Share = Schemas["Share"];
export type SharedResult = Schemas["SharedResultEntry"];

/** Return the address of a result in this console, which a granted user can open. */
export function linkOf(operationId: string): string {
  return new URL(at(`/results/${operationId}`), location.href).href;
}

export async function sharesOf(operationId: string, signal: AbortSignal): Promise<Shares> {
  const options = { params: { path: { operation_id: operationId } }, signal };
  return await data(api.GET("/api/v1/editor/shares/{operation_id}", options));
}

/** Grant a result until the end of a day (`2026-01-31`), or as long as the server grants by default (`""`). */
export async function shareResult(operationId: string, to: Grantee, title: string, day: string): Promise<Shares> {
  const until = day === "" ? null : new Date(`${day}T23:59:59`).toISOString();
  const body = { operationId, ...named(to), title: title || null, until };
  return await data(api.POST("/api/v1/editor/share_result", { body }));
}

/** End the share with one user or group, or with all. */
export async function revokeShare(operationId: string, from: Grantee | null): Promise<Shares> {
  const body = { operationId, ...(from === null ? {} : named(from)) };
  return await data(api.POST("/api/v1/editor/revoke_share", { body }));
}

export async function sharedWithMe(page: number, limit: number, signal: AbortSignal) {
  return await data(api.GET("/api/v1/editor/shared_with_me", { params: { query: { page, limit } }, signal }));
}

function named({ kind, name }: Grantee): { users?: string[]; groups?: string[] } {
  return kind === "user" ? { users: [name] } : { groups: [name] };
}
