import { useVirtualizer } from "@tanstack/react-virtual";
import { Copy } from "lucide-preact";
import { useMemo, useRef } from "preact/hooks";
import { Button } from "../ui/Button.tsx";
import { copyText } from "../ui/clipboard.ts";
import { Dialog } from "../ui/Dialog.tsx";
import { ErrorMessage, Loading } from "../ui/States.tsx";
import { useLoaded } from "../ui/useLoaded.ts";
import styles from "./CellDialog.module.css";
import { textOf } from "./cells.ts";
import { type Column, type RowSource, TOO_LARGE } from "./rows.ts";
import type { Cell } from "./selection.ts";

/** Longer texts are shown by lines of a fixed length, of which only those in view are in the page. */
const PLAIN_CHARACTERS = 20_000;
const LINE_CHARACTERS = 160;
const LINE_PX = 19;

interface Props {
  source: RowSource;
  columns: readonly Column[];
  cell: Cell;
  onClose: () => void;
}

/** A cell in full: text of any length, and nested values with a member on each line. */
export function CellDialog({ source, columns, cell, onClose }: Props) {
  const column = columns[cell.column];
  const { value, problem, reload } = useLoaded(`${cell.row}/${cell.column}`, async (signal) => {
    const loaded = source.row(cell.row);
    const isShown = loaded !== undefined && loaded !== TOO_LARGE;
    const row = isShown ? loaded : (await source.read(cell.row, cell.row + 1, signal))[0];
    return { cell: row?.[cell.column] };
  });
  const text = value === null ? "" : textOf(value.cell, true);
  return (
    <Dialog
      title={column?.name ?? ""}
      isWide
      onClose={onClose}
      actions={
        <Button disabled={value === null} onClick={() => void copyText(text, "Copied the cell.")}>
          <Copy size={15} aria-hidden />
          Copy
        </Button>
      }
    >
      <p class={styles.about}>
        Row {(cell.row + 1).toLocaleString()} · {column?.native_type}
        {value === null ? "" : ` · ${describe(value.cell, text)}`}
      </p>
      {problem ? <ErrorMessage problem={problem} onRetry={reload} /> : null}
      {value === null ? problem ? null : <Loading /> : <Content value={value.cell} text={text} />}
    </Dialog>
  );
}

function describe(value: unknown, text: string): string {
  if (value === null) return "NULL";
  if (value === "") return "empty text";
  return typeof value === "string" ? `${text.length.toLocaleString()} characters` : typeof value;
}

function Content({ value, text }: { value: unknown; text: string }) {
  if (value === null || value === "") return null;
  if (text.length > PLAIN_CHARACTERS) return <LongText text={text} />;
  return (
    // biome-ignore lint/a11y/noNoninteractiveTabindex: the text can be scrolled with the keyboard
    <pre class={styles.text} tabIndex={0}>
      {text}
    </pre>
  );
}

function LongText({ text }: { text: string }) {
  const scroller = useRef<HTMLDivElement>(null);
  const lines = useMemo(() => linesOf(text), [text]);
  const shown = useVirtualizer<HTMLDivElement, Element>({
    count: lines.length,
    getScrollElement: () => scroller.current,
    estimateSize: () => LINE_PX,
    overscan: 20,
  });
  return (
    // biome-ignore lint/a11y/noNoninteractiveTabindex: the text can be scrolled with the keyboard
    <div ref={scroller} class={styles.long} tabIndex={0}>
      <div class={styles.lines} style={{ height: `${shown.getTotalSize()}px` }}>
        {shown.getVirtualItems().map(({ index, start }) => (
          <div key={index} class={styles.line} style={{ transform: `translateY(${start}px)` }}>
            {lines[index]}
          </div>
        ))}
      </div>
    </div>
  );
}

/** Split a text at its line breaks and after 160 characters, but not within a surrogate pair. */
export function linesOf(text: string): string[] {
  const lines: string[] = [];
  for (const line of text.split(/\r\n|\n|\r/)) {
    let start = 0;
    do {
      let end = Math.min(line.length, start + LINE_CHARACTERS);
      if (end < line.length && /[\uD800-\uDBFF]/.test(line.charAt(end - 1))) end -= 1;
      lines.push(line.slice(start, end));
      start = end;
    } while (start < line.length);
  }
  return lines;
}
