/** Short messages that a view shows about something that ended, such as an upload. */
import { signal } from "@preact/signals";
import { X } from "lucide-preact";
import { asApiError, isAbort } from "../api/errors.ts";
import { IconButton } from "./Button.tsx";
import styles from "./Toasts.module.css";

interface Toast {
  id: number;
  text: string;
  isBad: boolean;
}

const SHOWN_MS = 6000;
const toasts = signal<readonly Toast[]>([]);
let lastId = 0;

/** Show a message for six seconds. */
export function notify(text: string): void {
  const id = add(text, false);
  setTimeout(() => remove(id), SHOWN_MS);
}

/** Show the message of a failed call until the user closes it. A call that the page itself ended has none. */
export function notifyProblem(problem: unknown): void {
  if (!isAbort(problem)) add(asApiError(problem).message, true);
}

export function clearToasts(): void {
  toasts.value = [];
}

export function Toasts() {
  return (
    <div class={styles.toasts} aria-live="polite">
      {toasts.value.map((toast) => (
        <div key={toast.id} class={toast.isBad ? `${styles.toast} ${styles.bad}` : styles.toast}>
          <div class={styles.text}>{toast.text}</div>
          <IconButton label="Dismiss" onClick={() => remove(toast.id)}>
            <X size={16} aria-hidden />
          </IconButton>
        </div>
      ))}
    </div>
  );
}

function add(text: string, isBad: boolean): number {
  lastId += 1;
  toasts.value = [...toasts.value, { id: lastId, text, isBad }].slice(-4);
  return lastId;
}

function remove(id: number): void {
  toasts.value = toasts.value.filter((one) => one.id !== id);
}
