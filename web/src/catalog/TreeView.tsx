import { useVirtualizer } from "@tanstack/react-virtual";
import { ChevronRight, MoreVertical } from "lucide-preact";
import { useEffect, useId, useRef, useState } from "preact/hooks";
import { Menu, type MenuItem } from "../ui/Menu.tsx";
import styles from "./CatalogTree.module.css";
import { NodeIcon } from "./NodeIcon.tsx";
import { commandOf } from "./treeKeys.ts";
import type { TreeModel } from "./treeModel.ts";
import type { Branch, NodeKind, TreeRow } from "./treeRows.ts";

const ROW_PX = 28;
const INDENT_PX = 14;
const OVERSCAN = 12;
/** Letters that are typed within this time form one word. */
const TYPING_MS = 600;

/** The line that the keys act on. It stays the same object when lines above it come and go. */
export interface Selected {
  branch: Branch;
  name: string | null;
}

interface Props {
  model: TreeModel;
  selected: Selected | null;
  onSelect: (selected: Selected) => void;
  /** The main action of a line that cannot be opened. */
  onActivate: (row: TreeRow) => void;
  menuOf: (row: TreeRow) => readonly MenuItem[];
}

/**
 * The lines of a tree, of which only the visible ones are in the document.
 *
 * The focus stays on the tree (`aria-activedescendant`), because a focused line would leave the document when it is
 * scrolled out. Keys: arrows, Home, End, page keys, Enter, letters, and the menu key for the menu of the line.
 */
export function TreeView({ model, selected, onSelect, onActivate, menuOf }: Props) {
  const id = useId();
  const scroller = useRef<HTMLDivElement>(null);
  const rows = model.rows.value;
  const active = rows.findIndex((row) => row.branch === selected?.branch && (row.node?.name ?? null) === selected.name);
  const [hovered, setHovered] = useState("");
  const typed = useTypedWord();
  const virtual = useVirtualizer({
    count: rows.length,
    getScrollElement: () => scroller.current,
    estimateSize: () => ROW_PX,
    overscan: OVERSCAN,
  });
  const shown = virtual.getVirtualItems();
  const isShown = shown.some((item) => item.index === active);
  // biome-ignore lint/correctness/useExhaustiveDependencies: another selection is what scrolls, not a moved line
  useEffect(() => {
    if (active >= 0) virtual.scrollToIndex(active);
  }, [selected]);

  const select = (index: number) => {
    const row = rows[Math.max(0, Math.min(index, rows.length - 1))];
    if (row) onSelect({ branch: row.branch, name: row.node?.name ?? null });
  };
  const activate = (row: TreeRow) => {
    if (row.problem) void model.refresh(row.branch);
    else if (row.node && row.isOpen === true) model.close(row.branch, row.node.name);
    else if (row.node && row.isOpen === false) void model.open(row.branch, row.node.name);
    else if (row.node) onActivate(row);
  };
  const onKeyDown = (event: KeyboardEvent) => {
    if (event.target !== scroller.current || event.ctrlKey || event.metaKey || event.altKey) return;
    const page = Math.max(1, Math.floor((scroller.current?.clientHeight ?? 0) / ROW_PX) - 1);
    const command = commandOf(rows, active, event, page, event.key.length === 1 ? typed(event.key) : "");
    if (command === null) return;
    const row = rows[active];
    if (command.do === "select") select(command.index);
    else if (command.do === "activate" && row) activate(row);
    else if (command.do === "menu") document.getElementById(`${id}-${active}`)?.querySelector("button")?.click();
    event.preventDefault();
  };
  return (
    <div
      ref={scroller}
      class={styles.tree}
      role="tree"
      aria-label="Databases and tables"
      tabIndex={0}
      aria-activedescendant={isShown ? `${id}-${active}` : undefined}
      onKeyDown={onKeyDown}
      onFocus={() => active < 0 && select(0)}
      onPointerLeave={() => setHovered("")}
    >
      <div class={styles.spacer} role="none" style={{ height: `${virtual.getTotalSize()}px` }}>
        {shown.map(({ index, start }) => {
          const row = rows[index];
          if (!row) return null;
          // Not the index: a menu must stay with its object when lines above it come and go.
          const key = [...row.branch.path, row.node?.name].join("\0");
          return (
            <Line
              key={key}
              id={`${id}-${index}`}
              row={row}
              top={start}
              isActive={index === active}
              menu={row.node && (index === active || key === hovered) ? menuOf(row) : null}
              onHover={() => setHovered(key)}
              onClick={() => {
                select(index);
                activate(row);
              }}
            />
          );
        })}
      </div>
    </div>
  );
}

/** What the icon of a line says, for screen readers. */
const KIND_WORDS: Partial<Record<NodeKind, string>> = { view: "view", key: "primary key", partition: "partition" };

interface LineProps {
  id: string;
  row: TreeRow;
  top: number;
  isActive: boolean;
  menu: readonly MenuItem[] | null;
  onHover: () => void;
  onClick: () => void;
}

function Line({ id, row, top, isActive, menu, onHover, onClick }: LineProps) {
  const { node, level, isOpen } = row;
  const [isMenuOpen, setMenuOpen] = useState(false);
  const name = node ? [node.label, node.detail, KIND_WORDS[node.kind]].filter(Boolean).join(" ") : row.note;
  return (
    // biome-ignore lint/a11y/useKeyWithClickEvents: the tree has the focus and the keys
    <div
      id={id}
      role="treeitem"
      tabIndex={-1}
      aria-level={level}
      aria-setsize={row.size}
      aria-posinset={row.position}
      aria-expanded={isOpen ?? undefined}
      aria-selected={isActive}
      // An open menu is visible text of the line, which its name must contain.
      aria-label={isMenuOpen ? undefined : name}
      class={isActive ? `${styles.row} ${styles.active}` : styles.row}
      style={{ transform: `translateY(${top}px)`, paddingLeft: `${4 + (level - 1) * INDENT_PX}px` }}
      title={node ? [node.label, node.detail, node.comment].filter(Boolean).join("\n") : row.note}
      onClick={onClick}
      onPointerEnter={onHover}
    >
      {isOpen === null ? (
        <span class={styles.blank} />
      ) : (
        <ChevronRight class={isOpen ? `${styles.chevron} ${styles.down}` : styles.chevron} aria-hidden />
      )}
      {node ? (
        <>
          <NodeIcon kind={node.kind} type={node.detail} />
          <span class={styles.label}>{node.label}</span> <span class={styles.detail}>{node.detail}</span>
        </>
      ) : (
        <span class={row.problem ? `${styles.note} ${styles.bad}` : styles.note}>{row.note}</span>
      )}
      {menu ? (
        // biome-ignore lint/a11y/noStaticElementInteractions: keeps clicks in the menu from the line below it
        // biome-ignore lint/a11y/useKeyWithClickEvents: as above
        <span class={styles.menu} onClick={(event) => event.stopPropagation()}>
          <Menu label={`Actions for ${node?.label ?? ""}`} items={menu} onToggle={setMenuOpen}>
            <MoreVertical size={16} aria-hidden />
          </Menu>
        </span>
      ) : null}
    </div>
  );
}

/** Return a function that adds a letter to the word being typed, and returns the word. */
function useTypedWord(): (letter: string) => string {
  const typed = useRef({ word: "", at: 0 });
  return (letter) => {
    const now = Date.now();
    const before = now - typed.current.at < TYPING_MS ? typed.current.word : "";
    typed.current = { word: before + letter.toLowerCase(), at: now };
    return typed.current.word;
  };
}
