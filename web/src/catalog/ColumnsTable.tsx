import { KeyRound, Link, Split } from "lucide-preact";
import { useMemo, useState } from "preact/hooks";
import { TextField } from "../ui/Field.tsx";
import { EmptyState } from "../ui/States.tsx";
import { TextCell, VirtualTable } from "../ui/VirtualTable.tsx";
import cells from "./ColumnsTable.module.css";
import { NodeIcon } from "./NodeIcon.tsx";
import type { ColumnSummary, TableMetadata } from "./store.ts";

const FILTER_ABOVE = 12;
const ICON_PX = 14;
const HEADS = ["Column", "Type", "Key", "NULL", "Default", "Comment"].map((title) => ({ title }));

/** The columns of a table with their types, keys, partition flags and comments. */
export function ColumnsTable({ table }: { table: TableMetadata }) {
  const [filter, setFilter] = useState("");
  const columns = table.extended_columns;
  const targets = useMemo(() => foreignKeys(table), [table]);
  const word = filter.trim().toLowerCase();
  const shown = word === "" ? columns : columns.filter((column) => texts(column).includes(word));
  if (columns.length === 0) return <EmptyState title="The table has no columns." />;
  return (
    <>
      {columns.length > FILTER_ABOVE ? (
        <TextField
          label={`Filter ${columns.length.toLocaleString()} columns`}
          type="search"
          value={filter}
          onInput={(event) => setFilter(event.currentTarget.value)}
        />
      ) : null}
      {shown.length === 0 ? <EmptyState title="No column matches the filter." /> : null}
      <VirtualTable
        label="Columns"
        heads={HEADS}
        count={shown.length}
        cellsOf={(index) => {
          const column = shown[index];
          return column ? <Cells column={column} targets={targets.get(column.name) ?? []} /> : null;
        }}
      />
    </>
  );
}

function Cells({ column, targets }: { column: ColumnSummary; targets: readonly string[] }) {
  const nullable = column.nullable === null ? "" : column.nullable ? "yes" : "no";
  return (
    <>
      <th scope="row" title={column.name}>
        <span class={cells.name}>
          <NodeIcon kind="column" type={column.type} />
          {column.name}
        </span>
      </th>
      <TextCell text={column.type} />
      <td>
        {column.primary_key ? (
          <span class={cells.key}>
            <KeyRound size={ICON_PX} aria-hidden /> primary
          </span>
        ) : null}
        {column.partition_key ? (
          <span class={cells.key}>
            <Split size={ICON_PX} aria-hidden /> partition
          </span>
        ) : null}
        {targets.map((target) => (
          <span key={target} class={cells.key} title={`Refers to ${target}`}>
            <Link size={ICON_PX} aria-hidden /> {target}
          </span>
        ))}
      </td>
      <TextCell text={nullable} />
      <TextCell text={column.autoincrement ? "(generated)" : (column.default ?? "")} />
      <TextCell text={column.comment} />
    </>
  );
}

function foreignKeys(table: TableMetadata): Map<string, string[]> {
  const targets = new Map<string, string[]>();
  for (const { name, to } of table.foreign_keys) targets.set(name, [...(targets.get(name) ?? []), to]);
  return targets;
}

function texts({ name, type, comment }: ColumnSummary): string {
  return `${name} ${type} ${comment}`.toLowerCase();
}
