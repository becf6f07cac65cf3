import { useCallback } from "preact/hooks";
import { at } from "../app/prefix.ts";
import { EmptyState, ErrorMessage, Loading } from "../ui/States.tsx";
import { ago, dateText, rowsText } from "../ui/texts.ts";
import styles from "./queries.module.css";
import { type SharedResult, sharedWithMe } from "./results.ts";
import { usePages } from "./usePages.ts";
import { VirtualList } from "./VirtualList.tsx";

const ROW_PX = 58;
const PAGE = 50;

/** Results that other users have shared with the user. */
export function SharedResults() {
  const load = useCallback(async (page: number, signal: AbortSignal) => {
    const { count, results } = await sharedWithMe(page, PAGE, signal);
    return { count, entries: results };
  }, []);
  const { count, entry, ensure, problem, reload } = usePages(load, PAGE);
  if (problem) return <ErrorMessage problem={problem} onRetry={reload} />;
  if (count === null) return <Loading label="Loading results" />;
  if (count === 0) return <EmptyState title="No results are shared with you." />;
  return (
    <VirtualList label="Results shared with me" count={count} rowHeight={ROW_PX} onShown={ensure}>
      {(index) => {
        const result = entry(index);
        return result ? <ResultRow result={result} /> : <span class={styles.soft}>Loading…</span>;
      }}
    </VirtualList>
  );
}

function ResultRow({ result }: { result: SharedResult }) {
  return (
    <>
      <div class={styles.main}>
        <a class={styles.open} href={at(`/results/${result.operationId}`)}>
          {result.title || "Result"}
        </a>
        <span class={styles.about}>
          {[result.shared_by, result.type, rowsText(result.rows), `until ${dateText(result.until)}`].join(" · ")}
        </span>
      </div>
      <time class={styles.when} dateTime={result.shared_at}>
        {ago(result.shared_at)}
      </time>
    </>
  );
}
