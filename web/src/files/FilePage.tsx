import { useEffect, useRef, useState } from "preact/hooks";
import { useLocation } from "preact-iso";
import { api, data } from "../api/client.ts";
import { startDownload } from "../app/download.ts";
import { at } from "../app/prefix.ts";
import { Button } from "../ui/Button.tsx";
import { ErrorMessage, Loading } from "../ui/States.tsx";
import { Tabs } from "../ui/Tabs.tsx";
import { notifyProblem } from "../ui/Toasts.tsx";
import { bytesText } from "../ui/texts.ts";
import { useLoaded } from "../ui/useLoaded.ts";
import { Crumbs } from "./Crumbs.tsx";
import { type Intent, IntentDialog } from "./dialogs.tsx";
import { downloadUrl } from "./downloads.ts";
import styles from "./files.module.css";
import { ImagePreview } from "./ImagePreview.tsx";
import { kindOf } from "./kinds.ts";
import { type Entry, modifiedText } from "./listing.ts";
import { addressOf, nameOf, parentOf } from "./paths.ts";
import type { Store } from "./stores.ts";
import { TablePreview } from "./TablePreview.tsx";
import { TextPreview } from "./TextPreview.tsx";

/** One file: what it is, and its first content. */
export function FilePage({ path, store }: { path: string; store: Store | undefined }) {
  const { route } = useLocation();
  const [intent, setIntent] = useState<Intent | null>(null);
  const isShown = useRef(true);
  useEffect(
    () => () => {
      isShown.current = false;
    },
    [],
  );
  const { value, problem, reload } = useLoaded(path, (signal) =>
    data(api.GET("/api/v1/storage/stat", { params: { query: { path } }, signal })),
  );
  return (
    <section class={styles.file} aria-label={nameOf(path)}>
      <div class={styles.bar}>
        <Crumbs path={path} />
        {value ? <FileButtons entry={value} onIntent={setIntent} /> : null}
      </div>
      {problem ? <ErrorMessage problem={problem} onRetry={reload} /> : null}
      {!value && !problem ? <Loading /> : null}
      {value ? (
        <>
          <Facts entry={value} />
          <Preview key={path} entry={value} />
        </>
      ) : null}
      {intent ? (
        <IntentDialog
          intent={intent}
          directory={parentOf(path)}
          hasTrash={store?.has_trash ?? false}
          isRecursive={false}
          onClose={() => setIntent(null)}
          onChanged={(isDone) => {
            // A long change may end after the user has left the page.
            if (isDone && isShown.current) route(addressOf(parentOf(path)), true);
          }}
        />
      ) : null}
    </section>
  );
}

function FileButtons({ entry, onIntent }: { entry: Entry; onIntent: (intent: Intent) => void }) {
  const { route } = useLocation();
  return (
    <>
      {kindOf(entry.name) === "table" ? (
        <Button onClick={() => route(`${at("/import")}?path=${encodeURIComponent(entry.path)}`)}>Import</Button>
      ) : null}
      <Button onClick={() => onIntent({ kind: "rename", entry })}>Rename</Button>
      <Button kind="danger" onClick={() => onIntent({ kind: "delete", entries: [entry] })}>
        Delete
      </Button>
      <Button kind="primary" onClick={() => startDownload(downloadUrl(entry.path)).catch(notifyProblem)}>
        Download
      </Button>
    </>
  );
}

function Facts({ entry }: { entry: Entry }) {
  const owner = [entry.user, entry.group].filter((name) => name !== "").join(" : ");
  const facts = [bytesText(entry.size), modifiedText(entry), owner, entry.rwx].filter((fact) => fact !== "");
  return <p class={styles.about}>{facts.join(" · ")}</p>;
}

function Preview({ entry }: { entry: Entry }) {
  const [shown, setShown] = useState<"table" | "text">("table");
  const kind = kindOf(entry.name);
  if (kind === "image") return <ImagePreview path={entry.path} />;
  if (kind !== "table") return <TextPreview path={entry.path} />;
  const tabs = [
    { key: "table", label: "Table" },
    { key: "text", label: "Text" },
  ] as const;
  return (
    <>
      <Tabs label="Preview" tabs={tabs} selected={shown} onSelect={setShown} />
      <div role="tabpanel" aria-label={shown === "table" ? "Table" : "Text"} class={styles.panel}>
        {shown === "table" ? <TablePreview path={entry.path} /> : <TextPreview path={entry.path} />}
      </div>
    </>
  );
}
