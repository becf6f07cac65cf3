// biome-ignore-all lint/a11y/useSemanticElements: the cells of a table cannot be placed by coordinates
// biome-ignore-all lint/a11y/useFocusableInteractive: the grid has the focus, and names its active cell
import { Maximize2, MoveHorizontal } from "lucide-preact";
import type { TargetedPointerEvent } from "preact";
import { useEffect, useId, useRef, useState } from "preact/hooks";
import { Button } from "../ui/Button.tsx";
import { copyText } from "../ui/clipboard.ts";
import { Menu } from "../ui/Menu.tsx";
import { notify, notifyProblem } from "../ui/Toasts.tsx";
import { CellDialog } from "./CellDialog.tsx";
import { toTsv } from "./cells.ts";
import styles from "./Grid.module.css";
import { GridHeader } from "./GridHeader.tsx";
import { GridRow } from "./GridRow.tsx";
import panel from "./ResultPanel.module.css";
import { type Column, type Row, type RowSource, TOO_LARGE } from "./rows.ts";
import { type Cell, type Command, commandOf, moved, rectangleOf, type Selection, START } from "./selection.ts";
import { useColumnWidths } from "./useColumnWidths.ts";
import { HEADER_PX, ROW_PX, useGridScroll } from "./useGridScroll.ts";

/** More cells take longer than people wait; a download serves better. */
const MOST_COPIED_CELLS = 1_000_000;
const COPY_MS = 60_000;

interface Props {
  source: RowSource;
  columns: readonly Column[];
}

/**
 * The rows of a result. Arrow keys move, Shift extends the selection, Ctrl+C copies it (with Shift, with the names of
 * the columns), Enter shows a cell in full, Alt+Shift+arrow changes the width of a column.
 */
export function Grid({ source, columns }: Props) {
  const gridId = useId();
  const scroller = useRef<HTMLDivElement>(null);
  const [selection, setSelection] = useState<Selection>(START);
  const [opened, setOpened] = useState<Cell | null>(null);
  const version = source.version.value;
  const count = source.knownRows.value;
  const { widths, ...sizes } = useColumnWidths(source, columns);
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
  const commands: Record<Command, () => void> = {
    open: () => setOpened(selection.active),
    copy: () => void copy(source, columns, selection, false),
    "copy with names": () => void copy(source, columns, selection, true),
    "select all": () => setSelection(all(count, columns.length)),
    narrower: () => sizes.widen(selection.active.column, -1),
    wider: () => sizes.widen(selection.active.column, 1),
    "fit the rows": () => sizes.fitToRows(selection.active.column, first, last),
  };
  const onKeyDown = (event: KeyboardEvent) => {
    if (event.target !== scroller.current) return;
    const next = moved(selection, event, { rows: count, columns: columns.length, page });
    const command = next === null ? commandOf(event) : null;
    if (next !== null) select(next);
    else if (command !== null) commands[command]();
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
      <GridTools {...{ selection, columns, commands }} isEmpty={count === 0} />
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
        <GridHeader columns={columns} shown={shown} width={columnWindow.getTotalSize()} onResize={sizes.setWidth} />
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
  columns: readonly Column[];
  commands: Record<Command, () => void>;
  isEmpty: boolean;
}

function GridTools({ selection, columns, commands, isEmpty }: ToolsProps) {
  const area = rectangleOf(selection);
  const [height, width] = [area.bottom - area.top + 1, area.right - area.left + 1];
  return (
    <div class={panel.gridTools}>
      <Button kind="quiet" disabled={isEmpty} onClick={commands.open}>
        <Maximize2 size={15} aria-hidden />
        Show cell
      </Button>
      <Menu
        label="Copy"
        hasLabel
        items={[
          { label: "Copy selection", onSelect: commands.copy },
          { label: "Copy with column names", onSelect: commands["copy with names"] },
        ]}
      >
        Copy
      </Menu>
      <Menu
        label={`Width of the column ${columns[selection.active.column]?.name ?? ""}`}
        items={[
          { label: "Wider (Alt+Shift+→)", onSelect: commands.wider },
          { label: "Narrower (Alt+Shift+←)", onSelect: commands.narrower },
          { label: "Fit the rows in view", onSelect: commands["fit the rows"] },
        ]}
      >
        <MoveHorizontal size={15} aria-hidden />
      </Menu>
      <span class={panel.selected} aria-live="polite">
        {height * width === 1
          ? `Row ${(area.top + 1).toLocaleString()}, column ${area.left + 1}`
          : `${height.toLocaleString()} × ${width.toLocaleString()} cells`}
      </span>
    </div>
  );
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
    const isLoaded = loaded.every((row): row is Row => row !== undefined && row !== TOO_LARGE);
    const rows = isLoaded ? loaded : await source.read(top, bottom + 1, AbortSignal.timeout(COPY_MS));
    const what = cells === 1 ? "Copied the cell." : `Copied ${cells.toLocaleString()} cells.`;
    await copyText(toTsv(rows, columns, left, right, header), what);
  } catch (problem) {
    notifyProblem(problem);
  }
}
