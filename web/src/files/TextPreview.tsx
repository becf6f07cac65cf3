import { useState } from "preact/hooks";
import { api, data } from "../api/client.ts";
import { asApiError } from "../api/errors.ts";
import { Button } from "../ui/Button.tsx";
import { EmptyState, ErrorMessage, Loading } from "../ui/States.tsx";
import { bytesText } from "../ui/texts.ts";
import { useLoaded } from "../ui/useLoaded.ts";
import styles from "./preview.module.css";

const STEP_BYTES = 64 * 1024;
/** More text in one element makes the page slow; the file can be downloaded. */
const MOST_BYTES = 1024 * 1024;

/** The beginning of a file as text. Compressed files, Avro and Parquet are decoded by the server. */
export function TextPreview({ path }: { path: string }) {
  const [length, setLength] = useState(STEP_BYTES);
  const { value, problem, isLoading, reload } = useLoaded(`${path}\n${length}`, (signal) =>
    data(api.GET("/api/v1/storage/display", { params: { query: { path, offset: 0, length } }, signal })),
  );
  if (asApiError(problem).code === "not_text") {
    return (
      <EmptyState title="There is no preview of this file.">It is not a text file. Download it to open it.</EmptyState>
    );
  }
  if (problem) return <ErrorMessage problem={problem} onRetry={reload} />;
  if (!value) return <Loading />;
  if (value.contents === "") return <EmptyState title="The file is empty." />;
  // A character that the end cuts is left to the next part, so a full part may be up to three bytes shorter.
  const hasMore = value.end >= value.length - 3;
  return (
    <div class={styles.text}>
      {/* biome-ignore lint/a11y/noNoninteractiveTabindex: a region that scrolls must be reachable by keys */}
      <section tabIndex={0} aria-label="Content">
        <pre>{value.contents}</pre>
      </section>
      {hasMore ? (
        <div class={styles.more}>
          The first {bytesText(value.end)}.
          {length < MOST_BYTES ? (
            <Button disabled={isLoading} onClick={() => setLength(Math.min(MOST_BYTES, length * 4))}>
              Show more
            </Button>
          ) : (
            " Download the file to see all of it."
          )}
        </div>
      ) : null}
    </div>
  );
}
