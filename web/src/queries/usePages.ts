import { useCallback, useEffect, useMemo, useState } from "preact/hooks";

interface Part<T> {
  /** The number of all entries, of all pages. */
  count: number;
  entries: readonly T[];
}

interface Pages<T> {
  /** Null until the first page has been loaded. */
  count: number | null;
  /** The entry at an index, or undefined while its page is not loaded. */
  entry: (index: number) => T | undefined;
  /** Load the pages of the rows [start, end). It changes when the list is loaded again. */
  ensure: (start: number, end: number) => void;
  problem: unknown;
  reload: () => void;
}

type Load<T> = (page: number, signal: AbortSignal) => Promise<Part<T>>;

/** A long list that is loaded by pages (from 1) of `size` entries as they are shown. A new `load` begins anew. */
export function usePages<T>(load: Load<T>, size: number): Pages<T> {
  const [count, setCount] = useState<number | null>(null);
  const [problem, setProblem] = useState<unknown>(null);
  const [, setVersion] = useState(0);
  const [round, setRound] = useState(0);

  // biome-ignore lint/correctness/useExhaustiveDependencies: a new round begins anew
  const list = useMemo(() => {
    const loaded = new Map<number, readonly T[] | null>();
    const controller = new AbortController();
    const request = async (page: number) => {
      loaded.set(page, null);
      try {
        const part = await load(page, controller.signal);
        if (controller.signal.aborted) return;
        loaded.set(page, part.entries);
        setCount(part.count);
        setVersion((before) => before + 1);
      } catch (failure) {
        loaded.delete(page);
        if (!controller.signal.aborted) setProblem(failure);
      }
    };
    const ensure = (start: number, end: number) => {
      for (let page = Math.floor(start / size) + 1; page <= Math.ceil(end / size); page += 1) {
        if (!loaded.has(page)) void request(page);
      }
    };
    return { loaded, ensure, abort: () => controller.abort() };
  }, [load, size, round]);

  useEffect(() => {
    setProblem(null);
    list.ensure(0, 1);
    return list.abort;
  }, [list]);

  const entry = (index: number) => list.loaded.get(Math.floor(index / size) + 1)?.[index % size];
  const reload = useCallback(() => setRound((before) => before + 1), []);
  return { count, entry, ensure: list.ensure, problem, reload };
}
