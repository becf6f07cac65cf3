import { useEffect, useMemo } from "preact/hooks";
import { attachExecution, type Execution } from "./execution.ts";

/** Follow an operation while the component is shown. */
export function useExecution(operationId: string, isShared = false): Execution {
  const execution = useMemo(() => attachExecution(operationId, { isShared }), [operationId, isShared]);
  useEffect(() => () => execution.dispose(), [execution]);
  return execution;
}
