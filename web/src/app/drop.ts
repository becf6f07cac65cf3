/**
 * Files that are dropped on the page. A view that takes files itself, such as Files, calls `preventDefault` on
 * `dragover` and `drop`; all other files open the import.
 */
import { signal } from "@preact/signals";
import { notifyProblem } from "../ui/Toasts.tsx";

/** The dropped file that waits for the import view, which sets this back to null. */
export const droppedFile = signal<File | null>(null);
/** Whether files are dragged over a part of the page that does not take them itself. */
export const isDraggingFile = signal(false);

/** The editor inserts the text of these files; all others are tables to import. */
const SCRIPT = /\.(sql|hql|txt)$/i;

/** Take the files that are dropped anywhere on the page; `onFile` is called after `droppedFile` was set. */
export function watchDrops(onFile: () => void): () => void {
  const over = (event: DragEvent) => {
    if (!hasFiles(event)) return;
    isDraggingFile.value = !event.defaultPrevented;
    if (event.defaultPrevented) return;
    // Without this, the browser would leave the page and show the file.
    event.preventDefault();
    if (event.dataTransfer) event.dataTransfer.dropEffect = "copy";
  };
  const leave = (event: DragEvent) => {
    if (event.relatedTarget === null) isDraggingFile.value = false;
  };
  const take = (event: DragEvent) => {
    event.preventDefault();
    event.stopPropagation();
    const file = fileOf(event);
    if (file === null) return;
    droppedFile.value = file;
    onFile();
  };
  const drop = (event: DragEvent) => {
    isDraggingFile.value = false;
    if (hasFiles(event) && !event.defaultPrevented) take(event);
  };
  const dropOnEditor = (event: DragEvent) => {
    isDraggingFile.value = false;
    const name = event.dataTransfer?.files[0]?.name ?? "";
    if (hasFiles(event) && isOverEditor(event) && !SCRIPT.test(name)) take(event);
  };
  window.addEventListener("dragover", over);
  window.addEventListener("dragleave", leave);
  window.addEventListener("drop", drop);
  window.addEventListener("drop", dropOnEditor, { capture: true });
  return () => {
    isDraggingFile.value = false;
    window.removeEventListener("dragover", over);
    window.removeEventListener("dragleave", leave);
    window.removeEventListener("drop", drop);
    window.removeEventListener("drop", dropOnEditor, { capture: true });
  };
}

function hasFiles(event: DragEvent): boolean {
  return event.dataTransfer?.types.includes("Files") ?? false;
}

/** Return whether the event is above CodeMirror, which would insert the content of a file as text. */
function isOverEditor(event: DragEvent): boolean {
  return event.composedPath().some((target) => target instanceof Element && target.classList.contains("cm-editor"));
}

function fileOf({ dataTransfer }: DragEvent): File | null {
  const item = [...(dataTransfer?.items ?? [])].find(({ kind }) => kind === "file");
  if (item?.webkitGetAsEntry()?.isDirectory) {
    notifyProblem(new Error("A folder cannot be imported. Drop a file."));
    return null;
  }
  return dataTransfer?.files[0] ?? null;
}
