import { PanelLeftClose } from "lucide-preact";
import type { FunctionComponent } from "preact";
import { useState } from "preact/hooks";
import { lazy } from "preact-iso";
import { CatalogTree } from "../catalog/CatalogTree.tsx";
import { IconButton } from "../ui/Button.tsx";
import { Tabs } from "../ui/Tabs.tsx";
import styles from "./EditorView.module.css";
import { isNarrow, isSideOpen } from "./layout.ts";
import type { EditorTab } from "./tabs.ts";
import { connectorOf, type Workspace } from "./workspace.ts";

interface Props {
  tab: EditorTab;
  workspace: Workspace;
}

const HistoryPanel = lazy(() => import("../queries/HistoryPanel.tsx").then((module) => module.HistoryPanel));
const Documents = lazy(() => import("../queries/Documents.tsx").then((module) => module.Documents));

const TABS = [
  { key: "tables", label: "Tables" },
  { key: "history", label: "History" },
  { key: "saved", label: "Saved" },
] as const;
type Shown = (typeof TABS)[number]["key"];

/** Tables, history and saved queries beside the text. */
export function SidePanel({ tab, workspace }: Props) {
  const [shown, setShown] = useState<Shown>("tables");
  const Panel = PANELS[shown];
  return (
    <section class={styles.side} aria-label="Side panel">
      <div class={styles.sideHead}>
        <Tabs label="Side panel" tabs={TABS} selected={shown} onSelect={setShown} />
        <IconButton label="Hide the side panel" onClick={() => (isSideOpen.value = false)}>
          <PanelLeftClose size={18} aria-hidden />
        </IconButton>
      </div>
      <div class={styles.sideBody} role="tabpanel" aria-label={TABS.find(({ key }) => key === shown)?.label ?? ""}>
        <Panel tab={tab} workspace={workspace} />
      </div>
    </section>
  );
}

const PANELS: Record<Shown, FunctionComponent<Props>> = {
  tables: ({ tab, workspace }) => {
    const insert = (text: string) => {
      if (isNarrow.value) isSideOpen.value = false;
      workspace.insert(text);
    };
    return <CatalogTree connector={connectorOf(tab.content.value)?.id ?? ""} onInsert={insert} />;
  },
  history: () => (
    <div class={styles.sideList}>
      <HistoryPanel />
    </div>
  ),
  saved: () => (
    <div class={styles.sideList}>
      <Documents isTrash={false} />
    </div>
  ),
};
