import { useEffect, useState } from "preact/hooks";
import { useExecution } from "../results/useExecution.ts";
import { Button } from "../ui/Button.tsx";
import { EmptyState, ErrorMessage } from "../ui/States.tsx";
import { notify, notifyProblem } from "../ui/Toasts.tsx";
import { useLoaded } from "../ui/useLoaded.ts";
import { TextCell, VirtualTable } from "../ui/VirtualTable.tsx";
import { columnStatistics, startAnalysis, type TableDescription, type TableName } from "./describe.ts";
import styles from "./TableDetails.module.css";

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
  const [isStarting, setStarting] = useState(false);
  const [operationId, setOperationId] = useState<string | null>(null);
  const [problem, setProblem] = useState<unknown>(null);
  const start = async () => {
    setProblem(null);
    setStarting(true);
    try {
      setOperationId(await startAnalysis(name));
    } catch (caught) {
      setProblem(caught);
    } finally {
      setStarting(false);
    }
  };
  const end = (failure: string | null) => {
    setOperationId(null);
    if (failure !== null) {
      setProblem(new Error(failure));
      return;
    }
    notify("The statistics are computed.");
    onDone();
  };
  return (
    <>
      <div class={styles.bar}>
        <Button disabled={isStarting || operationId !== null || isView} onClick={() => void start()}>
          Compute statistics
        </Button>
        {operationId === null ? (
          <p>{isView ? "A view has no statistics." : "These are the statistics that the data source already has."}</p>
        ) : (
          <AnalysisProgress operationId={operationId} onEnd={end} />
        )}
      </div>
      {problem ? <ErrorMessage problem={problem} /> : null}
    </>
  );
}

/** `onEnd` is called with the message of a failure, or with null. */
function AnalysisProgress({ operationId, onEnd }: { operationId: string; onEnd: (failure: string | null) => void }) {
  const execution = useExecution(operationId);
  const isActive = execution.isActive.value;
  const failure = execution.error.value?.message ?? null;
  // biome-ignore lint/correctness/useExhaustiveDependencies: `onEnd` is new in each rendering
  useEffect(() => {
    if (!isActive) onEnd(failure);
  }, [isActive]);
  return (
    <>
      <span role="status">Computing, {Math.floor(execution.elapsedMs.value / 1000)} s…</span>
      <Button kind="quiet" onClick={() => void execution.cancel().catch(notifyProblem)}>
        Cancel
      </Button>
    </>
  );
}
