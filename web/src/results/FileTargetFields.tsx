import { PathPicker } from "../files/PathPicker.tsx";
import { CheckField, SelectField, TextField } from "../ui/Field.tsx";
import styles from "./ExportDialog.module.css";
import { type Compression, type FileTarget, FORMATS, named } from "./exports.ts";

interface Props {
  target: FileTarget;
  onChange: (target: FileTarget) => void;
}

const COMPRESSION_LABELS: Record<Compression, string> = { none: "None", gzip: "gzip", zstd: "Zstandard" };
const SPLIT_ROWS = 1_000_000;

/** The place, name and form of an exported file. */
export function FileTargetFields({ target, onChange }: Props) {
  const format = FORMATS.find(({ value }) => value === target.format) ?? FORMATS[0];
  const isText = target.format === "csv" || target.format === "tsv";
  const isFolder = target.splitRows !== null;
  /** The name follows the format, and the compression is one that the format has. */
  const reshape = (changes: Partial<FileTarget>) => {
    const next = { ...target, ...changes };
    const possible = FORMATS.find(({ value }) => value === next.format)?.compressions ?? ["none"];
    const compression = possible.includes(next.compression) ? next.compression : "none";
    const name = named(next.name, next.format, compression, next.splitRows !== null);
    onChange({ ...next, compression, name });
  };
  return (
    <>
      <PathPicker
        mode="directory"
        value={target.directory}
        onChange={(directory) => onChange({ ...target, directory })}
      />
      <TextField
        label={isFolder ? "Folder name" : "File name"}
        value={target.name}
        required
        onInput={(event) => onChange({ ...target, name: event.currentTarget.value })}
      />
      <div class={styles.pair}>
        <SelectField
          label="Format"
          value={target.format}
          options={FORMATS}
          onChange={(value) => reshape({ format: FORMATS.find((one) => one.value === value)?.value ?? "csv" })}
        />
        <SelectField
          label="Compression"
          value={target.compression}
          disabled={(format?.compressions.length ?? 1) < 2}
          options={(format?.compressions ?? ["none" as const]).map((one) => ({
            value: one,
            label: target.format === "parquet" && one === "none" ? "Snappy" : COMPRESSION_LABELS[one],
          }))}
          onChange={(value) => reshape({ compression: format?.compressions.find((one) => one === value) ?? "none" })}
        />
      </div>
      <div class={styles.checks}>
        {isText ? (
          <>
            <CheckField
              label="Column names in the first line"
              checked={target.header}
              onChange={(event) => onChange({ ...target, header: event.currentTarget.checked })}
            />
            <CheckField
              label="Protect spreadsheets from formulas in the data"
              checked={target.guard}
              onChange={(event) => onChange({ ...target, guard: event.currentTarget.checked })}
            />
          </>
        ) : null}
        <CheckField
          label={`Split into files of ${SPLIT_ROWS.toLocaleString("en")} rows in a folder`}
          checked={isFolder}
          onChange={(event) => reshape({ splitRows: event.currentTarget.checked ? SPLIT_ROWS : null })}
        />
        <CheckField
          label="Replace a file of this name"
          checked={target.replaces && !isFolder}
          disabled={isFolder}
          onChange={(event) => onChange({ ...target, replaces: event.currentTarget.checked })}
        />
      </div>
    </>
  );
}
