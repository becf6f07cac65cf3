/** What can be done with an object of the tree or of the search. */
import { Copy, Info, Play, RefreshCw, TextCursorInput } from "lucide-preact";
import type { Connector } from "../app/config.ts";
import type { TabRequest } from "../editor/openTab.ts";
import { copyText } from "../ui/clipboard.ts";
import type { MenuItem } from "../ui/Menu.tsx";
import { qualified, quoted, selectStatement, tableAddress } from "./names.ts";

/** Where an object is. Names are absent from the level on that the object does not have. */
export interface ObjectPath {
  connector: Connector;
  database?: string | undefined;
  table?: string | undefined;
  column?: string | undefined;
}

export interface ActionTargets {
  /** Insert text at the cursor of the editor; absent where there is no editor. */
  onInsert?: ((text: string) => void) | undefined;
  /** Open a tab of the editor. */
  onQuery: (request: TabRequest) => void;
  /** Show a page of the console. */
  onOpen: (address: string) => void;
  onRefresh?: (() => void) | undefined;
}

const ICON_PX = 16;

/** Return the name of an object as SQL text. A column has its own name only. */
export function nameOf({ connector, database, table, column }: ObjectPath): string {
  if (column !== undefined) return quoted(connector, column);
  if (table !== undefined) return qualified(connector, database ?? "", table);
  return database === undefined ? connector.displayName : quoted(connector, database);
}

/** Return the menu of an object. */
export function actionsOf(path: ObjectPath, { onInsert, onQuery, onOpen, onRefresh }: ActionTargets): MenuItem[] {
  const { connector, database, table, column } = path;
  const items: MenuItem[] = [];
  if (table !== undefined && column === undefined) {
    const statement = selectStatement(connector, database ?? "", table);
    items.push(
      {
        label: "Select the first rows",
        icon: <Play size={ICON_PX} aria-hidden />,
        onSelect: () => onQuery({ connector: connector.id, database: database ?? "", statement }),
      },
      {
        label: "Details",
        icon: <Info size={ICON_PX} aria-hidden />,
        onSelect: () => onOpen(tableAddress(connector.id, database ?? "", table)),
      },
    );
  }
  if (onInsert && database !== undefined) {
    items.push({
      label: "Insert name",
      icon: <TextCursorInput size={ICON_PX} aria-hidden />,
      onSelect: () => onInsert(nameOf(path)),
    });
  }
  items.push({
    label: "Copy name",
    icon: <Copy size={ICON_PX} aria-hidden />,
    onSelect: () => void copyText(nameOf(path), "The name is copied."),
  });
  if (onRefresh) items.push({ label: "Refresh", icon: <RefreshCw size={ICON_PX} aria-hidden />, onSelect: onRefresh });
  return items;
}
