/** What the detection reports about a file, as sentences (Contract importer 4, 7.3.3). */
import type { Schemas } from "../api/client.ts";
import { rowsText } from "../ui/texts.ts";
import type { Metadata, Preview } from "./reading.ts";

type Warning = Schemas["PreviewWarning"];

const UNCERTAIN_BELOW = 0.8;

const TEXTS: Readonly<Record<Warning["code"], (count: number) => string>> = {
  long_rows: (n) => `${rows(n)} more values than the table has columns.`,
  short_rows: (n) => `${rows(n)} fewer values than the table has columns; the missing ones are NULL.`,
  unclosed_quote: (n) => `${rows(n)} a quote that is not closed; it is read as an ordinary character.`,
  undecodable: (n) => `${n === 1 ? "One character is" : `${n} characters are`} not valid in this encoding.`,
  truncated_sample: () => "The rows are long, so only a few of them are shown.",
  encoding_uncertain: () =>
    "The encoding is uncertain. Check the letters in the rows, and choose another encoding if they are wrong.",
  skipped_lines: (n) => `${n === 1 ? "One line is" : `${n} lines are`} skipped: titles, notes or comments.`,
  formulas_without_values: (n) =>
    `${rows(n)} formulas without stored values, which are read as NULL. Open and save the workbook to store them.`,
  null_words: (n) =>
    `${n === 1 ? "One cell is" : `${n} cells are`} read as NULL because of ${n === 1 ? "its" : "their"} text.`,
};

/** Return the warnings of both calls, each once. */
export function warningTexts(metadata: Metadata, preview: Preview | null): string[] {
  const texts: string[] = [];
  const found = [...("warnings" in metadata ? (metadata.warnings ?? []) : []), ...(preview?.warnings ?? [])];
  const isEncodingUncertain = found.some(({ code }) => code === "encoding_uncertain");
  if ("confidence" in metadata && metadata.confidence < UNCERTAIN_BELOW && !isEncodingUncertain) {
    texts.push("The separator is uncertain. Check the columns, and choose another separator if they are wrong.");
  }
  for (const warning of found) {
    const text = TEXTS[warning.code](warning.count) + where(warning);
    if (!texts.includes(text)) texts.push(text);
  }
  return texts;
}

function where({ rows: numbers, count, code }: Warning): string {
  if (numbers.length === 0 || code === "truncated_sample") return "";
  const unit = code === "skipped_lines" ? "Line" : "Record";
  const more = count > numbers.length ? ", …" : "";
  return ` (${unit}${numbers.length === 1 ? "" : "s"} ${numbers.join(", ")}${more})`;
}

function rows(count: number): string {
  return count === 1 ? "One row has" : `${rowsText(count)} have`;
}
