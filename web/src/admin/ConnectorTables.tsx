import { Copy, Ellipsis, Pencil, PlugZap, Trash2 } from "lucide-preact";
import type { Connector } from "../app/config.ts";
import { at } from "../app/prefix.ts";
import { Menu } from "../ui/Menu.tsx";
import { ago, dateText } from "../ui/texts.ts";
import admin from "./admin.module.css";
import styles from "./connectors.module.css";
import type { StoredConnector } from "./connectors.ts";

interface Props {
  connectors: readonly StoredConnector[];
  /** Open a form, by the query of its address. */
  onOpen: (query: string) => void;
  onTest: (connector: StoredConnector) => void;
  onDelete: (connector: StoredConnector) => void;
}

const ICON_PX = 16;

/** The stored connectors, which can be changed here. */
export function ConnectorTable({ connectors, ...actions }: Props) {
  return (
    // biome-ignore lint/a11y/noNoninteractiveTabindex: a region that scrolls must be reachable with the keyboard
    <section class={admin.scroller} aria-label="Stored connectors" tabIndex={0}>
      <table class={admin.table}>
        <thead>
          <tr>
            <th scope="col">Name</th>
            <th scope="col">Type</th>
            <th scope="col" class={styles.wideOnly}>
              Groups
            </th>
            <th scope="col" class={styles.wideOnly}>
              Changed
            </th>
            <th scope="col">
              <span class="visually-hidden">Actions</span>
            </th>
          </tr>
        </thead>
        <tbody>
          {connectors.map((connector) => (
            <Row key={connector.id} connector={connector} {...actions} />
          ))}
        </tbody>
      </table>
    </section>
  );
}

function Row({ connector, onOpen, onTest, onDelete }: Omit<Props, "connectors"> & { connector: StoredConnector }) {
  const { id, nice_name: name, dialect, is_runnable: isRunnable, last_modified: changed } = connector;
  const groups = connector.groups ?? [];
  return (
    <tr>
      <th scope="row" title={connector.description}>
        <a href={at(`/admin/connectors?stored=${id}`)}>{name}</a>
      </th>
      <td>
        {dialect} · {connector.interface}
        {isRunnable ? null : <span class={admin.warning}> (not run by this server)</span>}
      </td>
      <td class={styles.wideOnly} title={groups.join(", ")}>
        {groups.length > 0 ? groups.join(", ") : "Only administrators"}
      </td>
      <td class={styles.wideOnly} title={dateText(changed)}>
        {ago(changed)}
      </td>
      <td class={admin.actions}>
        <Menu
          label={`Actions of ${name}`}
          items={[
            { label: "Edit", icon: <Pencil size={ICON_PX} aria-hidden />, onSelect: () => onOpen(`stored=${id}`) },
            { label: "Duplicate", icon: <Copy size={ICON_PX} aria-hidden />, onSelect: () => onOpen(`copy=${id}`) },
            { label: "Test", icon: <PlugZap size={ICON_PX} aria-hidden />, onSelect: () => onTest(connector) },
            {
              label: "Delete",
              icon: <Trash2 size={ICON_PX} aria-hidden />,
              isDanger: true,
              onSelect: () => onDelete(connector),
            },
          ]}
        >
          <Ellipsis size={18} aria-hidden />
        </Menu>
      </td>
    </tr>
  );
}

/** The connectors of the settings file, which only the operator of the server can change. */
export function FileTable({ connectors }: { connectors: readonly Connector[] }) {
  return (
    <>
      <h2 class={styles.heading}>From the settings file</h2>
      <p class={styles.soft}>These are read-only here: they change with the file, after a restart of the server.</p>
      {/* biome-ignore lint/a11y/noNoninteractiveTabindex: a region that scrolls must be reachable with the keyboard */}
      <section class={admin.scroller} aria-label="Connectors of the settings file" tabIndex={0}>
        <table class={admin.table}>
          <thead>
            <tr>
              <th scope="col">Name</th>
              <th scope="col">Key</th>
              <th scope="col">Dialect</th>
            </tr>
          </thead>
          <tbody>
            {connectors.map(({ id, displayName, dialect }) => (
              <tr key={id}>
                <th scope="row">{displayName}</th>
                <td>{id}</td>
                <td>{dialect}</td>
              </tr>
            ))}
          </tbody>
        </table>
      </section>
    </>
  );
}
