import type { ComponentChildren } from "preact";
import { useCallback, useRef, useState } from "preact/hooks";
import { browserStorage } from "../app/storage.ts";
import styles from "./SplitPane.module.css";

interface Props {
  /** The name under which the size is stored in this browser. */
  name: string;
  /** The name of the divider for screen readers. */
  label: string;
  /** `row`: side by side; `column`: one above the other. */
  direction: "row" | "column";
  /** Which pane has the stored size; the other one takes the rest. */
  sized: "first" | "last";
  /** The size until the user changes it, in pixels or as a share of the whole (below 1). */
  initial: number;
  /** The smallest size of both panes in pixels. */
  min?: number;
  /** Whether the sized pane and the divider are hidden. */
  isCollapsed?: boolean;
  first: ComponentChildren;
  last: ComponentChildren;
}

const STEP_PX = 24;
const DEFAULT_MIN_PX = 120;

/** Two panes with a divider that is moved by the pointer or by arrow keys. A double click restores the initial size. */
export function SplitPane({
  name,
  label,
  direction,
  sized,
  initial,
  isCollapsed = false,
  first,
  last,
  ...rest
}: Props) {
  const min = rest.min ?? DEFAULT_MIN_PX;
  const root = useRef<HTMLDivElement>(null);
  const [stored, setStored] = useState(() => storedSize(name));
  const isRow = direction === "row";
  const resize = useCallback(
    (size: number | null) => {
      const whole = root.current?.[isRow ? "clientWidth" : "clientHeight"] ?? 0;
      const next = size === null ? null : Math.round(Math.max(min, Math.min(size, whole - min)));
      setStored(next);
      store(name, next);
    },
    [name, min, isRow],
  );
  const size = stored ?? initial;
  const sizedPane = size < 1 ? `${size * 100}%` : `${size}px`;
  // The other pane keeps its smallest size also when the window has become smaller since.
  const track = `minmax(0, min(${sizedPane}, 100% - ${min}px))`;
  const tracks = sized === "first" ? `${track} auto minmax(0, 1fr)` : `minmax(0, 1fr) auto ${track}`;
  const template = isCollapsed ? "minmax(0, 1fr)" : tracks;
  return (
    <div
      ref={root}
      class={`${styles.split} ${isRow ? styles.row : styles.column}`}
      style={isRow ? { gridTemplateColumns: template } : { gridTemplateRows: template }}
    >
      {isCollapsed && sized === "first" ? null : <div class={styles.pane}>{first}</div>}
      {isCollapsed ? null : <Divider root={root} {...{ label, isRow, sized, resize, min }} />}
      {isCollapsed && sized === "last" ? null : <div class={styles.pane}>{last}</div>}
    </div>
  );
}

interface DividerProps {
  root: { current: HTMLDivElement | null };
  label: string;
  isRow: boolean;
  sized: Props["sized"];
  min: number;
  resize: (size: number | null) => void;
}

function Divider({ root, label, isRow, sized, min, resize }: DividerProps) {
  const element = useRef<HTMLDivElement>(null);
  const pane = () =>
    sized === "first" ? element.current?.previousElementSibling : element.current?.nextElementSibling;
  const side = isRow ? "clientWidth" : "clientHeight";
  const measured = () => pane()?.[side] ?? 0;
  const whole = () => root.current?.[side] ?? 0;
  const drag = (event: PointerEvent) => {
    if (!element.current?.hasPointerCapture(event.pointerId) || !root.current) return;
    const box = root.current.getBoundingClientRect();
    const at = isRow ? event.clientX - box.left : event.clientY - box.top;
    resize(sized === "first" ? at : (isRow ? box.width : box.height) - at);
  };
  const move = (event: KeyboardEvent) => {
    const forward = isRow ? "ArrowRight" : "ArrowDown";
    const step = { [forward]: STEP_PX, [isRow ? "ArrowLeft" : "ArrowUp"]: -STEP_PX }[event.key];
    const edge = { Home: min, End: Number.MAX_SAFE_INTEGER }[event.key];
    if (step === undefined && edge === undefined) return;
    event.preventDefault();
    resize(edge ?? measured() + (sized === "first" ? 1 : -1) * (step ?? 0));
  };
  return (
    // biome-ignore lint/a11y/useSemanticElements: an <hr> is no divider that moves
    <div
      ref={element}
      class={styles.divider}
      role="separator"
      tabIndex={0}
      aria-label={label}
      aria-orientation={isRow ? "vertical" : "horizontal"}
      aria-valuemin={min}
      aria-valuemax={Math.max(min, whole() - min)}
      aria-valuenow={measured()}
      onPointerDown={(event) => element.current?.setPointerCapture(event.pointerId)}
      onPointerMove={drag}
      onDblClick={() => resize(null)}
      onKeyDown={move}
    />
  );
}

function key(name: string): string {
  return `queryserver.layout.${name}`;
}

function storedSize(name: string): number | null {
  const size = Number.parseInt(browserStorage.get(key(name)) ?? "", 10);
  return Number.isNaN(size) ? null : size;
}

function store(name: string, size: number | null): void {
  if (size === null) browserStorage.remove(key(name));
  else browserStorage.set(key(name), `${size}`);
}
