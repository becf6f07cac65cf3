import { useState } from "preact/hooks";
import { type Preview, readingOf, type Source } from "../imports/reading.ts";
import { guessMetadata, inspect } from "../imports/server.ts";
import { SelectField } from "../ui/Field.tsx";
import { EmptyState, ErrorMessage, Loading } from "../ui/States.tsx";
import { countText } from "../ui/texts.ts";
import { useLoaded } from "../ui/useLoaded.ts";
import { nameOf } from "./paths.ts";
import styles from "./preview.module.css";

interface Sample {
  preview: Preview;
  /** The worksheets of a workbook; of other files none. */
  sheets: readonly string[];
}

/** A cell is cut here; a cell of 1 MB would make the page slow. */
const CELL_CHARACTERS = 300;

/** The first rows of a csv, Parquet or other file of records as a table, with the types that the server finds. */
export function TablePreview({ path }: { path: string }) {
  const [sheet, setSheet] = useState("");
  const { value, problem, reload } = useLoaded(`${path}\n${sheet}`, (signal) => sampleOf(path, sheet, signal));
  if (problem) return <ErrorMessage problem={problem} onRetry={reload} />;
  if (!value) return <Loading label="Reading the first rows" />;
  const { preview, sheets } = value;
  return (
    <div class={styles.sample}>
      {sheets.length > 1 ? (
        <SelectField
          label="Worksheet"
          value={sheet || (sheets[0] ?? "")}
          options={sheets.map((name) => ({ value: name, label: name }))}
          onChange={setSheet}
        />
      ) : null}
      {preview.columns.length === 0 ? <EmptyState title="The file has no columns." /> : <Rows preview={preview} />}
      <p class={styles.about}>
        {countText(preview.columns.length, "column")}, the first {countText(preview.preview_data.length, "row")}
      </p>
    </div>
  );
}

function Rows({ preview }: { preview: Preview }) {
  return (
    // biome-ignore lint/a11y/noNoninteractiveTabindex: a region that scrolls must be reachable by keys
    <section class={styles.rows} tabIndex={0} aria-label="First rows">
      <table>
        <thead>
          <tr>
            {preview.columns.map((column, index) => (
              <th key={index} scope="col">
                <bdi>{column.name}</bdi>
                <small>{column.type}</small>
              </th>
            ))}
          </tr>
        </thead>
        <tbody>
          {preview.preview_data.map((row, index) => (
            <tr key={index}>
              {row.map((cell, position) => (
                <td key={position}>
                  <bdi>{cell.length > CELL_CHARACTERS ? `${cell.slice(0, CELL_CHARACTERS)}…` : cell}</bdi>
                </td>
              ))}
            </tr>
          ))}
        </tbody>
      </table>
    </section>
  );
}

async function sampleOf(path: string, sheet: string, signal: AbortSignal): Promise<Sample> {
  const source: Source = { importType: "remote", path, name: nameOf(path), sizeBytes: null };
  const metadata = await guessMetadata(source, signal);
  const reading = readingOf(metadata);
  const { preview } = await inspect(source, sheet === "" ? reading : { ...reading, sheet }, null, signal);
  return { preview, sheets: "sheet_names" in metadata ? metadata.sheet_names : [] };
}
