/** Light, dark, or as the system; stored in this browser. */
import { effect, signal } from "@preact/signals";
import { browserStorage } from "./storage.ts";

export type Theme = "system" | "light" | "dark";
const KEY = "queryserver.theme";

export const theme = signal<Theme>(stored());

effect(() => {
  const root = document.documentElement;
  if (theme.value === "system") root.removeAttribute("data-theme");
  else root.setAttribute("data-theme", theme.value);
  if (theme.value !== stored()) browserStorage.set(KEY, theme.value);
});

export function nextTheme(): void {
  const order: readonly Theme[] = ["system", "light", "dark"];
  theme.value = order[(order.indexOf(theme.value) + 1) % order.length] ?? "system";
}

function stored(): Theme {
  const value = browserStorage.get(KEY);
  return value === "light" || value === "dark" ? value : "system";
}
