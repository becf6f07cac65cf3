import { EmptyState, Loading } from "../ui/States.tsx";
import type { Execution } from "./execution.ts";

/** Progress, rows, chart and log of a statement. */
export function ResultPanel({ execution }: { execution: Execution }) {
  const error = execution.error.value;
  if (error !== null) return <EmptyState title={error.message} />;
  return execution.isActive.value ? <Loading label="Running" /> : <EmptyState title={execution.state.value} />;
}
