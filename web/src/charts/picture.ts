/** A chart as a PNG file, with its title and the names of its series. */
import type uPlot from "uplot";
import type { Look } from "./look.ts";

const MARGIN = 16;
const LINE = 24;

/** Save the chart as it is shown now, without the series that are hidden. */
export async function savePicture(plot: uPlot, title: string, labels: readonly string[], look: Look): Promise<void> {
  const canvas = picture(plot, title, labels, look);
  const blob = await new Promise<Blob | null>((resolve) => canvas.toBlob(resolve, "image/png"));
  if (!blob) throw new Error("The browser could not make a picture of this size.");
  const link = document.createElement("a");
  link.href = URL.createObjectURL(blob);
  link.download = `${title.replaceAll(/[^\p{L}\p{N} ._()-]+/gu, "_").slice(0, 100) || "chart"}.png`;
  link.click();
  URL.revokeObjectURL(link.href);
}

function picture(plot: uPlot, title: string, labels: readonly string[], look: Look): HTMLCanvasElement {
  const source = plot.ctx.canvas;
  const scale = source.width / plot.width;
  const canvas = document.createElement("canvas");
  canvas.width = source.width + 2 * MARGIN * scale;
  canvas.height = source.height + (2 * MARGIN + 2 * LINE) * scale;
  const context = canvas.getContext("2d");
  if (!context) return canvas;
  context.fillStyle = look.surface;
  context.fillRect(0, 0, canvas.width, canvas.height);
  context.drawImage(source, MARGIN * scale, (MARGIN + LINE) * scale);
  context.scale(scale, scale);
  context.textBaseline = "middle";
  context.fillStyle = look.text;
  context.font = look.font.replace("12px", "600 15px");
  context.fillText(title, MARGIN, MARGIN + LINE / 2 - 4);
  context.font = look.font;
  let left = MARGIN;
  const middle = plot.height + MARGIN + LINE + LINE / 2;
  labels.forEach((label, index) => {
    if (!plot.series[index + 1]?.show) return;
    context.fillStyle = look.series[index % look.series.length] ?? look.text;
    context.fillRect(left, middle - 5, 10, 10);
    context.fillStyle = look.text;
    context.fillText(label, left + 16, middle);
    left += context.measureText(label).width + 36;
  });
  return canvas;
}
