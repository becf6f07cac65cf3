// biome-ignore-all lint/a11y/useSemanticElements: virtual rows are positioned, which rows of a <table> cannot be
// biome-ignore-all lint/a11y/useKeyWithClickEvents: the list handles the keys of its active row
// biome-ignore-all lint/a11y/useFocusableInteractive: the list has the focus, with aria-activedescendant
import { useVirtualizer } from "@tanstack/react-virtual";
import { ArrowDown, ArrowUp } from "lucide-preact";
import type { TargetedKeyboardEvent, TargetedMouseEvent } from "preact";
import { useEffect, useId, useRef } from "preact/hooks";
import { notifyProblem } from "../ui/Toasts.tsx";
import { bytesText } from "../ui/texts.ts";
import { EntryIcon } from "./EntryIcon.tsx";
import styles from "./files.module.css";
import { type Entry, type Listing, modifiedText, type SortKey } from "./listing.ts";
import { addressOf } from "./paths.ts";
import type { Selection } from "./selection.ts";

const ROW_PX = 34;
const HEADER_ROWS = 1;
const COLUMNS: ReadonlyArray<{ key: SortKey; label: string; style: string | undefined }> = [
  { key: "name", label: "Name", style: styles.name },
  { key: "size", label: "Size", style: styles.size },
  { key: "mtime", label: "Modified", style: styles.time },
  { key: "user", label: "Owner", style: styles.owner },
];
/** How far listings are scrolled, by their query. */
const scrolled = new Map<string, number>();
const LISTINGS_KEPT = 50;

interface TableActions {
  onOpen: (entry: Entry) => void;
  onParent: () => void;
  onRename: () => void;
  onDelete: () => void;
}

interface Props extends TableActions {
  listing: Listing;
  selection: Selection;
  onSort: (key: SortKey) => void;
}

/** The entries of a directory, of which only the visible rows exist. The keys are those of a file manager. */
export function FileTable({ listing, selection, onSort, ...actions }: Props) {
  const box = useRef<HTMLDivElement>(null);
  const id = useId();
  const total = listing.total.value ?? 0;
  void listing.version.value;
  const rows = useVirtualizer({
    count: total,
    getScrollElement: () => box.current,
    estimateSize: () => ROW_PX,
    overscan: 10,
    scrollPaddingStart: ROW_PX,
  });
  const shown = rows.getVirtualItems();
  const [first, last] = [shown[0]?.index ?? 0, shown.at(-1)?.index ?? 0];
  useEffect(() => listing.ensure(first, last), [listing, first, last]);
  useScrollPosition(box, JSON.stringify(listing.query), total > 0);

  const active = selection.active.value;
  const press = (event: TargetedKeyboardEvent<HTMLDivElement>) => {
    if (!handleKey(event, { listing, selection, total, ...actions })) return;
    event.preventDefault();
    rows.scrollToIndex(selection.active.peek());
  };
  const isShown = shown.some((row) => row.index === active);
  return (
    <div
      ref={box}
      class={styles.table}
      role="grid"
      aria-label="Files"
      aria-multiselectable
      aria-rowcount={total + HEADER_ROWS}
      tabIndex={0}
      aria-activedescendant={isShown ? `${id}-${active}` : undefined}
      onKeyDown={press}
    >
      <Head {...{ listing, selection, onSort }} />
      <div role="rowgroup" class={styles.spacer} style={{ height: `${rows.getTotalSize()}px` }}>
        {shown.map((row) => (
          <Row
            key={row.key}
            id={`${id}-${row.index}`}
            index={row.index}
            top={row.start}
            entry={listing.entry(row.index)}
            {...{ selection }}
            onOpen={actions.onOpen}
          />
        ))}
      </div>
    </div>
  );
}

function Head({ listing, selection, onSort }: Pick<Props, "listing" | "selection" | "onSort">) {
  const { sortby, descending } = listing.query;
  const Arrow = descending ? ArrowDown : ArrowUp;
  const count = selection.entries.value.length;
  const hasSome = count > 0;
  const isPart = hasSome && count < (listing.total.value ?? 0);
  const toggle = () => (hasSome ? selection.clear() : void selection.all().catch(notifyProblem));
  return (
    <div role="rowgroup" class={styles.head}>
      <div role="row" aria-rowindex={1} class={styles.row}>
        <div role="columnheader" class={styles.check}>
          <input
            type="checkbox"
            aria-label="Select all"
            checked={hasSome && !isPart}
            ref={(element) => {
              // After a click the browser has cleared it, although the property of the component is the same.
              if (element) element.indeterminate = isPart;
            }}
            onChange={toggle}
          />
        </div>
        {COLUMNS.map(({ key, label, style }) => (
          <div
            key={key}
            role="columnheader"
            class={style}
            aria-sort={key === sortby ? (descending ? "descending" : "ascending") : "none"}
          >
            <button type="button" onClick={() => onSort(key)}>
              {label}
              {key === sortby ? <Arrow size={14} aria-hidden /> : null}
            </button>
          </div>
        ))}
        <div role="columnheader" class={styles.rights}>
          Permissions
        </div>
      </div>
    </div>
  );
}

interface RowProps {
  id: string;
  index: number;
  top: number;
  entry: Entry | undefined;
  selection: Selection;
  onOpen: (entry: Entry) => void;
}

function Row({ id, index, top, entry, selection, onOpen }: RowProps) {
  const isSelected = entry !== undefined && selection.has(entry.path);
  const isActive = selection.active.value === index;
  return (
    <div
      id={id}
      role="row"
      aria-rowindex={index + 1 + HEADER_ROWS}
      aria-selected={isSelected}
      class={isActive ? `${styles.row} ${styles.entry} ${styles.active}` : `${styles.row} ${styles.entry}`}
      style={{ transform: `translateY(${top}px)` }}
      onClick={(event) => select(event, selection, index)}
      onDblClick={() => entry && onOpen(entry)}
    >
      <div role="gridcell" class={styles.check}>
        <input
          type="checkbox"
          tabIndex={-1}
          aria-label={entry ? `Select ${entry.name}` : "Loading"}
          checked={isSelected}
          disabled={entry === undefined}
          onChange={() => selection.toggle(index)}
        />
      </div>
      {entry ? <Cells entry={entry} /> : <div role="gridcell">…</div>}
    </div>
  );
}

function Cells({ entry }: { entry: Entry }) {
  return (
    <>
      <div role="gridcell" class={styles.name}>
        <EntryIcon entry={entry} />
        <a href={addressOf(entry.path)} tabIndex={-1} title={entry.name}>
          <bdi>{entry.name}</bdi>
        </a>
      </div>
      <div role="gridcell" class={styles.size}>
        {entry.type === "dir" ? "" : bytesText(entry.size)}
      </div>
      <div role="gridcell" class={styles.time}>
        {modifiedText(entry)}
      </div>
      <div role="gridcell" class={styles.owner}>
        {entry.user}
      </div>
      <div role="gridcell" class={styles.rights}>
        {entry.rwx}
      </div>
    </>
  );
}

function select(event: TargetedMouseEvent<HTMLElement>, selection: Selection, index: number): void {
  if (event.target instanceof Element && event.target.closest("a, input")) return;
  if (event.shiftKey) selection.extend(index).catch(notifyProblem);
  else if (event.ctrlKey || event.metaKey) selection.toggle(index);
  else selection.only(index);
}

interface KeyContext extends TableActions {
  listing: Listing;
  selection: Selection;
  total: number;
}

/** Handle a key of the grid. Returns whether it has a meaning. */
function handleKey(event: TargetedKeyboardEvent<HTMLDivElement>, context: KeyContext): boolean {
  const { listing, selection, total } = context;
  if (event.target instanceof HTMLElement && event.target.closest("button, input")) return false;
  const active = selection.active.peek();
  const to = moved(event, active, total - 1);
  if (to !== null) {
    if (event.shiftKey) selection.extend(to).catch(notifyProblem);
    else if (event.ctrlKey) selection.active.value = to;
    else selection.only(to);
    return true;
  }
  const entry = listing.entry(active);
  const actions: Record<string, () => void> = {
    Enter: () => entry && context.onOpen(entry),
    " ": () => selection.toggle(active),
    Escape: () => selection.clear(),
    Backspace: context.onParent,
    Delete: context.onDelete,
    F2: context.onRename,
  };
  const isAll = event.key === "a" && (event.ctrlKey || event.metaKey);
  const action = isAll ? () => void selection.all().catch(notifyProblem) : actions[event.key];
  action?.();
  return action !== undefined;
}

function moved(event: KeyboardEvent, now: number, last: number): number | null {
  if (event.altKey || event.metaKey || last < 0) return null;
  const page = 15;
  const to = {
    ArrowDown: now + 1,
    ArrowUp: now - 1,
    PageDown: now + page,
    PageUp: now - page,
    Home: 0,
    End: last,
  }[event.key];
  return to === undefined ? null : Math.max(0, Math.min(last, to));
}

/** Keep how far a listing is scrolled, so that the way back from a file leads to the same rows. */
function useScrollPosition(box: { current: HTMLDivElement | null }, key: string, isReady: boolean): void {
  useEffect(() => {
    const element = box.current;
    if (!isReady || !element) return;
    element.scrollTop = scrolled.get(key) ?? 0;
    const keep = () => {
      scrolled.delete(key);
      scrolled.set(key, element.scrollTop);
      const [oldest] = scrolled.keys();
      if (scrolled.size > LISTINGS_KEPT && oldest !== undefined) scrolled.delete(oldest);
    };
    element.addEventListener("scroll", keep, { passive: true });
    return () => element.removeEventListener("scroll", keep);
  }, [box, key, isReady]);
}
