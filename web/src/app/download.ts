/**
 * Downloads by links. A browser sends no access token with a link, so that each gets a ticket (Contract platform 3.14).
 */
import { api, data } from "../api/client.ts";
import { at } from "./prefix.ts";

/** Return the address of a download with a ticket that is valid for 60 s. `url` begins with `/api/v1/`. Throws ApiError. */
export async function ticketed(url: string): Promise<string> {
  // The ticket is for the address exactly as the browser sends it.
  const { pathname, search } = new URL(url, location.origin);
  const answer = await data(api.POST("/api/v1/token/download", { body: { url: pathname + search } }));
  return at(`/${answer.url.slice(1)}`);
}

/** Start a download; the browser shows its progress. Throws ApiError if no ticket is given. */
export async function startDownload(url: string): Promise<void> {
  const link = document.createElement("a");
  link.href = await ticketed(url);
  link.download = "";
  link.rel = "noopener";
  link.click();
}
