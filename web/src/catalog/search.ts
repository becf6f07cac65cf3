/** The metadata search over all connectors (Contract platform 8; docs/search.md has the query language). */
import { useEffect, useRef, useState } from "preact/hooks";
import { api, data, type Schemas } from "../api/client.ts";
import { isAbort } from "../api/errors.ts";
import { within } from "../api/timeouts.ts";

type SearchRecord = Schemas["SearchRecord"];

/** A found database, table, view or column. */
export interface Found {
  kind: "database" | "table" | "view" | "column";
  /** Id of the connector. */
  connector: string;
  /** Names from the database on. */
  path: readonly string[];
  comment: string;
}

export interface SearchState {
  found: readonly Found[];
  total: number;
  /** Facet name to value to number of matches. */
  facets: Readonly<Record<string, Readonly<Record<string, number>>>>;
  /** What the search could not cover; may be empty. */
  message: string;
  problem: unknown;
  isLoading: boolean;
}

export const FACETS = ["type", "owner", "tags"] as const;
/** The search has pages up to this match (Contract platform 8.1). */
const MAX_OFFSET = 10_000;
const PAGE = 50;
/** Waits until the user pauses, so that a word is one search and not one for each letter. */
const PAUSE_MS = 250;
const KINDS: Readonly<Record<string, Found["kind"]>> = {
  DATABASE: "database",
  TABLE: "table",
  VIEW: "view",
  FIELD: "column",
};
const NOTHING: SearchState = { found: [], total: 0, facets: {}, message: "", problem: null, isLoading: false };
const FILTER = /^(type|owner|tags?|classification|db|database|table|source):/i;

/** Search while a query is typed. An empty query finds nothing. `more` loads the next page. */
export function useSearch(query: string): SearchState & { more: () => void; retry: () => void } {
  const [state, setState] = useState(NOTHING);
  const [round, setRound] = useState(0);
  const load = useRef<(offset: number) => void>(() => undefined);
  const latest = useRef(state);
  latest.current = state;
  // biome-ignore lint/correctness/useExhaustiveDependencies: the round repeats a failed search
  useEffect(() => {
    if (query === "") {
      setState(NOTHING);
      return;
    }
    const controller = new AbortController();
    load.current = (offset) => {
      setState((before) => ({ ...before, isLoading: true }));
      searchPage(query, offset, controller.signal).then(
        (page) => setState(offset === 0 ? page : { ...page, found: [...latest.current.found, ...page.found] }),
        (problem: unknown) => {
          if (!isAbort(problem)) setState((before) => ({ ...before, problem, isLoading: false }));
        },
      );
    };
    const timer = setTimeout(() => load.current(0), PAUSE_MS);
    setState((before) => ({ ...before, problem: null, isLoading: true }));
    return () => {
      clearTimeout(timer);
      controller.abort();
    };
  }, [query, round]);
  const more = () => {
    const { found, total, isLoading, problem } = latest.current;
    if (!isLoading && !problem && found.length < Math.min(total, MAX_OFFSET)) load.current(found.length);
  };
  return { ...state, more, retry: () => setRound((before) => before + 1) };
}

async function searchPage(query: string, offset: number, signal: AbortSignal): Promise<SearchState> {
  const body = await data(
    api.POST("/api/v1/metadata/search/entities_interactive", {
      body: { query_s: query, sources: ["sql"], field_facets: [...FACETS], limit: PAGE, offset },
      signal: within(signal),
    }),
  );
  return {
    found: body.results.flatMap((record) => foundOf(record) ?? []),
    total: body.totalMatched,
    facets: body.facets,
    message:
      Object.values(body.sources)
        .map((source) => source.message)
        .find(Boolean) ?? body.warnings.join("\n"),
    problem: null,
    isLoading: false,
  };
}

/** Return what a record describes, or null if it is not an object of a connector. */
export function foundOf({ type, name, originalName, parentPath, connector, description }: SearchRecord): Found | null {
  const kind = KINDS[type];
  if (kind === undefined || connector === null) return null;
  const path = kind === "database" ? [originalName] : [...parentsOf(parentPath, originalName, name, kind), name];
  return { kind, connector, path, comment: description };
}

/**
 * Return the names above a table or column. Both texts join them, with `/` and with `.`, so names that contain one of
 * them are still distinguished: the texts differ exactly where one name ends.
 */
function parentsOf(parentPath: string, originalName: string, name: string, kind: Found["kind"]): string[] {
  const slashed = parentPath.replace(/^\//, "");
  const dotted = originalName.slice(0, Math.max(0, originalName.length - name.length - 1));
  if (kind !== "column") return [dotted];
  const end = [...slashed].findIndex((letter, index) => letter === "/" && dotted[index] === ".");
  return end < 0 ? ["", dotted] : [dotted.slice(0, end), dotted.slice(end + 1)];
}

/** Return the words of a query that are not filters, in lower case and without wildcards at their ends. */
export function wordsOf(query: string): string[] {
  const terms = query.match(/[a-z]+:"[^"]*"|"[^"]*"|\S+/gi) ?? [];
  return terms
    .filter((term) => !FILTER.test(term))
    .map((term) => term.replaceAll(/^"|"$|^\*+|\*+$/g, "").toLowerCase())
    .filter((term) => term !== "");
}

/** Return a query with a filter added, or removed if it has it. */
export function toggled(query: string, facet: string, value: string): string {
  const filter = filterOf(facet, value);
  if (hasFilter(query, facet, value)) {
    return query.replace(filter, "").replaceAll(/\s+/g, " ").trim();
  }
  return `${query.trim()} ${filter}`.trim();
}

export function hasFilter(query: string, facet: string, value: string): boolean {
  return ` ${query} `.includes(` ${filterOf(facet, value)} `);
}

function filterOf(facet: string, value: string): string {
  const name = facet === "tags" ? "tag" : facet;
  return /^[\w-]+$/.test(value) ? `${name}:${value}` : `${name}:"${value.replaceAll(/([\\"*?])/g, "\\$1")}"`;
}
