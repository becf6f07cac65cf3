import { useVirtualizer } from "@tanstack/react-virtual";
import { MoreVertical } from "lucide-preact";
import { useEffect, useRef } from "preact/hooks";
import { Menu, type MenuItem } from "../ui/Menu.tsx";
import { EmptyState, ErrorMessage, Loading } from "../ui/States.tsx";
import styles from "./CatalogTree.module.css";
import { NodeIcon } from "./NodeIcon.tsx";
import { FACETS, type Found, hasFilter, type SearchState, toggled } from "./search.ts";

const ROW_PX = 44;
const OVERSCAN = 8;
const FACET_VALUES = 4;
/** What the page calls the types of the search. */
const TYPE_WORDS: Readonly<Record<string, string>> = { field: "column" };

interface Props {
  query: string;
  search: SearchState & { more: () => void; retry: () => void };
  /** Replace the query, for example with one that has another filter. */
  onQuery: (query: string) => void;
  /** Show an object in the tree. */
  onReveal: (found: Found) => void;
  placeOf: (found: Found) => string;
  menuOf: (found: Found) => readonly MenuItem[];
}

/** What the metadata search found in all connectors, with facets that narrow it down. */
export function SearchResults({ query, search, onQuery, onReveal, placeOf, menuOf }: Props) {
  const { found, total, isLoading, problem, message, more, retry } = search;
  const scroller = useRef<HTMLDivElement>(null);
  const virtual = useVirtualizer({
    count: found.length,
    getScrollElement: () => scroller.current,
    estimateSize: () => ROW_PX,
    overscan: OVERSCAN,
  });
  const items = virtual.getVirtualItems();
  const isAtEnd = (items.at(-1)?.index ?? -1) >= found.length - 1;
  // biome-ignore lint/correctness/useExhaustiveDependencies: `more` is new in each rendering
  useEffect(() => {
    if (isAtEnd && found.length > 0) more();
  }, [isAtEnd, found.length]);
  return (
    <section class={styles.results} aria-label="Found in all connectors">
      <div class={styles.resultsHead}>
        <h2 class={styles.resultsTitle} aria-live="polite">
          {isLoading && found.length === 0 ? "Searching…" : `${total.toLocaleString()} found in all connectors`}
        </h2>
        <Facets query={query} facets={search.facets} onQuery={onQuery} />
        {message ? <div class={styles.hitPlace}>{message}</div> : null}
      </div>
      {problem ? <ErrorMessage problem={problem} onRetry={retry} /> : null}
      {!problem && found.length === 0 ? isLoading ? <Loading label="Searching" /> : <NothingFound /> : null}
      <div ref={scroller} class={styles.list} hidden={found.length === 0}>
        <ul class={styles.spacer} style={{ height: `${virtual.getTotalSize()}px`, margin: 0, padding: 0 }}>
          {items.map(({ index, start }) => {
            const one = found[index];
            if (!one) return null;
            const name = one.path.at(-1) ?? "";
            return (
              <li key={index} class={styles.hit} style={{ transform: `translateY(${start}px)` }}>
                <button type="button" class={styles.hitMain} title={one.comment} onClick={() => onReveal(one)}>
                  <NodeIcon kind={one.kind} />
                  <span class={styles.hitText}>
                    <div>{name}</div>
                    <div class={styles.hitPlace}>{placeOf(one)}</div>
                  </span>
                </button>
                <span class={styles.menu}>
                  <Menu label={`Actions for ${name}`} items={menuOf(one)}>
                    <MoreVertical size={16} aria-hidden />
                  </Menu>
                </span>
              </li>
            );
          })}
        </ul>
      </div>
    </section>
  );
}

function NothingFound() {
  return <EmptyState title="Nothing found">Tables that were created recently may not be in the search yet.</EmptyState>;
}

type FacetsProps = Pick<SearchState, "facets"> & Pick<Props, "query" | "onQuery">;

function Facets({ query, facets, onQuery }: FacetsProps) {
  return FACETS.flatMap((facet) =>
    Object.entries(facets[facet] ?? {})
      .slice(0, FACET_VALUES)
      .map(([value, count]) => (
        <button
          key={`${facet}:${value}`}
          type="button"
          class={styles.facet}
          aria-pressed={hasFilter(query, facet, value)}
          onClick={() => onQuery(toggled(query, facet, value))}
        >
          {facet === "type" ? (TYPE_WORDS[value.toLowerCase()] ?? value.toLowerCase()) : value}{" "}
          <span>{count.toLocaleString()}</span>
        </button>
      )),
  );
}
