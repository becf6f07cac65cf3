import { useEffect, useState } from "preact/hooks";
import { attachExecution, type Execution } from "../results/execution.ts";
import { Button } from "../ui/Button.tsx";
import { EmptyState, ErrorMessage } from "../ui/States.tsx";
import { notify } from "../ui/Toasts.tsx";
import { useLoaded } from "../ui/useLoaded.ts";
import { columnStatistics, startAnalysis, type TableDescription, type TableName } from "./describe.ts";
import styles from "./TableDetails.module.css";
import { TextCell, VirtualTable } from "./VirtualTable.tsx";

interface Props {
  name: TableName;
  description: TableDescription;
  /** Load the description again, after new statistics were computed. */
  onChange: () => void;
}

/** The statistics that the engine has, and a button that computes them. */
export function Statistics({ name, description, onChange }: Props) {
  const [round, setRound] = useState(0);
  const columns = description.cols;
  return (
    <>
      <Analysis
        name={name}
        isView={description.is_view}
        onDone={() => {
          setRound((before) => before + 1);
          onChange();
        }}
      />
      {description.stats.length > 0 ? (
        <dl class={styles.properties}>
          {description.stats.map(({ data_type, comment }) => (
            <Statistic key={data_type} name={data_type} value={comment} />
          ))}
        </dl>
      ) : null}
      {columns.length === 0 ? <EmptyState title="The table has no columns." /> : null}
      <VirtualTable
        label="Statistics of the columns"
        heads={[
          { title: "Column" },
          { title: "Smallest" },
          { title: "Largest" },
          { title: "NULL", isNumber: true },
          { title: "Distinct", isNumber: true },
          { title: "Average length", isNumber: true },
          { title: "Maximum length", isNumber: true },
        ]}
        count={columns.length}
        cellsOf={(index) => <ColumnCells key={round} name={name} column={columns[index]?.name ?? ""} round={round} />}
      />
    </>
  );
}

function Statistic({ name, value }: { name: string; value: string }) {
  return (
    <>
      <dt>{name}</dt>
      <dd>{/^\d+$/.test(value) ? BigInt(value).toLocaleString() : value}</dd>
    </>
  );
}

/** The statistics of one column, which load when its row is scrolled into view. */
function ColumnCells({ name, column, round }: { name: TableName; column: string; round: number }) {
  const key = JSON.stringify([name, column, round]);
  const { value, problem, isLoading } = useLoaded(key, (signal) => columnStatistics(name, column, signal));
  if (!value) {
    const text = problem instanceof Error ? problem.message : isLoading ? "Loading…" : "";
    return (
      <>
        <th scope="row">{column}</th>
        <td colSpan={6} title={text}>
          {text}
        </td>
      </>
    );
  }
  const numbers = [value.num_nulls, value.distinct_count, value.avg_col_len, value.max_col_len];
  return (
    <>
      <th scope="row">{column}</th>
      <TextCell text={value.min ?? ""} />
      <TextCell text={value.max ?? ""} />
      {numbers.map((number, index) => (
        <TextCell key={index} text={number?.toLocaleString() ?? ""} isNumber />
      ))}
    </>
  );
}

interface AnalysisProps {
  name: TableName;
  isView: boolean;
  onDone: () => void;
}

function Analysis({ name, isView, onDone }: AnalysisProps) {
  const [execution, setExecution] = useState<Execution | null>(null);
  const [problem, setProblem] = useState<unknown>(null);
  useEffect(() => () => execution?.dispose(), [execution]);
  const state = execution?.state.value;
  // biome-ignore lint/correctness/useExhaustiveDependencies: `onDone` is new in each rendering
  useEffect(() => {
    if (state !== "success" && state !== "available") return;
    notify("The statistics are computed.");
    setExecution(null);
    onDone();
  }, [state]);
  const start = async () => {
    setProblem(null);
    try {
      setExecution(attachExecution(await startAnalysis(name)));
    } catch (caught) {
      setProblem(caught);
    }
  };
  const isActive = execution?.isActive.value ?? false;
  const failure = execution?.error.value;
  return (
    <>
      <div class={styles.bar}>
        <Button disabled={isActive || isView} onClick={() => void start()}>
          Compute statistics
        </Button>
        {isActive ? (
          <>
            <span role="status">Computing, {Math.floor((execution?.elapsedMs.value ?? 0) / 1000)} s…</span>
            <Button kind="quiet" onClick={() => execution?.cancel().catch(setProblem)}>
              Cancel
            </Button>
          </>
        ) : (
          <p>{isView ? "A view has no statistics." : "These are the statistics that the data source already has."}</p>
        )}
      </div>
      {problem ? <ErrorMessage problem={problem} /> : null}
      {failure ? <ErrorMessage problem={new Error(failure.message)} /> : null}
    </>
  );
}
