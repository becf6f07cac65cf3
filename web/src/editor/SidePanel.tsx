import { PanelLeftClose } from "lucide-preact";
import { CatalogTree } from "../catalog/CatalogTree.tsx";
import { IconButton } from "../ui/Button.tsx";
import styles from "./EditorView.module.css";
import { isNarrow, isSideOpen } from "./layout.ts";
import type { EditorTab } from "./tabs.ts";
import { connectorOf, type Workspace } from "./workspace.ts";

/** The tables of the connectors beside the text. */
export function SidePanel({ tab, workspace }: { tab: EditorTab; workspace: Workspace }) {
  const insert = (text: string) => {
    if (isNarrow.value) isSideOpen.value = false;
    workspace.insert(text);
  };
  return (
    <section class={styles.side} aria-label="Tables">
      <div class={styles.sideHead}>
        <h2>Tables</h2>
        <IconButton label="Hide the tables" onClick={() => (isSideOpen.value = false)}>
          <PanelLeftClose size={18} aria-hidden />
        </IconButton>
      </div>
      <div class={styles.sideBody}>
        <CatalogTree connector={connectorOf(tab.content.value)?.id ?? ""} onInsert={insert} />
      </div>
    </section>
  );
}
