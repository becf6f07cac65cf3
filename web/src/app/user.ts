/** The name of the logged-in user. */
import { effect } from "@preact/signals";
import { api, data } from "../api/client.ts";
import { session } from "./session.ts";

let name: Promise<string> | null = null;

/** Return the name of the user. Throws ApiError. */
export function userName(): Promise<string> {
  name ??= requested().catch((problem: unknown) => {
    name = null;
    throw problem;
  });
  return name;
}

async function requested(): Promise<string> {
  const { budget } = await data(api.GET("/api/v1/iam/budget", {}));
  return budget.username;
}

effect(() => {
  if (!session.isLoggedIn.value) name = null;
});
