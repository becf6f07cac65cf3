import { ChevronDown, CircleHelp, ListTree, Play, Save, Sparkles, Square } from "lucide-preact";
import { connectors } from "../app/config.ts";
import { databases, revision } from "../catalog/store.ts";
import { Button, IconButton } from "../ui/Button.tsx";
import { Menu } from "../ui/Menu.tsx";
import { useLoaded } from "../ui/useLoaded.ts";
import { modKey } from "./HelpDialog.tsx";
import styles from "./Toolbar.module.css";
import type { EditorTab } from "./tabs.ts";
import { connectorOf, type Workspace } from "./workspace.ts";

interface Props {
  tab: EditorTab;
  workspace: Workspace;
}

/** The commands for the text of a tab, and where it runs. */
export function Toolbar({ tab, workspace }: Props) {
  const execution = tab.execution.value;
  const isActive = execution?.isActive.value ?? false;
  const connector = connectorOf(tab.content.value)?.id ?? "";
  return (
    <div class={styles.toolbar} role="toolbar" aria-label="Statement">
      <div class={styles.group}>
        <Button kind="primary" onClick={workspace.run} title={`Run the statement at the cursor (${modKey}+Enter)`}>
          <Play size={16} aria-hidden /> Run
        </Button>
        <Menu
          label="More ways to run"
          items={[
            { label: "Run selection or statement", onSelect: workspace.run },
            { label: "Run all statements", onSelect: workspace.runAll },
          ]}
        >
          <ChevronDown size={16} aria-hidden />
        </Menu>
        {isActive ? (
          <Button kind="danger" disabled={execution?.isCanceling.value ?? false} onClick={workspace.cancel}>
            <Square size={14} aria-hidden /> Stop
          </Button>
        ) : null}
      </div>
      <div class={styles.group}>
        <ConnectorChoice tab={tab} />
        <DatabaseChoice key={connector} tab={tab} connector={connector} />
      </div>
      <div class={styles.group}>
        <Button kind="quiet" onClick={workspace.format} title={`Format (${modKey}+Shift+F)`} aria-label="Format">
          <Sparkles size={16} aria-hidden /> <span class={styles.word}>Format</span>
        </Button>
        <Button kind="quiet" onClick={workspace.explain} title={`Explain (${modKey}+Shift+E)`} aria-label="Explain">
          <ListTree size={16} aria-hidden /> <span class={styles.word}>Explain</span>
        </Button>
        <Button kind="quiet" onClick={workspace.save} title={`Save as a query (${modKey}+S)`} aria-label="Save">
          <Save size={16} aria-hidden /> <span class={styles.word}>Save</span>
        </Button>
        <IconButton label="Help (F1)" onClick={workspace.help}>
          <CircleHelp size={18} aria-hidden />
        </IconButton>
      </div>
    </div>
  );
}

function ConnectorChoice({ tab }: { tab: EditorTab }) {
  const chosen = tab.content.value.connector;
  const connector = connectorOf(tab.content.value);
  return (
    <select
      class={styles.choice}
      aria-label="Connector"
      title="Connector"
      value={connector?.id ?? chosen}
      onChange={(event) => tab.update({ connector: event.currentTarget.value, database: "" })}
    >
      {connector ? null : <option value={chosen}>{chosen ? `${chosen} (not available)` : "No connector"}</option>}
      {connectors.value.map(({ id, displayName }) => (
        <option key={id} value={id}>
          {displayName}
        </option>
      ))}
    </select>
  );
}

/** The databases of a connector. Its key is the connector: those of another one must not stay while these load. */
function DatabaseChoice({ tab, connector }: { tab: EditorTab; connector: string }) {
  const { database } = tab.content.value;
  const load = (signal: AbortSignal) => (connector ? databases(connector, { signal }) : Promise.resolve([]));
  const { value, problem } = useLoaded(`${revision.value}`, load);
  const names = value ?? [];
  return (
    <select
      class={styles.choice}
      aria-label="Database"
      title={problem instanceof Error ? problem.message : "Database"}
      value={database}
      onChange={(event) => tab.update({ database: event.currentTarget.value })}
    >
      <option value="">Default database</option>
      {database && !names.includes(database) ? <option value={database}>{database}</option> : null}
      {names.map((name) => (
        <option key={name} value={name}>
          {name}
        </option>
      ))}
    </select>
  );
}
