/** What a tab of the editor contains, and how it is stored in the browser. */
import { isRecord } from "../api/errors.ts";
import { type ParameterType, type ParameterValue, TYPES } from "./sql/parameters.ts";

/** The last run of a tab: an operation, and the part of the text that was sent. */
export interface Run {
  operationId: string;
  /** Where `source` was in the text of the tab. */
  from: number;
  /** The part of the text, before its variables were replaced. Empty if it was too long to be stored. */
  source: string;
}

export interface TabContent {
  title: string;
  text: string;
  /** The id of the connector; empty for the default one. */
  connector: string;
  /** Empty for the default database of the connector. */
  database: string;
  parameters: Readonly<Record<string, ParameterValue>>;
  run: Run | null;
  /** The uuid of the saved query that the tab shows. */
  document: string | null;
  /** The version of the saved query from which the text comes; 0 if it is unknown. */
  documentVersion: number;
}

export interface StoredTab {
  id: string;
  /** Tabs are shown in ascending order. */
  order: number;
  /** Milliseconds since the epoch; the tab that was changed last is selected in a new window. */
  savedAt: number;
  content: TabContent;
}

/** Sources of runs that are longer are not stored a second time beside the text of the tab. */
const STORED_SOURCE_CHARACTERS = 20_000;

export const EMPTY: TabContent = {
  title: "",
  text: "",
  connector: "",
  database: "",
  parameters: {},
  run: null,
  document: null,
  documentVersion: 0,
};

export function serialized({ order, savedAt, content }: Omit<StoredTab, "id">): string {
  const { run } = content;
  const isLong = run !== null && run.source.length > STORED_SOURCE_CHARACTERS;
  return JSON.stringify({ order, savedAt, content: isLong ? { ...content, run: { ...run, source: "" } } : content });
}

/** Return a stored tab, or null if the text is none. Fields that are missing or of another type are empty. */
export function parsed(id: string, text: string): StoredTab | null {
  let stored: unknown;
  try {
    stored = JSON.parse(text);
  } catch {
    return null;
  }
  if (!isRecord(stored) || !isRecord(stored.content)) return null;
  const { content } = stored;
  return {
    id,
    order: numeric(stored.order),
    savedAt: numeric(stored.savedAt),
    content: {
      title: textual(content.title),
      text: textual(content.text),
      connector: textual(content.connector),
      database: textual(content.database),
      parameters: parametersOf(content.parameters),
      run: runOf(content.run),
      document: textual(content.document) || null,
      documentVersion: numeric(content.documentVersion),
    },
  };
}

function runOf(stored: unknown): Run | null {
  if (!isRecord(stored) || textual(stored.operationId) === "") return null;
  return { operationId: textual(stored.operationId), from: numeric(stored.from), source: textual(stored.source) };
}

function parametersOf(stored: unknown): Record<string, ParameterValue> {
  const values: Record<string, ParameterValue> = {};
  for (const [name, value] of Object.entries(isRecord(stored) ? stored : {})) {
    if (isRecord(value)) values[name] = { text: textual(value.text), type: parameterType(value.type) };
  }
  return values;
}

export function parameterType(stored: unknown): ParameterType {
  if (stored === "null") return stored;
  return TYPES.find((type) => type === stored) ?? "auto";
}

function textual(stored: unknown): string {
  return typeof stored === "string" ? stored : "";
}

function numeric(stored: unknown): number {
  return typeof stored === "number" && Number.isFinite(stored) ? stored : 0;
}
