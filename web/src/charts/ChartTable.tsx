import { useState } from "preact/hooks";
import { Button } from "../ui/Button.tsx";
import styles from "./ChartPanel.module.css";
import type { Frame } from "./frame.ts";
import { numberText, placeText } from "./ticks.ts";

const STEP = 200;

/** The points of a chart as a table. */
export function ChartTable({ frame, title, xLabel, isHistogram }: TableProps) {
  const [shown, setShown] = useState(STEP);
  const rows = Array.from({ length: Math.min(shown, frame.x.length) }, (_, index) => index);
  return (
    // biome-ignore lint/a11y/noNoninteractiveTabindex: a region that scrolls is reached with the keyboard
    <section class={styles.tableBox} aria-label={title} tabIndex={0}>
      <table class={styles.table}>
        <caption class="visually-hidden">{title}</caption>
        <thead>
          <tr>
            <th scope="col">{xLabel}</th>
            {frame.series.map((series, index) => (
              <th key={index} scope="col" class={styles.amount}>
                {series.label}
              </th>
            ))}
          </tr>
        </thead>
        <tbody>
          {rows.map((row) => (
            <tr key={row}>
              <th scope="row">{placeText(frame, row, isHistogram)}</th>
              {frame.series.map((series, index) => (
                <td key={index} class={styles.amount}>
                  {numberText(series.values[row] ?? null)}
                </td>
              ))}
            </tr>
          ))}
        </tbody>
      </table>
      {shown < frame.x.length ? (
        <Button kind="quiet" onClick={() => setShown(shown + 5 * STEP)}>
          Show more of {frame.x.length.toLocaleString("en")} points
        </Button>
      ) : null}
    </section>
  );
}

interface TableProps {
  frame: Frame;
  title: string;
  xLabel: string;
  isHistogram: boolean;
}
