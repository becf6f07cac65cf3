/** The stores of the caller (Contract storage 5.1), loaded once for all components. */
import { effect, signal } from "@preact/signals";
import { useEffect } from "preact/hooks";
import { api, data, type Schemas } from "../api/client.ts";
import { session } from "../app/session.ts";
import { rootOf } from "./paths.ts";

export type Store = Schemas["Filesystem"];

export const TITLES: Record<Store["file_system"], string> = {
  hdfs: "HDFS",
  s3a: "S3",
  abfs: "Azure storage",
  ofs: "Ozone",
  file: "Server files",
};

const stores = signal<readonly Store[] | null>(null);
const problem = signal<unknown>(null);
let loading: AbortController | null = null;

// The next user of this page may have other stores.
effect(() => {
  if (session.isLoggedIn.value) return;
  loading?.abort();
  loading = null;
  stores.value = null;
  problem.value = null;
});

/** Return the stores, null until they are loaded, and the problem if that failed. */
export function useStores(): { stores: readonly Store[] | null; problem: unknown; reload: () => void } {
  useEffect(() => {
    if (loading === null) void load();
  }, []);
  return { stores: stores.value, problem: problem.value, reload: () => void load() };
}

async function load(): Promise<void> {
  const controller = new AbortController();
  loading = controller;
  problem.value = null;
  try {
    stores.value = await data(api.GET("/api/v1/storage/filesystems", { signal: controller.signal }));
  } catch (caught) {
    if (controller.signal.aborted) return;
    loading = null;
    problem.value = caught;
  }
}

/** Return the store of a path; undefined if the caller may use none for it. */
export function storeOf(path: string, all: readonly Store[]): Store | undefined {
  const root = rootOf(path);
  return all.find((store) => rootOf(store.user_home_directory) === root);
}

/** Return whether the store has an optional call. */
export function supports(store: Store | undefined, feature: Store["supports"][number]): boolean {
  return store?.supports.includes(feature) ?? false;
}
