import { useRoute } from "preact-iso";
import { api, data, type Schemas } from "../api/client.ts";
import { at } from "../app/prefix.ts";
import { ErrorMessage, Loading } from "../ui/States.tsx";
import { useLoaded } from "../ui/useLoaded.ts";
import { failureOf } from "./problem.ts";
import styles from "./ResultPanel.module.css";
import { ResultPanel } from "./ResultPanel.tsx";
import { useExecution } from "./useExecution.ts";

type SharedResult = Schemas["SharedResultResponse"];

/** A result at an address of its own, for its owner and for users with whom it is shared (Contract sharing 2.5). */
export function SharedResultView() {
  const operationId = useRoute().params.operationId ?? "";
  // Another address is another view: nothing that is known of one result may be shown with another.
  return <Opened key={operationId} operationId={operationId} />;
}

function Opened({ operationId }: { operationId: string }) {
  const { value, problem, reload } = useLoaded(operationId, (signal) => describe(operationId, signal));
  if (problem) {
    return (
      <div class={styles.missing}>
        <h1>Result</h1>
        <ErrorMessage problem={problem} onRetry={reload} />
      </div>
    );
  }
  if (value === null) return <Loading label="Opening the result" />;
  return <Result operationId={operationId} about={value} />;
}

type About = Pick<SharedResult, "title" | "shared_by" | "until"> & { isShared: boolean };

/** Return what is known of the result. One that has failed or expired is shown like any other statement. */
async function describe(operationId: string, signal: AbortSignal): Promise<About> {
  const params = { path: { operation_id: operationId } };
  try {
    const about = await data(api.GET("/api/v1/editor/results/{operation_id}", { params, signal }));
    return { ...about, isShared: about.until !== null };
  } catch (problem) {
    const failure = failureOf(problem);
    if (failure === null) throw problem;
    // Only the owner sees the statement (Contract sharing 3.3).
    return { title: "", shared_by: "", until: null, isShared: failure.handle.statement === "" };
  }
}

function Result({ operationId, about }: { operationId: string; about: About }) {
  const { isShared } = about;
  const execution = useExecution(operationId, isShared);
  return (
    <div class={styles.panel}>
      <header class={styles.about}>
        <h1>{about.title || "Result"}</h1>
        {about.until !== null ? (
          <span>
            Shared by {about.shared_by} until {new Date(about.until).toLocaleString()}
          </span>
        ) : null}
        {isShared ? null : <a href={`${at("/editor")}?operation=${operationId}`}>Open in the editor</a>}
      </header>
      <ResultPanel execution={execution} isShared={isShared} />
    </div>
  );
}
