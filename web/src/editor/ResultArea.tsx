import { ResultPanel } from "../results/ResultPanel.tsx";
import { EmptyState } from "../ui/States.tsx";
import styles from "./EditorView.module.css";
import { modKey } from "./HelpDialog.tsx";
import type { EditorTab } from "./tabs.ts";
import type { Workspace } from "./workspace.ts";

/** The result of the last run of a tab. */
export function ResultArea({ tab, workspace }: { tab: EditorTab; workspace: Workspace }) {
  const execution = tab.execution.value;
  return (
    <section class={styles.result} aria-label="Result">
      {execution ? (
        <ResultPanel key={tab.id} execution={execution} onRunAgain={workspace.runAgain} />
      ) : (
        <EmptyState title="No result yet">{`Run executes the statement at the cursor (${modKey}+Enter).`}</EmptyState>
      )}
    </section>
  );
}
