import { useState } from "preact/hooks";
import { Tabs } from "../ui/Tabs.tsx";
import { Documents } from "./Documents.tsx";
import styles from "./queries.module.css";
import { SharedResults } from "./SharedResults.tsx";

const TABS = [
  { key: "saved", label: "Saved queries" },
  { key: "trash", label: "Trash" },
  { key: "results", label: "Shared results" },
] as const;

/** Saved queries, and results that other users have shared. */
export function QueriesView() {
  const [tab, setTab] = useState<(typeof TABS)[number]["key"]>("saved");
  return (
    <div class={styles.view}>
      <h1>Queries</h1>
      <Tabs label="Lists" tabs={TABS} selected={tab} onSelect={setTab} />
      <div class={styles.panel} role="tabpanel" aria-label={TABS.find(({ key }) => key === tab)?.label ?? ""}>
        {tab === "results" ? <SharedResults /> : <Documents key={tab} isTrash={tab === "trash"} />}
      </div>
    </div>
  );
}
