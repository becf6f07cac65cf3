// biome-ignore-all lint/a11y/useSemanticElements: the cells of a table cannot be placed by coordinates
// biome-ignore-all lint/a11y/useFocusableInteractive: the grid has the focus, and names its active cell
import { Maximize2 } from "lucide-preact";
import type { TargetedPointerEvent } from "preact";
import { useEffect, useId, useMemo, useRef, useState } from "preact/hooks";
import { Button } from "../ui/Button.tsx";
import { copyText } from "../ui/clipboard.ts";
import { Menu } from "../ui/Menu.tsx";
import { notify, notifyProblem } from "../ui/Toasts.tsx";
import { CellDialog } from "./CellDialog.tsx";
import { columnWidths, toTsv, WIDTH } from "./cells.ts";
import styles from "./Grid.module.css";
import { GridHeader } from "./GridHeader.tsx";
import { GridRow } from "./GridRow.tsx";
import panel from "./ResultPanel.module.css";
import type { Column, Row, RowSource } from "./rows.ts";
import { type Cell, moved, rectangleOf, type Selection, START } from "./selection.ts";
import { HEADER_PX, ROW_PX, useGridScroll } from "./useGridScroll.ts";

/** More cells take longer than people wait; a download serves better. */
const MOST_COPIED_CELLS = 1_000_000;
const SAMPLED_ROWS = 30;

interface Props {
  source: RowSource;
  columns: readonly Column[];
}

/** The rows of a result. Arrow keys move, Shift extends the selection, Ctrl+C copies it, Enter shows a cell in full. */
export function Grid({ source, columns }: Props) {
  const gridId = useId();
  const scroller = useRef<HTMLDivElement>(null);
  const [selection, setSelection] = useState<Selection>(START);
  const [opened, setOpened] = useState<Cell | null>(null);
  const version = source.version.value;
  const count = source.knownRows.value;
  const [widths, setWidths] = useWidths(source, columns);
  const { rows, columns: columnWindow, map, reveal } = useGridScroll(scroller, count, widths);
  const shownRows = rows.getVirtualItems();
  const shown = columnWindow.getVirtualItems();
  const [first, last] = [shownRows[0]?.index ?? 0, (shownRows.at(-1)?.index ?? -1) + 1];
  // biome-ignore lint/correctness/useExhaustiveDependencies: a new version may have dropped rows of the view
  useEffect(() => source.ensure(first, last), [source, first, last, version]);
  // biome-ignore lint/correctness/useExhaustiveDependencies: the virtualizer reads the widths when it measures
  useEffect(() => columnWindow.measure(), [columnWindow, widths]);

  const select = (next: Selection) => {
    setSelection(next);
    reveal(next.active.row, next.active.column);
  };
  const page = Math.max(1, Math.floor(((scroller.current?.clientHeight ?? 0) - HEADER_PX) / ROW_PX) - 1);
  const onKeyDown = (event: KeyboardEvent) => {
    if (event.target !== scroller.current) return;
    const isCommand = event.ctrlKey || event.metaKey;
    const next = moved(selection, event, { rows: count, columns: columns.length, page });
    if (next !== null) select(next);
    else if (event.key === "Enter") setOpened(selection.active);
    else if (isCommand && event.key === "c") void copy(source, columns, selection, event.shiftKey);
    else if (isCommand && event.key === "a") setSelection(all(count, columns.length));
    else return;
    event.preventDefault();
  };
  const close = () => {
    setOpened(null);
    // The dialog is gone after the next rendering; the keys move the cell again.
    setTimeout(() => scroller.current?.focus());
  };
  const area = rectangleOf(selection);
  const shownKey = `${shown[0]?.index}-${shown.at(-1)?.index}-${widths.join()}`;
  const isRowSelected = (index: number) => index >= area.top && index <= area.bottom;
  const isActiveShown = selection.active.row >= first && selection.active.row < last;
  return (
    <>
      <GridTools selection={selection} onCopy={(header) => void copy(source, columns, selection, header)}>
        <Button kind="quiet" disabled={count === 0} onClick={() => setOpened(selection.active)}>
          <Maximize2 size={15} aria-hidden />
          Show cell
        </Button>
      </GridTools>
      <div
        ref={scroller}
        role="grid"
        class={styles.grid}
        tabIndex={0}
        aria-label="Rows"
        aria-multiselectable="true"
        aria-rowcount={source.rowCount.value === null ? -1 : count + 1}
        aria-colcount={columns.length + 1}
        aria-activedescendant={
          isActiveShown ? `${gridId}-${selection.active.row}-${selection.active.column}` : undefined
        }
        onKeyDown={onKeyDown}
        onPointerDown={(event) => beginDrag(event, selection, columns.length, setSelection)}
        onDblClick={(event) => setOpened(cellAt(event.target))}
      >
        <GridHeader columns={columns} shown={shown} width={columnWindow.getTotalSize()} onResize={setWidths} />
        <div
          role="rowgroup"
          class={styles.body}
          style={{ height: `${Math.max(0, map.height - HEADER_PX)}px`, width: `${columnWindow.getTotalSize()}px` }}
        >
          {shownRows.map(({ index, start }) => (
            <GridRow
              key={index}
              gridId={gridId}
              row={source.row(index)}
              index={index}
              top={start + map.shift}
              columns={columns}
              shown={shown}
              shownKey={shownKey}
              active={index === selection.active.row ? selection.active.column : -1}
              left={isRowSelected(index) ? area.left : -1}
              right={isRowSelected(index) ? area.right : -2}
            />
          ))}
        </div>
      </div>
      {opened === null ? null : <CellDialog source={source} columns={columns} cell={opened} onClose={close} />}
    </>
  );
}

interface ToolsProps {
  selection: Selection;
  onCopy: (header: boolean) => void;
  children: preact.ComponentChildren;
}

function GridTools({ selection, onCopy, children }: ToolsProps) {
  const { top, bottom, left, right } = rectangleOf(selection);
  const [rows, columns] = [bottom - top + 1, right - left + 1];
  const isOne = rows * columns === 1;
  return (
    <div class={panel.gridTools}>
      {children}
      <Menu
        label="Copy"
        hasLabel
        items={[
          { label: "Copy selection", onSelect: () => onCopy(false) },
          { label: "Copy with column names", onSelect: () => onCopy(true) },
        ]}
      >
        Copy
      </Menu>
      <span class={panel.selected} aria-live="polite">
        {isOne
          ? `Row ${(top + 1).toLocaleString()}, column ${left + 1}`
          : `${rows.toLocaleString()} × ${columns.toLocaleString()} cells`}
      </span>
    </div>
  );
}

/** The widths of the columns: from the first rows until the user changes them. */
function useWidths(source: RowSource, columns: readonly Column[]) {
  const sampled = Math.min(SAMPLED_ROWS, source.knownRows.value);
  const initial = useMemo(() => {
    const rows = Array.from({ length: sampled }, (_, index) => source.row(index)).filter((row) => row !== undefined);
    return columnWidths(columns, rows);
  }, [source, columns, sampled]);
  const [changed, setChanged] = useState<ReadonlyMap<number, number>>(new Map());
  const widths = useMemo(() => initial.map((width, index) => changed.get(index) ?? width), [initial, changed]);
  const resize = (index: number, width: number) =>
    setChanged((before) => new Map(before).set(index, Math.max(WIDTH.least, Math.round(width))));
  return [widths, resize] as const;
}

function all(rows: number, columns: number): Selection {
  return { anchor: { row: 0, column: 0 }, active: { row: Math.max(0, rows - 1), column: columns - 1 } };
}

function cellAt(target: EventTarget | null): Cell | null {
  const element = target instanceof Element ? target.closest<HTMLElement>("[data-row][data-column]") : null;
  if (element === null) return null;
  return { row: Number(element.dataset.row), column: Number(element.dataset.column) };
}

/** Select the cell under the pointer, and extend the selection while it is dragged. A row number selects its row. */
function beginDrag(
  event: TargetedPointerEvent<HTMLDivElement>,
  selection: Selection,
  columns: number,
  setSelection: (next: Selection) => void,
): void {
  if (event.button !== 0 || !(event.target instanceof Element)) return;
  const grid = event.currentTarget;
  const number = event.target.closest<HTMLElement>("[data-row]:not([data-column])");
  if (number !== null) {
    const row = Number(number.dataset.row);
    const from = event.shiftKey ? selection.anchor.row : row;
    setSelection({ anchor: { row: from, column: 0 }, active: { row, column: columns - 1 } });
    return;
  }
  const cell = cellAt(event.target);
  if (cell === null) return;
  const anchor = event.shiftKey ? selection.anchor : cell;
  setSelection({ anchor, active: cell });
  if (event.pointerType === "touch") return;
  const extend = (move: PointerEvent) => {
    const under = cellAt(document.elementFromPoint(move.clientX, move.clientY));
    if (under !== null) setSelection({ anchor, active: under });
  };
  const end = new AbortController();
  grid.addEventListener("pointermove", extend, { signal: end.signal });
  for (const name of ["pointerup", "pointercancel"]) {
    window.addEventListener(name, () => end.abort(), { signal: end.signal });
  }
}

async function copy(source: RowSource, columns: readonly Column[], selection: Selection, header: boolean) {
  const { top, bottom, left, right } = rectangleOf(selection);
  const cells = (bottom - top + 1) * (right - left + 1);
  if (cells > MOST_COPIED_CELLS) {
    notify(`${cells.toLocaleString()} cells are too many to copy. Download the result instead.`);
    return;
  }
  try {
    const loaded = Array.from({ length: bottom - top + 1 }, (_, offset) => source.row(top + offset));
    const isLoaded = loaded.every((row): row is Row => row !== undefined);
    const rows = isLoaded ? loaded : await source.read(top, bottom + 1, AbortSignal.timeout(60_000));
    const what = cells === 1 ? "Copied the cell." : `Copied ${cells.toLocaleString()} cells.`;
    await copyText(toTsv(rows, columns, left, right, header), what);
  } catch (problem) {
    notifyProblem(problem);
  }
}
