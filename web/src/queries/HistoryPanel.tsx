import { EllipsisVertical, RotateCw } from "lucide-preact";
import { useCallback, useState } from "preact/hooks";
import { useLocation } from "preact-iso";
import { api, data, type Schemas } from "../api/client.ts";
import { connectors } from "../app/config.ts";
import { at } from "../app/prefix.ts";
import { openTab } from "../editor/openTab.ts";
import { IconButton } from "../ui/Button.tsx";
import { SelectField, TextField } from "../ui/Field.tsx";
import { Menu } from "../ui/Menu.tsx";
import { EmptyState, ErrorMessage, Loading } from "../ui/States.tsx";
import { notify, notifyProblem } from "../ui/Toasts.tsx";
import { ago, dateText, durationText, rowsText } from "../ui/texts.ts";
import { useDebounced } from "../ui/useDebounced.ts";
import { statementOf } from "./open.ts";
import styles from "./queries.module.css";
import { type Draft, SaveDialog } from "./SaveDialog.tsx";
import { ShareDialog } from "./ShareDialog.tsx";
import { STATE_TEXTS } from "./states.ts";
import { usePages } from "./usePages.ts";
import { VirtualList } from "./VirtualList.tsx";

type Entry = Schemas["HistoryEntry"];
type Doing = { what: "save"; draft: Draft } | { what: "share"; operationId: string; title: string };

const PAGE = 50;
const ROW_PX = 62;
/** A list has at most so many characters of a statement, and one more if it is longer. */
const CUT = 1000;

/** The statements of the user, newest first, with search. */
export function HistoryPanel() {
  const [text, setText] = useState("");
  const [connector, setConnector] = useState("");
  const searched = useDebounced(text.trim());
  const load = useCallback(
    async (page: number, signal: AbortSignal) => {
      const query = { page, limit: PAGE, doc_text: searched, ...(connector ? { doc_connector: connector } : {}) };
      const { count, history } = await data(api.GET("/api/v1/editor/get_history", { params: { query }, signal }));
      return { count, entries: history };
    },
    [searched, connector],
  );
  const pages = usePages(load, PAGE);
  return (
    <div class={styles.list}>
      <div class={styles.filters}>
        <TextField
          label="Search"
          type="search"
          placeholder="A part of the statement"
          value={text}
          onInput={(event) => setText(event.currentTarget.value)}
        />
        <SelectField
          label="Connector"
          value={connector}
          options={[
            { value: "", label: "All" },
            ...connectors.value.map(({ id, displayName }) => ({ value: id, label: displayName })),
          ]}
          onChange={setConnector}
        />
        <IconButton label="Reload the history" onClick={pages.reload}>
          <RotateCw size={16} aria-hidden />
        </IconButton>
      </div>
      {pages.problem ? <ErrorMessage problem={pages.problem} onRetry={pages.reload} /> : null}
      {pages.count === null && !pages.problem ? <Loading label="Loading the history" /> : null}
      {pages.count === 0 ? (
        <EmptyState title={searched || connector ? "No statement matches." : "You have not run a statement yet."} />
      ) : null}
      {pages.count ? <Entries count={pages.count} entry={pages.entry} ensure={pages.ensure} /> : null}
    </div>
  );
}

interface EntriesProps {
  count: number;
  entry: (index: number) => Entry | undefined;
  ensure: (start: number, end: number) => void;
}

function Entries({ count, entry, ensure }: EntriesProps) {
  const [doing, setDoing] = useState<Doing | null>(null);
  const close = () => setDoing(null);
  return (
    <>
      <VirtualList label="History" count={count} rowHeight={ROW_PX} onShown={ensure}>
        {(index) => {
          const one = entry(index);
          return one ? <HistoryRow entry={one} onDo={setDoing} /> : <span class={styles.soft}>Loading…</span>;
        }}
      </VirtualList>
      {doing?.what === "save" ? (
        <SaveDialog
          draft={doing.draft}
          onClose={close}
          onSaved={({ name }) => {
            close();
            notify(`Saved as ${name}.`);
          }}
        />
      ) : null}
      {doing?.what === "share" ? <ShareDialog subject={{ ...doing, kind: "result" }} onClose={close} /> : null}
    </>
  );
}

function HistoryRow({ entry, onDo }: { entry: Entry; onDo: (doing: Doing) => void }) {
  const { route } = useLocation();
  const { data: run } = entry;
  const connector = connectors.value.find(({ id }) => id === run.connector)?.displayName ?? connectorOf(entry);
  const line = run.statement.replaceAll(/\s+/g, " ").trim().slice(0, 200);
  const open = () => openEntry(entry).then(() => route(at("/editor")), notifyProblem);
  const save = async () => {
    const statement = await wholeStatement(entry);
    onDo({ what: "save", draft: { statement, connector: connectorOf(entry), database: run.database } });
  };
  const hasRows = run.state === "available";
  const about = [
    connector,
    run.database,
    hasRows ? rowsText(run.rows) : "",
    run.ended ? durationText(run.elapsed_ms) : "",
    run.message.split("\n")[0] ?? "",
  ];
  return (
    <>
      <span class={styles.state} data-state={run.status}>
        {STATE_TEXTS[run.state]}
      </span>
      <div class={styles.main}>
        <button type="button" class={`${styles.open} ${styles.statement}`} onClick={open}>
          {line || "(empty)"}
        </button>
        <span class={styles.about}>{about.filter((text) => text !== "").join(" · ")}</span>
      </div>
      <time class={styles.when} dateTime={run.submitted} title={dateText(run.submitted)}>
        {ago(run.submitted)}
      </time>
      <Menu
        label={`Actions of ${line.slice(0, 60)}`}
        items={[
          { label: "Open in the editor", onSelect: open },
          {
            label: "Show the result",
            isDisabled: !hasRows && run.ended !== null,
            onSelect: () => route(at(`/results/${entry.uuid}`)),
          },
          { label: "Save as a query", onSelect: () => save().catch(notifyProblem) },
          {
            label: "Share the result",
            isDisabled: !hasRows && run.ended !== null,
            onSelect: () => onDo({ what: "share", operationId: entry.uuid, title: line }),
          },
        ]}
      >
        <EllipsisVertical size={16} aria-hidden />
      </Menu>
    </>
  );
}

/** Open a tab with the statement, and with its rows if they are still stored. */
async function openEntry(entry: Entry): Promise<void> {
  const statement = await wholeStatement(entry);
  const run = entry.data.state === "expired" || entry.data.state === "closed" ? {} : { operationId: entry.uuid };
  openTab({ ...run, statement, connector: connectorOf(entry), database: entry.data.database });
}

/** A server of a former version names the dialect only. */
function connectorOf(entry: Entry): string {
  return entry.data.connector ?? entry.type.replace(/^query-/, "");
}

async function wholeStatement(entry: Entry): Promise<string> {
  const { statement } = entry.data;
  return statement.length > CUT ? await statementOf(entry.uuid) : statement;
}
