import { useCallback, useEffect, useRef, useState } from "preact/hooks";
import { isAbort } from "../api/errors.ts";
import { within } from "../api/timeouts.ts";

export interface Loaded<T> {
  value: T | null;
  problem: unknown;
  isLoading: boolean;
  reload: () => void;
}

/** As long as the slowest calls take, such as the list of a directory with 1,000,000 entries. */
const LOAD_TIMEOUT_MS = 300_000;

/**
 * Load a value when the component is shown and whenever `key` changes. The signal is aborted when the component ends
 * or a newer load begins. While it reloads, the previous value stays.
 */
export function useLoaded<T>(key: string, load: (signal: AbortSignal) => Promise<T>): Loaded<T> {
  const [state, setState] = useState<Omit<Loaded<T>, "reload">>({ value: null, problem: null, isLoading: true });
  const [round, setRound] = useState(0);
  const latest = useRef(load);
  latest.current = load;
  // biome-ignore lint/correctness/useExhaustiveDependencies: the key and the round are what starts a load
  useEffect(() => {
    const controller = new AbortController();
    const signal = within(controller.signal, LOAD_TIMEOUT_MS);
    setState((before) => ({ ...before, isLoading: true }));
    latest.current(signal).then(
      (value) => {
        if (!controller.signal.aborted) setState({ value, problem: null, isLoading: false });
      },
      (problem: unknown) => {
        if (!controller.signal.aborted && !isAbort(problem)) {
          setState((before) => ({ value: before.value, problem, isLoading: false }));
        }
      },
    );
    return () => controller.abort();
  }, [key, round]);
  return { ...state, reload: useCallback(() => setRound((before) => before + 1), []) };
}
