import { useCallback, useEffect, useRef, useState } from "preact/hooks";
import { isAbort } from "../api/errors.ts";

interface Part<T> {
  /** All entries, of all pages. */
  count: number;
  entries: readonly T[];
}

interface Pages<T> {
  /** Null until the first page has come. */
  count: number | null;
  /** The entry at an index, or undefined while its page is not loaded. */
  entry: (index: number) => T | undefined;
  /** Load the pages of the rows [start, end). */
  ensure: (start: number, end: number) => void;
  problem: unknown;
  reload: () => void;
}

/** A long list that is loaded by pages (from 1) as they are shown. A new `load` begins anew. */
export function usePages<T>(load: (page: number, signal: AbortSignal) => Promise<Part<T>>, size: number): Pages<T> {
  const [count, setCount] = useState<number | null>(null);
  const [problem, setProblem] = useState<unknown>(null);
  const [, setVersion] = useState(0);
  const [round, setRound] = useState(0);
  const pages = useRef(new Map<number, readonly T[] | null>());
  const controller = useRef(new AbortController());

  const request = useCallback(
    async (page: number) => {
      const known = pages.current;
      const { signal } = controller.current;
      known.set(page, null);
      try {
        const part = await load(page, signal);
        if (signal.aborted) return;
        known.set(page, part.entries);
        setCount(part.count);
        setVersion((before) => before + 1);
      } catch (failure) {
        known.delete(page);
        if (!signal.aborted && !isAbort(failure)) setProblem(failure);
      }
    },
    [load],
  );

  // biome-ignore lint/correctness/useExhaustiveDependencies: a new round begins anew
  useEffect(() => {
    controller.current = new AbortController();
    pages.current = new Map();
    setProblem(null);
    void request(1);
    return () => controller.current.abort();
  }, [request, round]);

  const ensure = useCallback(
    (start: number, end: number) => {
      for (let page = Math.floor(start / size) + 1; page <= Math.ceil(end / size); page += 1) {
        if (!pages.current.has(page)) void request(page);
      }
    },
    [request, size],
  );
  const entry = (index: number) => pages.current.get(Math.floor(index / size) + 1)?.[index % size];
  return { count, entry, ensure, problem, reload: useCallback(() => setRound((before) => before + 1), []) };
}
