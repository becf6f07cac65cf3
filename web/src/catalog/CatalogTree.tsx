import { RefreshCw, Search, X } from "lucide-preact";
import { useEffect, useMemo, useRef, useState } from "preact/hooks";
import { useLocation } from "preact-iso";
import { type Connector, connectors } from "../app/config.ts";
import { useOpenTab } from "../editor/openTab.ts";
import { IconButton } from "../ui/Button.tsx";
import { EmptyState } from "../ui/States.tsx";
import { type ActionTargets, actionsOf, nameOf, type ObjectPath } from "./actions.tsx";
import styles from "./CatalogTree.module.css";
import { SearchResults } from "./SearchResults.tsx";
import { type Found, useSearch, wordsOf } from "./search.ts";
import { forget } from "./store.ts";
import { type Selected, TreeView } from "./TreeView.tsx";
import { TreeModel } from "./treeModel.ts";
import type { TreeRow } from "./treeRows.ts";

interface Props {
  /** Id of the connector that is opened first. */
  connector: string;
  /** Insert text at the cursor of the editor; absent where there is no editor. */
  onInsert?: (text: string) => void;
}

/** The connectors with their databases, tables and columns, which load as they are opened, and the search over them. */
export function CatalogTree({ connector, onInsert }: Props) {
  const { route } = useLocation();
  const available = connectors.value;
  const openTab = useOpenTab();
  const model = useTreeModel(available);
  const [query, setQuery] = useState("");
  const [selected, setSelected] = useState<Selected | null>(null);
  const search = useSearch(query.trim());
  useEffect(() => void model.openConnector(connector), [model, connector]);
  const filterBy = (text: string) => {
    setQuery(text);
    model.filter.value = wordsOf(text);
  };
  const targets: ActionTargets = { onInsert, onQuery: openTab, onOpen: (address) => route(address) };
  const reveal = async ({ connector, path }: Found) => {
    filterBy("");
    const row = await model.reveal([connector, ...path]);
    if (row) setSelected({ branch: row.branch, name: row.node?.name ?? null });
  };
  const hasRows = model.rows.value.length > 0;
  if (available.length === 0) {
    return (
      <EmptyState title="No connectors">An administrator can add connectors, or permit you to use them.</EmptyState>
    );
  }
  return (
    <div class={styles.panel}>
      <SearchBox query={query} onQuery={filterBy} onRefresh={() => forget()} />
      {query === "" || hasRows ? (
        <TreeView
          model={model}
          selected={selected}
          onSelect={setSelected}
          onActivate={(row) => {
            const path = pathOf(row);
            if (path && onInsert) onInsert(nameOf(path));
          }}
          menuOf={(row) => {
            const path = pathOf(row);
            const below = row.node ? row.branch.open.get(row.node.name) : undefined;
            const onRefresh = below ? () => void model.refresh(below) : undefined;
            return path ? actionsOf(path, { ...targets, onRefresh }) : [];
          }}
        />
      ) : null}
      {query.trim() === "" ? null : (
        <SearchResults
          query={query}
          search={search}
          onQuery={filterBy}
          onReveal={(found) => void reveal(found)}
          placeOf={placeOf}
          menuOf={(found) => {
            const path = objectPath([found.connector, ...found.path]);
            return path ? actionsOf(path, targets) : [];
          }}
        />
      )}
    </div>
  );
}

/** The state of the tree; it is made anew when the caller may use other connectors. */
function useTreeModel(available: readonly Connector[]): TreeModel {
  const model = useMemo(() => new TreeModel(available), [available]);
  useEffect(() => () => model.dispose(), [model]);
  return model;
}

interface SearchBoxProps {
  query: string;
  onQuery: (query: string) => void;
  onRefresh: () => void;
}

function SearchBox({ query, onQuery, onRefresh }: SearchBoxProps) {
  const input = useRef<HTMLInputElement>(null);
  return (
    <search class={styles.head}>
      <div class={styles.search}>
        <Search size={15} aria-hidden />
        <input
          ref={input}
          class={styles.input}
          type="text"
          aria-label="Search tables and columns"
          placeholder="Search tables and columns"
          title="Words that names contain. Filters: type:table, db:shop, table:orders, owner:ana, tag:pii"
          autocomplete="off"
          spellcheck={false}
          value={query}
          onInput={(event) => onQuery(event.currentTarget.value)}
          onKeyDown={(event) => event.key === "Escape" && onQuery("")}
        />
      </div>
      {query === "" ? (
        <IconButton label="Refresh" onClick={onRefresh}>
          <RefreshCw size={16} aria-hidden />
        </IconButton>
      ) : (
        <IconButton
          label="Clear the search"
          onClick={() => {
            onQuery("");
            input.current?.focus();
          }}
        >
          <X size={16} aria-hidden />
        </IconButton>
      )}
    </search>
  );
}

function pathOf({ branch, node }: TreeRow): ObjectPath | null {
  return node ? objectPath([...branch.path, node.name]) : null;
}

/** Return the object at a path of names that begins with the id of a connector; null if it may not be used any more. */
function objectPath([id, database, table, column]: readonly string[]): ObjectPath | null {
  const connector = connectors.value.find((one) => one.id === id);
  return connector ? { connector, database, table, column } : null;
}

function placeOf({ connector, path }: Found): string {
  const name = connectors.value.find((one) => one.id === connector)?.displayName ?? connector;
  return [name, ...path.slice(0, -1)].filter(Boolean).join(" › ");
}
