import { ChartLine, ImageDown, Table2 } from "lucide-preact";
import { useMemo, useState } from "preact/hooks";
import type uPlot from "uplot";
import type { Execution } from "../results/execution.ts";
import type { Column, RowSource } from "../results/rows.ts";
import { Button } from "../ui/Button.tsx";
import { SelectField } from "../ui/Field.tsx";
import { EmptyState, ErrorMessage, Loading } from "../ui/States.tsx";
import { notifyProblem } from "../ui/Toasts.tsx";
import { useLoaded } from "../ui/useLoaded.ts";
import { ChartForm } from "./ChartForm.tsx";
import styles from "./ChartPanel.module.css";
import { ChartTable } from "./ChartTable.tsx";
import { type Frame, frameOf, type Row, repeats } from "./frame.ts";
import { firstRows, frameOfAll, PAGE_ROWS, readerOf, type Scope } from "./load.ts";
import { lookOf } from "./look.ts";
import { Plot } from "./Plot.tsx";
import { savePicture } from "./picture.ts";
import { type ChartSpec, MAX_POINTS, suggest, titleOf } from "./spec.ts";
import { numberText, placeText } from "./ticks.ts";

interface Props {
  execution: Execution;
  rows: RowSource;
}

/** A chart of a result. It is drawn when all rows are stored. */
export function ChartPanel({ execution, rows }: Props) {
  const columns = rows.columns.value;
  const count = rows.rowCount.value;
  if (execution.isActive.value || columns === null || count === null) {
    return <Loading label="Waiting for the rows" />;
  }
  if (count === 0) return <EmptyState title="There are no rows to draw." />;
  return <Chart key={`${rows.operationId} ${rows.statementId}`} rows={rows} columns={columns} count={count} />;
}

interface ChartProps {
  rows: RowSource;
  columns: readonly Column[];
  count: number;
}

function Chart({ rows, columns, count }: ChartProps) {
  const [chosen, setChosen] = useState<ChartSpec | null>(null);
  const [scope, setScope] = useState<Scope>("page");
  const wanted = scope === "many" ? MAX_POINTS : PAGE_ROWS;
  const page = useLoaded(`${wanted}`, (signal) => firstRows(rows, wanted, signal));
  const suggested = useMemo(() => firstSpec(columns, page.value ?? []), [columns, page.value]);
  const spec = chosen ?? suggested;
  const reader = readerOf(rows);
  const isAll = scope === "all" && reader !== null;
  const all = useLoaded(isAll ? JSON.stringify(spec) : "page", async (signal) =>
    isAll ? { spec, frame: await frameOfAll(rows, reader, columns, spec, signal) } : null,
  );
  const ofPage = useMemo(
    () => (isAll || page.value === null ? null : { spec, frame: frameOf(page.value, columns, spec) }),
    [isAll, page.value, columns, spec],
  );
  const source = isAll ? all : page;
  return (
    <div class={styles.panel} aria-busy={source.isLoading}>
      <div class={styles.controls}>
        <ChartForm spec={spec} columns={columns} onChange={setChosen} />
        {count > PAGE_ROWS ? (
          <ScopeField scope={scope} count={count} hasReader={reader !== null} onChange={setScope} />
        ) : null}
      </div>
      {source.problem ? <ErrorMessage problem={source.problem} onRetry={source.reload} /> : null}
      <Outcome
        drawn={isAll ? all.value : ofPage}
        isLoading={source.isLoading}
        columns={columns}
        sampledFrom={isAll && isSampled(spec, count) ? count : null}
      />
    </div>
  );
}

function isSampled(spec: ChartSpec, count: number): boolean {
  return spec.aggregate === "none" && spec.kind !== "histogram" && count > MAX_POINTS;
}

/** Several rows with the same text or day are usually summed up. */
function firstSpec(columns: readonly Column[], rows: readonly Row[]): ChartSpec {
  const spec = suggest(columns);
  const isSummed = (spec.kind === "bar" || spec.kind === "line") && spec.aggregate === "none" && repeats(rows, spec.x);
  return isSummed ? { ...spec, aggregate: "sum" } : spec;
}

interface ScopeProps {
  scope: Scope;
  count: number;
  hasReader: boolean;
  onChange: (scope: Scope) => void;
}

function ScopeField({ scope, count, hasReader, onChange }: ScopeProps) {
  const options: { value: Scope; label: string }[] = [
    { value: "page", label: `First ${numberText(PAGE_ROWS)}` },
    hasReader
      ? { value: "all", label: `All ${numberText(count)}` }
      : { value: "many", label: `First ${numberText(Math.min(count, MAX_POINTS))}` },
  ];
  return (
    <SelectField
      label="Rows"
      value={scope}
      options={options}
      onChange={(value) => onChange(options.find((one) => one.value === value)?.value ?? "page")}
    />
  );
}

interface Drawn {
  spec: ChartSpec;
  frame: Frame;
}

interface OutcomeProps {
  drawn: Drawn | null;
  isLoading: boolean;
  columns: readonly Column[];
  /** The number of rows of which a sample is drawn. */
  sampledFrom: number | null;
}

function Outcome({ drawn, isLoading, columns, sampledFrom }: OutcomeProps) {
  const [isTable, setTable] = useState(false);
  const [hiding, setHiding] = useState<{ spec: ChartSpec | null; series: ReadonlySet<number> }>(NOTHING_HIDDEN);
  const [at, setAt] = useState<number | null>(null);
  const [plot, setPlot] = useState<uPlot | null>(null);
  if (drawn === null) return isLoading ? <Loading label="Computing the chart" /> : null;
  const { spec, frame } = drawn;
  const title = titleOf(spec, columns);
  const isHistogram = spec.kind === "histogram";
  const xLabel = columns[isHistogram ? (spec.y[0] ?? spec.x) : spec.x]?.name ?? "";
  const hidden = hiding.spec === spec ? hiding.series : NOTHING_HIDDEN.series;
  const save = () => {
    if (plot === null) return;
    const labels = frame.series.map((series) => series.label);
    savePicture(plot, title, labels, lookOf(plot.root)).catch(notifyProblem);
  };
  const Icon = isTable ? ChartLine : Table2;
  return (
    <>
      <div class={styles.head}>
        <h2 class={styles.title}>{title}</h2>
        <Button kind="quiet" onClick={() => setTable(!isTable)}>
          <Icon size={16} aria-hidden />
          {isTable ? "Show as chart" : "Show as table"}
        </Button>
        <Button kind="quiet" onClick={save} disabled={plot === null}>
          <ImageDown size={16} aria-hidden />
          Save as PNG
        </Button>
      </div>
      {isEmpty(frame) ? (
        <EmptyState title="No values to draw">
          Choose columns with numbers for the y axis, or count the rows.
        </EmptyState>
      ) : isTable ? (
        <ChartTable frame={frame} title={title} xLabel={xLabel} isHistogram={isHistogram} />
      ) : (
        <>
          <Legend {...{ frame, at, isHistogram, hidden }} onHide={(series) => setHiding({ spec, series })} />
          <Plot {...{ frame, title, xLabel, hidden }} kind={spec.kind} onPoint={setAt} onDrawn={setPlot} />
        </>
      )}
      <Notes skipped={frame.skipped} sampledFrom={sampledFrom} />
    </>
  );
}

const NOTHING_HIDDEN = { spec: null, series: new Set<number>() };

function isEmpty(frame: Frame): boolean {
  return frame.series.every((series) => series.values.every((value) => value === null));
}

function Notes({ skipped, sampledFrom }: { skipped: number; sampledFrom: number | null }) {
  const texts = [
    sampledFrom === null ? "" : `${numberText(MAX_POINTS)} of ${numberText(sampledFrom)} rows, chosen at random`,
    skipped === 0 ? "" : `${numberText(skipped)} rows without a value are not drawn`,
  ];
  const text = texts.filter((one) => one !== "").join(" · ");
  return text ? <p class={styles.note}>{text}</p> : null;
}

interface LegendProps {
  frame: Frame;
  at: number | null;
  isHistogram: boolean;
  hidden: ReadonlySet<number>;
  onHide: (hidden: ReadonlySet<number>) => void;
}

/** The series with their values at the cursor. A click hides and shows a series. */
function Legend({ frame, at, isHistogram, hidden, onHide }: LegendProps) {
  const toggle = (index: number) => onHide(hidden.has(index) ? without(hidden, index) : new Set([...hidden, index]));
  return (
    <div class={styles.legend} aria-live="polite">
      {frame.series.map((series, index) => (
        <button
          key={index}
          type="button"
          class={styles.series}
          aria-pressed={!hidden.has(index)}
          title={hidden.has(index) ? "Show" : "Hide"}
          onClick={() => toggle(index)}
        >
          <span class={styles.marker} data-series={index + 1} />
          {series.label}
          {at === null ? null : <b>{numberText(series.values[at] ?? null)}</b>}
        </button>
      ))}
      <span class={styles.place}>{at === null ? "" : placeText(frame, at, isHistogram)}</span>
    </div>
  );
}

function without(set: ReadonlySet<number>, index: number): ReadonlySet<number> {
  const changed = new Set(set);
  changed.delete(index);
  return changed;
}
