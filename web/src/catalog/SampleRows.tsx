import { useState } from "preact/hooks";
import { isNumeric } from "../results/cells.ts";
import { Button } from "../ui/Button.tsx";
import { EmptyState, ErrorMessage, Loading } from "../ui/States.tsx";
import { useLoaded } from "../ui/useLoaded.ts";
import { TextCell, VirtualTable } from "../ui/VirtualTable.tsx";
import { sampleRows, type TableName } from "./describe.ts";
import cells from "./SampleRows.module.css";
import styles from "./TableDetails.module.css";

/** Columns that are shown at first. Cells of hundreds of columns would block the page while they are drawn. */
const FIRST_COLUMNS = 50;

/** At most 100 rows of the table. */
export function SampleRows({ name }: { name: TableName }) {
  const { value, problem, isLoading, reload } = useLoaded(JSON.stringify(name), (signal) => sampleRows(name, signal));
  const [showsAll, setShowsAll] = useState(false);
  if (problem) return <ErrorMessage problem={problem} onRetry={reload} />;
  if (!value || isLoading) return <Loading label="Reading rows" />;
  if (value.rows.length === 0) return <EmptyState title={value.message || "The table is empty."} />;
  const all = value.full_headers;
  const shown = showsAll ? all : all.slice(0, FIRST_COLUMNS);
  const isNumber = shown.map(isNumeric);
  return (
    <>
      <div class={styles.bar}>
        <p>
          {value.rows.length} rows. {value.message}
        </p>
        {shown.length < all.length ? (
          <Button kind="quiet" onClick={() => setShowsAll(true)}>
            Show all {all.length} columns
          </Button>
        ) : null}
      </div>
      <VirtualTable
        label="Sample rows"
        heads={shown.map((head, index) => ({
          title: head.name,
          detail: head.native_type,
          isNumber: isNumber[index] ?? false,
        }))}
        count={value.rows.length}
        cellsOf={(row) =>
          shown.map((_, column) => (
            <Cell key={column} value={value.rows[row]?.[column]} isNumber={isNumber[column] ?? false} />
          ))
        }
      />
    </>
  );
}

/** The longest text that a cell of a sample shows; the full value is in the result of a statement. */
const CELL_CHARACTERS = 300;

function Cell({ value, isNumber }: { value: unknown; isNumber: boolean }) {
  if (value === null || value === undefined) return <td class={cells.none}>NULL</td>;
  if (value === "") return <td class={cells.none}>empty</td>;
  const text = typeof value === "object" ? JSON.stringify(value) : String(value);
  return <TextCell text={text.slice(0, CELL_CHARACTERS)} isNumber={isNumber} />;
}
