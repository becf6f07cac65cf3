import { useVirtualizer } from "@tanstack/react-virtual";
import { SlidersHorizontal } from "lucide-preact";
import { useEffect, useRef, useState } from "preact/hooks";
import { IconButton } from "../ui/Button.tsx";
import { ColumnDialog } from "./ColumnDialog.tsx";
import styles from "./ColumnsTable.module.css";
import {
  type ColumnEdit,
  type EditedColumn,
  type Edits,
  editedColumn,
  hasSize,
  isDecimal,
  isNumeric,
  sourceOf,
} from "./columns.ts";
import type { PreviewColumn } from "./reading.ts";

interface Props {
  columns: readonly PreviewColumn[];
  rows: ReadonlyArray<readonly string[]>;
  /** The types of the dialect. */
  types: readonly string[];
  edits: Edits;
  problems: ReadonlyMap<number | null, string>;
  onEdit: (source: number, edit: ColumnEdit) => void;
}

const COLUMN_PX = 216;
const NUMBER_PX = 52;
/** A cell may have a mebibyte of text. */
const SHOWN_CHARACTERS = 200;

/** The columns of the new table above the first rows of the file. Only the visible ones of many are rendered. */
export function ColumnsTable({ columns, rows, types, edits, problems, onEdit }: Props) {
  const region = useRef<HTMLElement>(null);
  const [opened, setOpened] = useState<number | null>(null);
  const virtual = useVirtualizer({
    horizontal: true,
    count: columns.length,
    getScrollElement: () => region.current,
    estimateSize: () => COLUMN_PX,
    overscan: 3,
  });
  const firstProblem = columns.findIndex((column, index) => problems.has(sourceOf(column, index)));
  useEffect(() => {
    if (firstProblem >= 0) virtual.scrollToIndex(firstProblem, { align: "center" });
  }, [firstProblem, virtual]);
  const items = virtual.getVirtualItems();
  const before = items[0]?.start ?? 0;
  const after = virtual.getTotalSize() - (items.at(-1)?.end ?? 0);
  const shown = items.flatMap(({ index }) => {
    const column = columns[index];
    return column === undefined ? [] : [{ index, found: column, column: editedColumn(column, index, edits) }];
  });
  const dialog = shown.find(({ column }) => column.source === opened);
  return (
    <section ref={region} class={styles.region} aria-label="First rows">
      <table class={styles.table} style={{ width: `${NUMBER_PX + virtual.getTotalSize()}px` }}>
        <thead>
          <tr>
            <td class={styles.corner} style={{ width: `${NUMBER_PX}px` }} />
            <Gap width={before} />
            {shown.map(({ index, found, column }) => (
              <th key={index} scope="col" class={styles.head} style={{ width: `${COLUMN_PX}px` }}>
                <ColumnHead
                  column={column}
                  types={types.includes(found.type) ? types : [found.type, ...types]}
                  problem={problems.get(column.source)}
                  onEdit={(edit) => onEdit(column.source, edit)}
                  onOpen={() => setOpened(column.source)}
                />
              </th>
            ))}
            <Gap width={after} />
          </tr>
        </thead>
        <tbody>
          {rows.map((row, number) => (
            <tr key={number}>
              <th scope="row" class={styles.number}>
                {number + 1}
              </th>
              <Gap width={before} />
              {shown.map(({ index, column }) => (
                <td key={index} class={cellClass(column)} dir="auto">
                  {shortened(row[index] ?? "")}
                </td>
              ))}
              <Gap width={after} />
            </tr>
          ))}
        </tbody>
      </table>
      {dialog ? (
        <ColumnDialog
          column={dialog.column}
          onEdit={(edit) => onEdit(dialog.column.source, edit)}
          onClose={() => setOpened(null)}
        />
      ) : null}
    </section>
  );
}

/** The place of the columns that are not rendered. */
function Gap({ width }: { width: number }) {
  return width > 0 ? <td aria-hidden style={{ width: `${width}px` }} /> : null;
}

interface HeadProps {
  column: EditedColumn;
  types: readonly string[];
  problem: string | undefined;
  onEdit: (edit: ColumnEdit) => void;
  onOpen: () => void;
}

function ColumnHead({ column, types, problem, onEdit, onOpen }: HeadProps) {
  const { source, name, type, size, format, isLeftOut } = column;
  const problemId = `column-problem-${source}`;
  const about = problem === undefined ? {} : { "aria-describedby": problemId, "aria-invalid": true };
  return (
    <div class={isLeftOut ? `${styles.cell} ${styles.leftOut}` : styles.cell}>
      <div class={styles.line}>
        <input
          type="checkbox"
          aria-label={`Import column ${source}`}
          checked={!isLeftOut}
          onChange={(event) => onEdit({ isLeftOut: !event.currentTarget.checked })}
        />
        <input
          class={styles.name}
          aria-label={`Name of column ${source}`}
          value={name}
          disabled={isLeftOut}
          onInput={(event) => onEdit({ name: event.currentTarget.value })}
          {...about}
        />
        <IconButton label={`Format of column ${source}`} disabled={isLeftOut} onClick={onOpen}>
          <SlidersHorizontal size={16} aria-hidden />
        </IconButton>
      </div>
      <div class={styles.line}>
        <select
          class={styles.type}
          aria-label={`Type of column ${source}`}
          value={type}
          disabled={isLeftOut}
          // A size and a format belong to the type that they were chosen for.
          onChange={(event) => onEdit({ type: event.currentTarget.value, ...WITHOUT_DETAILS })}
          {...about}
        >
          {types.map((one) => (
            <option key={one} value={one}>
              {one}
            </option>
          ))}
        </select>
        {hasSize(type) ? (
          <input
            class={styles.size}
            aria-label={`Size of column ${source}`}
            placeholder={isDecimal(type) ? "p,s" : "length"}
            value={size}
            disabled={isLeftOut}
            onInput={(event) => onEdit({ size: event.currentTarget.value })}
          />
        ) : null}
      </div>
      {format !== "" && !isLeftOut ? <div class={styles.format}>{format}</div> : null}
      {problem !== undefined ? (
        <div id={problemId} class={styles.problem} role="alert">
          {problem}
        </div>
      ) : null}
    </div>
  );
}

const WITHOUT_DETAILS: ColumnEdit = { size: undefined, format: undefined, nullWords: undefined };

function cellClass({ isLeftOut, type }: EditedColumn): string {
  return [styles.value, isNumeric(type) ? styles.right : "", isLeftOut ? styles.leftOut : ""].join(" ");
}

function shortened(text: string): string {
  return text.length > SHOWN_CHARACTERS ? `${text.slice(0, SHOWN_CHARACTERS)}…` : text;
}
