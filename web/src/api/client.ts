/**
 * The only way to the server: calls that are typed by the OpenAPI document.
 *
 * `data(api.POST("/api/v1/editor/execute", { body: {...} }))` returns the body of a successful response and throws
 * ApiError otherwise, also for a response with HTTP 200 whose `status` is not 0.
 */
import createClient, { type FetchResponse, type Middleware } from "openapi-fetch";
import { urlPrefix } from "../app/prefix.ts";
import { session } from "../app/session.ts";
import { ApiError, asApiError, errorOf, isAbort, isRecord } from "./errors.ts";
import type { components, paths } from "./schema.d.ts";

export type Schemas = components["schemas"];

/** Calls that are expected to return at once end after this time. Long ones pass a signal of their own. */
export const CALL_TIMEOUT_MS = 60_000;

const authorization: Middleware = {
  onRequest({ request }) {
    const token = session.accessToken.value;
    if (token !== null) request.headers.set("Authorization", `Bearer ${token}`);
  },
};

export const api = createClient<paths>({ baseUrl: urlPrefix, fetch: fetchWithSession });
api.use(authorization);

type Body<R> = R extends { data?: infer D } ? NonNullable<D> : never;
/** The members of a union of bodies that mean success: those whose `status` may be 0, and those without `status`. */
type Success<B> = B extends { status: infer S } ? (0 extends S ? B : never) : B;

/** Return the body of a successful response. Throws ApiError; an abort by the caller is passed on as it is. */
export async function data<T extends Record<string | number, unknown>, O, M extends `${string}/${string}`>(
  call: Promise<FetchResponse<T, O, M>>,
): Promise<Success<Body<FetchResponse<T, O, M>>>> {
  let result: FetchResponse<T, O, M>;
  try {
    result = await call;
  } catch (problem) {
    if (isAbort(problem)) throw problem;
    throw asApiError(problem);
  }
  const body: unknown = result.error ?? result.data;
  if (result.error !== undefined || failed(body)) throw errorOf(result.response, body);
  return body as Success<Body<FetchResponse<T, O, M>>>;
}

function failed(body: unknown): boolean {
  return isRecord(body) && typeof body.status === "number" && body.status !== 0;
}

/** Send a request; if the access token has expired, renew it and send the request once more. */
async function fetchWithSession(request: Request): Promise<Response> {
  const again = request.clone();
  const used = request.headers.get("Authorization");
  const response = await fetch(request);
  if (response.status !== 401 || used === null) return response;
  // Another call may have renewed the token while this one was on its way.
  if (used === `Bearer ${session.accessToken.value}` && !(await session.renew())) return response;
  const token = session.accessToken.value;
  if (token === null) throw new ApiError(401, "session_ended", "The session has ended. Log in again.");
  again.headers.set("Authorization", `Bearer ${token}`);
  return await fetch(again);
}
