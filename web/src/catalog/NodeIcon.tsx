import {
  Braces,
  CalendarClock,
  Database,
  Hash,
  KeyRound,
  Server,
  Split,
  SquareDashed,
  Table2,
  ToggleLeft,
  Type,
  View,
} from "lucide-preact";
import type { NodeKind } from "./treeRows.ts";

const ICON_PX = 15;
const KINDS = {
  connector: Server,
  database: Database,
  table: Table2,
  view: View,
  key: KeyRound,
  partition: Split,
} as const;

/** Icons of column types by the first word that the type text contains; nested types come first. */
const TYPES = [
  [/array|map|struct|row|json|variant|list|\[\]|super|object/, Braces],
  [/bool|^bit$/, ToggleLeft],
  [/date|time|interval|year/, CalendarClock],
  [/int|num|dec|float|double|real|serial|money|long|short|byte(?!a)/, Hash],
  [/char|text|string|uuid|enum|clob|name|inet/, Type],
] as const;

/** The icon of an object of the tree; of a column, by its type. Screen readers get the kind from the row's text. */
export function NodeIcon({ kind, type = "" }: { kind: NodeKind; type?: string }) {
  const folded = type.toLowerCase();
  const Icon = kind === "column" ? (TYPES.find(([words]) => words.test(folded))?.[1] ?? SquareDashed) : KINDS[kind];
  return <Icon size={ICON_PX} aria-hidden />;
}
