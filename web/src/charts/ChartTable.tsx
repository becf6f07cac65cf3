import { TextCell, VirtualTable } from "../ui/VirtualTable.tsx";
import type { Frame } from "./frame.ts";
import { numberText, placeText } from "./ticks.ts";

interface Props {
  frame: Frame;
  title: string;
  xLabel: string;
  isHistogram: boolean;
}

/** The points of a chart as a table. */
export function ChartTable({ frame, title, xLabel, isHistogram }: Props) {
  const heads = [{ title: xLabel }, ...frame.series.map(({ label }) => ({ title: label, isNumber: true }))];
  return (
    <VirtualTable
      label={title}
      heads={heads}
      count={frame.x.length}
      cellsOf={(point) => (
        <>
          <th scope="row">{placeText(frame, point, isHistogram)}</th>
          {frame.series.map((series, index) => (
            <TextCell key={index} text={numberText(series.values[point] ?? null)} isNumber />
          ))}
        </>
      )}
    />
  );
}
