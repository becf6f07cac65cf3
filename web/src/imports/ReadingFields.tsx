import { CheckField, SelectField, TextField } from "../ui/Field.tsx";
import styles from "./DraftForm.module.css";
import { NullWordsField } from "./NullWordsField.tsx";
import {
  ENCODING_OPTIONS,
  hasRecords,
  isDelimited,
  type Metadata,
  NUMBER_FORMAT_OPTIONS,
  QUOTE_OPTIONS,
  type Reading,
  SEPARATOR_OPTIONS,
  withSeparator,
} from "./reading.ts";

interface Props {
  metadata: Metadata;
  reading: Reading;
  /** What was detected, if the reading leaves it open. */
  hasHeader: boolean;
  onChange: (changes: Partial<Reading>) => void;
}

const OTHER = "other";

/** How the file is read. Files with names and types of their own have no such fields. */
export function ReadingFields({ metadata, reading, hasHeader, onChange }: Props) {
  if (hasRecords(reading.fileType)) return null;
  return (
    <fieldset class={styles.group}>
      <legend>File format</legend>
      {"sheet_names" in metadata ? (
        <SelectField
          label="Sheet"
          value={reading.sheet}
          options={metadata.sheet_names.map((name) => ({ value: name, label: name }))}
          onChange={(sheet) => onChange({ sheet, hasHeader: null, skipRows: "" })}
        />
      ) : null}
      {isDelimited(reading.fileType) ? <TextForm reading={reading} onChange={onChange} /> : null}
      <CheckField
        label="The first row has the column names"
        checked={hasHeader}
        onChange={(event) => onChange({ hasHeader: event.currentTarget.checked })}
      />
      <details class={styles.more}>
        <summary>More options</summary>
        <MoreFields reading={reading} onChange={onChange} />
      </details>
    </fieldset>
  );
}

type FieldsProps = Pick<Props, "reading" | "onChange">;

function TextForm({ reading, onChange }: FieldsProps) {
  const isListed = SEPARATOR_OPTIONS.some(({ value }) => value === reading.separator);
  const quotes: ReadonlyArray<{ value: string; label: string }> = QUOTE_OPTIONS;
  const hasQuote = quotes.some(({ value }) => value === reading.quote);
  return (
    <>
      <div class={styles.pair}>
        <SelectField
          label="Separator"
          value={isListed ? reading.separator : OTHER}
          options={[...SEPARATOR_OPTIONS, { value: OTHER, label: "Other" }]}
          onChange={(value) => onChange(withSeparator(reading, value === OTHER ? "" : value))}
        />
        <SelectField
          label="Quote"
          value={reading.quote}
          options={hasQuote ? quotes : [...quotes, { value: reading.quote, label: reading.quote }]}
          onChange={(quote) => onChange({ quote })}
        />
      </div>
      {isListed ? null : (
        <TextField
          label="Other separator"
          hint="Up to 8 characters; \t and \x01 are possible"
          value={reading.separator}
          onInput={(event) => onChange(withSeparator(reading, event.currentTarget.value))}
        />
      )}
      <SelectField
        label="Encoding"
        value={reading.encoding}
        options={ENCODING_OPTIONS}
        onChange={(encoding) => onChange({ encoding })}
      />
    </>
  );
}

function MoreFields({ reading, onChange }: FieldsProps) {
  return (
    <>
      <TextField
        label="Date format"
        placeholder="detected"
        hint="As in %d/%m/%Y or %b %d %Y %H:%M"
        value={reading.dateFormat}
        onInput={(event) => onChange({ dateFormat: event.currentTarget.value.trim() })}
      />
      <SelectField
        label="Number format"
        value={reading.numberFormat}
        options={NUMBER_FORMAT_OPTIONS}
        onChange={(numberFormat) => onChange({ numberFormat })}
      />
      <NullWordsField
        value={reading.nullWords}
        placeholder="detected"
        onChange={(nullWords) => onChange({ nullWords })}
      />
      <TextField
        label="Lines above the table"
        type="number"
        placeholder="detected"
        value={reading.skipRows}
        onInput={(event) => onChange({ skipRows: event.currentTarget.value })}
      />
      {isDelimited(reading.fileType) ? (
        <div class={styles.pair}>
          <TextField
            label="Comment mark"
            placeholder="detected"
            value={reading.comment}
            onInput={(event) => onChange({ comment: event.currentTarget.value })}
          />
          <TextField
            label="Escape character"
            placeholder="detected"
            value={reading.escape}
            onInput={(event) => onChange({ escape: event.currentTarget.value })}
          />
        </div>
      ) : null}
    </>
  );
}
