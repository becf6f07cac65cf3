/** Shapes that uPlot has no builder for: bars side by side, and many points. */
import type uPlot from "uplot";

const ROUND_UP_TO = 2000;
const SMALL_FROM = 5000;

/** Bars of one of `count` series, which stand side by side in `share` of the distance `step` of two points. */
export function bars(position: number, count: number, step: number, share: number): uPlot.Series.PathBuilder {
  return (plot, seriesIndex, first, last) => {
    const fill = new Path2D();
    const zero = plot.valToPos(0, "y", true);
    const perUnit = plot.valToPos(1, "x", true) - plot.valToPos(0, "x", true);
    const band = perUnit * step * share;
    const width = Math.max(1, band / count - (band / count > 4 ? 1 : 0));
    const offset = (position * band) / count - band / 2;
    eachPoint(plot, seriesIndex, first, last, (x, y) => {
      const left = plot.valToPos(x, "x", true) + offset;
      const top = plot.valToPos(y, "y", true);
      fill.rect(left, Math.min(top, zero), width, Math.abs(zero - top));
    });
    return { fill, stroke: null };
  };
}

/** Points without lines. Of points that share a pixel one is drawn, so that 100,000 cost no more than there are pixels. */
export function dots(points: number): uPlot.Series.PathBuilder {
  return (plot, seriesIndex, first, last) => {
    const fill = new Path2D();
    const size = (points > SMALL_FROM ? 3 : 6) * devicePixelRatio;
    const { left, top, width, height } = plot.bbox;
    const columns = Math.ceil(width) + 1;
    const drawn = new Uint8Array(columns * (Math.ceil(height) + 1));
    eachPoint(plot, seriesIndex, first, last, (x, y) => {
      const atX = plot.valToPos(x, "x", true);
      const atY = plot.valToPos(y, "y", true);
      const pixel = Math.round(atY - top) * columns + Math.round(atX - left);
      if (drawn[pixel]) return;
      drawn[pixel] = 1;
      if (points > ROUND_UP_TO) {
        fill.rect(atX - size / 2, atY - size / 2, size, size);
      } else {
        fill.moveTo(atX + size / 2, atY);
        fill.arc(atX, atY, size / 2, 0, 2 * Math.PI);
      }
    });
    return { fill, stroke: null };
  };
}

function eachPoint(
  plot: uPlot,
  seriesIndex: number,
  first: number,
  last: number,
  visit: (x: number, y: number) => void,
): void {
  const xs = plot.data[0];
  const ys = plot.data[seriesIndex] ?? [];
  for (let index = first; index <= last; index += 1) {
    const x = xs?.[index];
    const y = ys[index];
    if (x !== undefined && y !== undefined && y !== null) visit(x, y);
  }
}
