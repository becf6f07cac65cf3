import { useVirtualizer } from "@tanstack/react-virtual";
import { useEffect, useRef } from "preact/hooks";
import { EmptyState } from "../ui/States.tsx";
import type { Execution } from "./execution.ts";
import styles from "./ResultPanel.module.css";

const LINE_PX = 20;

/** The log and the jobs of a statement. It follows the last line unless the user has scrolled up. */
export function LogPanel({ execution }: { execution: Execution }) {
  const { first, lines } = execution.log.value;
  const scroller = useRef<HTMLDivElement>(null);
  const isAtEnd = useRef(true);
  const shown = useVirtualizer<HTMLDivElement, Element>({
    count: lines.length,
    getScrollElement: () => scroller.current,
    estimateSize: () => LINE_PX,
    overscan: 20,
  });
  // biome-ignore lint/correctness/useExhaustiveDependencies: each new line moves the end
  useEffect(() => {
    if (isAtEnd.current && scroller.current) scroller.current.scrollTop = scroller.current.scrollHeight;
  }, [lines]);
  const note = () => {
    const element = scroller.current;
    if (element) isAtEnd.current = element.scrollTop + element.clientHeight >= element.scrollHeight - LINE_PX;
  };
  return (
    <>
      <Jobs execution={execution} />
      {lines.length === 0 ? <EmptyState title="The log has no lines yet." /> : null}
      {/* biome-ignore lint/a11y/noNoninteractiveTabindex: the log can be scrolled with the keyboard */}
      <div ref={scroller} class={styles.log} tabIndex={0} role="log" aria-label="Log" aria-live="off" onScroll={note}>
        <div class={styles.logLines} style={{ height: `${shown.getTotalSize()}px` }}>
          {shown.getVirtualItems().map(({ index, start }) => (
            <div key={first + index} class={styles.logLine} style={{ transform: `translateY(${start}px)` }}>
              {lines[index]}
            </div>
          ))}
        </div>
      </div>
    </>
  );
}

function Jobs({ execution }: { execution: Execution }) {
  const jobs = execution.jobs.value;
  if (jobs.length === 0) return null;
  return (
    <ul class={styles.jobs} aria-label="Jobs">
      {jobs.map((job) => (
        <li key={job.name}>
          {job.name}
          {job.percentJob === null ? null : <progress max={100} value={job.percentJob} aria-label={job.name} />}
        </li>
      ))}
    </ul>
  );
}
