import { useEffect, useMemo } from "preact/hooks";
import { useLocation } from "preact-iso";
import { isAbort } from "../api/errors.ts";
import { at } from "../app/prefix.ts";
import { SplitPane } from "../ui/SplitPane.tsx";
import { Loading } from "../ui/States.tsx";
import { notifyProblem } from "../ui/Toasts.tsx";
import { CodeArea } from "./CodeArea.tsx";
import styles from "./EditorView.module.css";
import { HelpDialog } from "./HelpDialog.tsx";
import { isNarrow, isSideOpen } from "./layout.ts";
import { openDocument, openOperation, openTab } from "./openTab.ts";
import { ParameterFields } from "./ParameterFields.tsx";
import { PlanDialog } from "./PlanDialog.tsx";
import { ResultArea } from "./ResultArea.tsx";
import { SaveTabDialog } from "./SaveTabDialog.tsx";
import { SidePanel } from "./SidePanel.tsx";
import { TabStrip } from "./TabStrip.tsx";
import { Toolbar } from "./Toolbar.tsx";
import { areLoaded, loadTabs, selectedTab } from "./tabs.ts";
import { Workspace } from "./workspace.ts";

/** The view `/editor`. Its links open a tab: `?connector=&database=&statement=`, `?document=` and `?operation=`. */
export function EditorView() {
  useLinks();
  return (
    <>
      <h1 class="visually-hidden">Editor</h1>
      {areLoaded.value ? <LoadedEditor /> : <Loading label="Opening the tabs" />}
    </>
  );
}

function LoadedEditor() {
  const workspace = useMemo(() => new Workspace(), []);
  const tab = selectedTab();
  if (!tab) return null;
  const isSideShown = isSideOpen.value;
  const side = <SidePanel tab={tab} workspace={workspace} />;
  const work = (
    <div class={styles.work}>
      <TabStrip workspace={workspace} />
      <Toolbar tab={tab} workspace={workspace} />
      <div class={styles.panes}>
        <SplitPane
          name="editor.result"
          label="Height of the result"
          direction="column"
          sized="last"
          initial={0.55}
          min={90}
          first={
            <div class={styles.text}>
              <CodeArea workspace={workspace} />
              <ParameterFields tab={tab} workspace={workspace} />
            </div>
          }
          last={<ResultArea tab={tab} workspace={workspace} />}
        />
      </div>
    </div>
  );
  return (
    <div class={styles.view}>
      {isNarrow.value && isSideShown ? <div class={styles.cover}>{side}</div> : null}
      <SplitPane
        name="editor.side"
        label="Width of the side panel"
        direction="row"
        sized="first"
        initial={296}
        min={180}
        isCollapsed={isNarrow.value || !isSideShown}
        first={side}
        last={work}
      />
      {workspace.isHelpOpen.value ? <HelpDialog onClose={() => (workspace.isHelpOpen.value = false)} /> : null}
      {workspace.isSaveOpen.value ? (
        <SaveTabDialog tab={tab} onClose={() => (workspace.isSaveOpen.value = false)} />
      ) : null}
      {workspace.plan.value ? (
        <PlanDialog plan={workspace.plan.value} onClose={() => (workspace.plan.value = null)} />
      ) : null}
    </div>
  );
}

/** Open the tab that the address describes, and take the description out of the address: a reload opens no second one. */
function useLinks(): void {
  const { query, route } = useLocation();
  const { connector, database, statement, document, operation } = query;
  useEffect(() => {
    const ended = new AbortController();
    const open = async () => {
      await loadTabs();
      if (ended.signal.aborted) return;
      if (document) await openDocument(document, ended.signal);
      else if (operation) await openOperation(operation, ended.signal);
      else if (statement !== undefined || connector !== undefined) openTab({ statement, connector, database });
      else return;
      route(at("/editor"), true);
    };
    open().catch((problem: unknown) => {
      if (isAbort(problem) || ended.signal.aborted) return;
      notifyProblem(problem);
      route(at("/editor"), true);
    });
    return () => ended.abort();
  }, [connector, database, statement, document, operation, route]);
}
