/** The client configuration of the logged-in user: connectors, flags and limits (Contract platform 6). */
import { computed, effect, signal } from "@preact/signals";
import { api, data, type Schemas } from "../api/client.ts";
import { session } from "./session.ts";

export type Config = Schemas["ClientConfiguration"];
export type Connector = Schemas["Interpreter"];

export const config = signal<Config | null>(null);
export const connectors = computed<readonly Connector[]>(() => config.value?.app_config.editor?.interpreters ?? []);
export const isAdmin = computed(() => config.value?.svc_config.is_admin ?? false);

/** Load the configuration. Throws ApiError. */
export async function loadConfig(signal: AbortSignal): Promise<void> {
  config.value = await data(api.POST("/api/v1/get_config", { signal }));
}

effect(() => {
  if (!session.isLoggedIn.value) config.value = null;
});
