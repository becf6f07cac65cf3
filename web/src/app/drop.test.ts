import { afterEach, beforeEach, expect, test, vi } from "vitest";
import { droppedFile, isDraggingFile, watchDrops } from "./drop.ts";

const onFile = vi.fn();
let stop: () => void;

beforeEach(() => {
  onFile.mockReset();
  stop = watchDrops(onFile);
});

afterEach(() => {
  stop();
  droppedFile.value = null;
  document.body.replaceChildren();
});

function fire(type: string, target: EventTarget, name: string): Event {
  const event = new Event(type, { bubbles: true, cancelable: true, composed: true });
  const files = [new File(["a,b"], name)];
  Object.defineProperty(event, "dataTransfer", { value: { types: ["Files"], files, items: [], dropEffect: "none" } });
  target.dispatchEvent(event);
  return event;
}

function element(className = ""): HTMLElement {
  const made = document.createElement("div");
  made.className = className;
  document.body.append(made);
  return made;
}

test("a file that is dropped on the page waits for the import, and the browser does not open it", () => {
  expect(fire("dragover", element(), "a.csv").defaultPrevented).toBe(true);
  expect(isDraggingFile.value).toBe(true);
  expect(fire("drop", element(), "a.csv").defaultPrevented).toBe(true);
  expect(isDraggingFile.value).toBe(false);
  expect(droppedFile.value?.name).toBe("a.csv");
  expect(onFile).toHaveBeenCalledOnce();
});

test("a view that takes files keeps them", () => {
  const view = element();
  view.addEventListener("dragover", (event) => event.preventDefault());
  view.addEventListener("drop", (event) => event.preventDefault());
  fire("dragover", view, "a.csv");
  expect(isDraggingFile.value).toBe(false);
  fire("drop", view, "a.csv");
  expect(droppedFile.value).toBeNull();
});

test("the editor keeps scripts, and tables are imported", () => {
  const editor = element("cm-editor");
  const inserted = vi.fn((event: Event) => event.preventDefault());
  editor.addEventListener("drop", inserted);
  fire("drop", editor, "report.sql");
  expect(inserted).toHaveBeenCalledOnce();
  expect(droppedFile.value).toBeNull();
  fire("drop", editor, "sales.xlsx");
  expect(inserted).toHaveBeenCalledOnce();
  expect(droppedFile.value?.name).toBe("sales.xlsx");
});

test("text that is dragged is not taken", () => {
  const event = new Event("drop", { bubbles: true, cancelable: true });
  Object.defineProperty(event, "dataTransfer", { value: { types: ["text/plain"], files: [], items: [] } });
  element().dispatchEvent(event);
  expect(event.defaultPrevented).toBe(false);
});
