import { X } from "lucide-preact";
import { isNumeric } from "../results/cells.ts";
import type { Column } from "../results/rows.ts";
import { SelectField } from "../ui/Field.tsx";
import styles from "./ChartPanel.module.css";
import { AGGREGATES, type ChartSpec, KINDS, type Kind, MAX_SERIES } from "./spec.ts";

const KIND_LABELS: Record<Kind, string> = {
  line: "Line",
  bar: "Bar",
  area: "Area",
  scatter: "Scatter",
  histogram: "Histogram",
};

const AGGREGATE_LABELS = {
  none: "None (each row)",
  sum: "Sum",
  count: "Count",
  avg: "Average",
  min: "Minimum",
  max: "Maximum",
} as const;

interface Props {
  spec: ChartSpec;
  columns: readonly Column[];
  onChange: (spec: ChartSpec) => void;
}

/** What to draw: kind, columns, and how the rows of one x become one value. */
export function ChartForm({ spec, columns, onChange }: Props) {
  const all = columns.map((column, position) => ({ value: String(position), label: column.name, column }));
  const numbers = all.filter(({ column }) => isNumeric(column));
  const isHistogram = spec.kind === "histogram";
  const changeKind = (kind: Kind) => {
    const firstNumber = numbers[0] ? [Number(numbers[0].value)] : [];
    const y = kind === "histogram" && spec.y.length === 0 ? firstNumber : spec.y;
    onChange({ ...spec, kind, y });
  };
  return (
    <div class={styles.form}>
      <SelectField
        label="Chart"
        value={spec.kind}
        options={KINDS.map((kind) => ({ value: kind, label: KIND_LABELS[kind] }))}
        onChange={(value) => changeKind(KINDS.find((kind) => kind === value) ?? "bar")}
      />
      {isHistogram ? (
        <SelectField
          label="Values"
          value={String(spec.y[0] ?? "")}
          options={numbers}
          onChange={(value) => onChange({ ...spec, y: [Number(value)] })}
        />
      ) : (
        <>
          <SelectField
            label="X axis"
            value={String(spec.x)}
            options={all}
            onChange={(value) => onChange({ ...spec, x: Number(value) })}
          />
          <SelectField
            label="Aggregation"
            value={spec.aggregate}
            options={AGGREGATES.map((one) => ({ value: one, label: AGGREGATE_LABELS[one] }))}
            onChange={(value) => onChange({ ...spec, aggregate: AGGREGATES.find((one) => one === value) ?? "none" })}
          />
          <YColumns
            spec={spec}
            columns={columns}
            options={spec.aggregate === "count" ? all : numbers}
            onChange={onChange}
          />
        </>
      )}
    </div>
  );
}

interface YProps extends Props {
  options: ReadonlyArray<{ value: string; label: string }>;
}

function YColumns({ spec, columns, options, onChange }: YProps) {
  const more = options.filter(({ value }) => !spec.y.includes(Number(value)) && Number(value) !== spec.x);
  const isFull = spec.y.length >= MAX_SERIES;
  return (
    <>
      <SelectField
        label="Y axis"
        value=""
        disabled={more.length === 0 || isFull}
        options={[{ value: "", label: isFull ? `At most ${MAX_SERIES} columns` : "Add a column…" }, ...more]}
        onChange={(value) => (value === "" ? undefined : onChange({ ...spec, y: [...spec.y, Number(value)] }))}
      />
      <ul class={styles.chips} aria-label="Columns of the y axis">
        {spec.y.map((position) => (
          <li key={position}>
            <button
              type="button"
              class={styles.chip}
              aria-label={`Remove ${columns[position]?.name}`}
              onClick={() => onChange({ ...spec, y: spec.y.filter((one) => one !== position) })}
            >
              {columns[position]?.name}
              <X size={14} aria-hidden />
            </button>
          </li>
        ))}
      </ul>
    </>
  );
}
