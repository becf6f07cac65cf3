// biome-ignore-all lint/a11y/useSemanticElements: an <option> cannot hold an icon
// biome-ignore-all lint/a11y/useKeyWithClickEvents: the list handles the keys of its active row
// biome-ignore-all lint/a11y/useFocusableInteractive: the list has the focus, with aria-activedescendant
import { useVirtualizer } from "@tanstack/react-virtual";
import { useEffect, useId, useRef, useState } from "preact/hooks";
import { EmptyState, ErrorMessage, Loading } from "../ui/States.tsx";
import { EntryIcon } from "./EntryIcon.tsx";
import type { Entry, Listing } from "./listing.ts";
import styles from "./picker.module.css";

interface Props {
  listing: Listing;
  mode: "directory" | "file";
  value: string;
  onChoose: (entry: Entry) => void;
  onParent: () => void;
}

const ROW_PX = 30;

/** The entries of a directory as a list: arrow keys move, Enter opens or chooses, Backspace goes to the parent. */
export function PickerList({ listing, mode, value, onChoose, onParent }: Props) {
  const box = useRef<HTMLDivElement>(null);
  const id = useId();
  const [active, setActive] = useState(0);
  const total = listing.total.value;
  void listing.version.value;
  const rows = useVirtualizer({
    count: total ?? 0,
    getScrollElement: () => box.current,
    estimateSize: () => ROW_PX,
    overscan: 5,
  });
  const shown = rows.getVirtualItems();
  const [first, last] = [shown[0]?.index ?? 0, shown.at(-1)?.index ?? 0];
  useEffect(() => listing.ensure(first, last), [listing, first, last]);

  const press = (event: KeyboardEvent) => {
    const to = moved(event.key, active, (total ?? 0) - 1);
    const entry = listing.entry(active);
    if (to !== null) {
      setActive(to);
      rows.scrollToIndex(to);
    } else if (event.key === "Enter" && entry) onChoose(entry);
    else if (event.key === "Backspace") onParent();
    else return;
    event.preventDefault();
  };
  if (listing.problem.value) return <ErrorMessage problem={listing.problem.value} onRetry={() => listing.retry()} />;
  if (!total) {
    return (
      <div class={styles.pickerList}>
        {total === null ? <Loading /> : <EmptyState title="This directory is empty." />}
      </div>
    );
  }
  return (
    <div
      ref={box}
      class={styles.pickerList}
      role="listbox"
      aria-label="Entries"
      tabIndex={0}
      aria-activedescendant={listing.entry(active) ? `${id}-${active}` : undefined}
      onKeyDown={press}
    >
      <Spacer height={rows.getTotalSize()}>
        {shown.map((row) => {
          const entry = listing.entry(row.index);
          return (
            <Option
              key={row.key}
              id={`${id}-${row.index}`}
              entry={entry}
              top={row.start}
              isActive={row.index === active}
              isChosen={entry !== undefined && entry.path === value}
              isDisabled={entry?.type !== "dir" && mode === "directory"}
              onChoose={onChoose}
            />
          );
        })}
      </Spacer>
    </div>
  );
}

/** The height of all rows, of which only the visible ones exist. */
function Spacer({ height, children }: { height: number; children: preact.ComponentChildren }) {
  return (
    <div role="presentation" class={styles.spacer} style={{ height: `${height}px` }}>
      {children}
    </div>
  );
}

interface OptionProps {
  id: string;
  entry: Entry | undefined;
  top: number;
  isActive: boolean;
  isChosen: boolean;
  isDisabled: boolean;
  onChoose: (entry: Entry) => void;
}

function Option({ id, entry, top, isActive, isChosen, isDisabled, onChoose }: OptionProps) {
  return (
    <div
      id={id}
      role="option"
      class={isActive ? `${styles.option} ${styles.active}` : styles.option}
      style={{ transform: `translateY(${top}px)` }}
      aria-selected={isChosen}
      aria-disabled={isDisabled}
      onClick={() => entry && onChoose(entry)}
    >
      {entry ? <EntryIcon entry={entry} /> : null}
      <span>{entry?.name ?? "…"}</span>
    </div>
  );
}

function moved(key: string, now: number, last: number): number | null {
  const to = { ArrowDown: now + 1, ArrowUp: now - 1, PageDown: now + 8, PageUp: now - 8, Home: 0, End: last }[key];
  return to === undefined ? null : Math.max(0, Math.min(last, to));
}
