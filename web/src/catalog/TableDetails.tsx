import { Copy, PanelLeft, Play, RefreshCw } from "lucide-preact";
import { useEffect, useRef, useState } from "preact/hooks";
import { useLocation, useRoute } from "preact-iso";
import { connectors } from "../app/config.ts";
import { useOpenTab } from "../editor/openTab.ts";
import { Button, IconButton } from "../ui/Button.tsx";
import { copyText } from "../ui/clipboard.ts";
import { EmptyState, ErrorMessage, Loading } from "../ui/States.tsx";
import { Tabs } from "../ui/Tabs.tsx";
import { useLoaded } from "../ui/useLoaded.ts";
import { CatalogTree } from "./CatalogTree.tsx";
import { ColumnsTable } from "./ColumnsTable.tsx";
import { describeTable, type TableDescription, type TableName } from "./describe.ts";
import { databaseOfSegment, qualified, selectStatement } from "./names.ts";
import { SampleRows } from "./SampleRows.tsx";
import { Statistics } from "./Statistics.tsx";
import * as store from "./store.ts";
import styles from "./TableDetails.module.css";

const TABS = [
  { key: "columns", label: "Columns" },
  { key: "sample", label: "Sample" },
  { key: "statistics", label: "Statistics" },
  { key: "properties", label: "Properties" },
] as const;
type TabKey = (typeof TABS)[number]["key"];

/** The page of a table or view: columns, sample rows, statistics and properties, beside the tree. */
export function TableDetails() {
  const { connector = "", database = "", table = "" } = useRoute().params;
  const name = { connector, database: databaseOfSegment(database), table };
  const [isTreeShown, setTreeShown] = useState(false);
  // biome-ignore lint/correctness/useExhaustiveDependencies: a choice in the tree shows its table
  useEffect(() => setTreeShown(false), [connector, database, table]);
  return (
    <div class={isTreeShown ? `${styles.page} ${styles.withTree}` : styles.page}>
      <div class={styles.narrowBar}>
        {isTreeShown ? <h1 class="visually-hidden">All tables</h1> : null}
        <Button kind="quiet" aria-expanded={isTreeShown} onClick={() => setTreeShown(!isTreeShown)}>
          <PanelLeft size={18} aria-hidden /> {isTreeShown ? "Back to the table" : "All tables"}
        </Button>
      </div>
      <div class={styles.side}>
        <CatalogTree connector={connector} />
      </div>
      <Table key={JSON.stringify(name)} name={name} />
    </div>
  );
}

function Table({ name }: { name: TableName }) {
  const { query } = useLocation();
  const [tab, setTab] = useState<TabKey>(TABS.find(({ key }) => key === query.show)?.key ?? "columns");
  const { value, problem, isLoading, reload } = useTable(name);
  if (problem && !value) {
    return (
      <section class={styles.panel}>
        <h1 class="visually-hidden">{name.table}</h1>
        <ErrorMessage problem={problem} onRetry={reload} />
      </section>
    );
  }
  return (
    <section class={styles.main} aria-label={name.table} aria-busy={isLoading}>
      <Head name={name} description={value?.description ?? null} onRefresh={reload} />
      <div class={styles.tabs}>
        <Tabs label="About the table" tabs={TABS} selected={tab} onSelect={setTab} />
      </div>
      <div class={styles.panel} role="tabpanel" aria-label={TABS.find(({ key }) => key === tab)?.label}>
        {value === null ? <Loading /> : null}
        {value && tab === "columns" ? <ColumnsTable table={value.metadata} /> : null}
        {value && tab === "sample" ? <SampleRows name={name} /> : null}
        {value && tab === "statistics" ? (
          <Statistics name={name} description={value.description} onChange={reload} />
        ) : null}
        {value && tab === "properties" ? <Properties description={value.description} /> : null}
      </div>
    </section>
  );
}

/** Load both descriptions of a table. A reload queries the data source, not the caches. */
function useTable(name: TableName) {
  const isFirst = useRef(true);
  const loaded = useLoaded(JSON.stringify(name), async (signal) => {
    const refresh = !isFirst.current;
    isFirst.current = false;
    const [metadata, description] = await Promise.all([
      store.columns(name.connector, name.database, name.table, { signal, refresh }),
      describeTable(name, refresh, signal),
    ]);
    return { metadata, description };
  });
  useEffect(() => {
    document.title = `${name.table} – Query Server`;
  }, [name.table]);
  return loaded;
}

interface HeadProps {
  name: TableName;
  description: TableDescription | null;
  onRefresh: () => void;
}

function Head({ name, description, onRefresh }: HeadProps) {
  const openTab = useOpenTab();
  const { connector: id, database, table } = name;
  const connector = connectors.value.find((one) => one.id === id);
  return (
    <header class={styles.head}>
      <div class={styles.title}>
        <div class={styles.place}>{[connector?.displayName ?? id, database].filter(Boolean).join(" › ")}</div>
        <h1>{table}</h1>
        <div class={styles.facts}>{description ? factsOf(description).join(" · ") : "…"}</div>
        {description?.comment ? <p class={styles.comment}>{description.comment}</p> : null}
      </div>
      {connector ? (
        <div class={styles.buttons}>
          <Button
            kind="primary"
            onClick={() => openTab({ connector: id, database, statement: selectStatement(connector, database, table) })}
          >
            <Play size={16} aria-hidden /> Select the first rows
          </Button>
          <IconButton
            label="Copy name"
            kind="normal"
            onClick={() => void copyText(qualified(connector, database, table), "The name is copied.")}
          >
            <Copy size={16} aria-hidden />
          </IconButton>
          <IconButton label="Refresh" kind="normal" onClick={onRefresh}>
            <RefreshCw size={16} aria-hidden />
          </IconButton>
        </div>
      ) : null}
    </header>
  );
}

const KINDS: Readonly<Record<string, string>> = {
  MANAGED_TABLE: "Table",
  EXTERNAL_TABLE: "External table",
  VIRTUAL_VIEW: "View",
  MATERIALIZED_VIEW: "Materialized view",
};

/** Return what one line can say about a table. */
function factsOf({ details: { properties, stats }, cols, partition_keys }: TableDescription): string[] {
  const rows = stats.numRows;
  return [
    KINDS[properties.table_type] ?? properties.table_type,
    cols.length === 1 ? "1 column" : `${cols.length.toLocaleString()} columns`,
    rows !== undefined && /^\d+$/.test(rows) ? `${BigInt(rows).toLocaleString()} rows` : "",
    partition_keys.length > 0 ? `partitioned by ${partition_keys.map((key) => key.name).join(", ")}` : "",
    properties.format,
    properties.owner ? `owner ${properties.owner}` : "",
  ].filter(Boolean);
}

function Properties({ description }: { description: TableDescription }) {
  const { details, path_location, properties } = description;
  const entries: (readonly [string, string])[] = [
    ["Location", path_location],
    ["Owner", details.properties.owner],
    ["Created", details.properties.create_time],
    ["Format", details.properties.format],
    ...properties.map(({ col_name, data_type }) => [col_name, data_type] as const),
  ];
  const known = entries.filter(([, text]) => text.trim() !== "");
  if (known.length === 0) return <EmptyState title="The data source reports no properties of this table." />;
  return (
    <dl class={styles.properties}>
      {known.map(([title, text], index) => (
        <Property key={index} title={title.trim()} text={text} />
      ))}
    </dl>
  );
}

function Property({ title, text }: { title: string; text: string }) {
  return (
    <>
      <dt>{title}</dt>
      <dd>{text}</dd>
    </>
  );
}
