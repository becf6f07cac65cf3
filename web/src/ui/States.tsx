/** What a list or a view shows while it has no content: it is empty, loading, or failed. */
import type { ComponentChildren } from "preact";
import { asApiError } from "../api/errors.ts";
import { Button } from "./Button.tsx";
import styles from "./States.module.css";

export function EmptyState({ title, children }: { title: string; children?: ComponentChildren }) {
  return (
    <div class={styles.state}>
      <div class={styles.title}>{title}</div>
      {children ? <div class={styles.message}>{children}</div> : null}
    </div>
  );
}

export function Loading({ label = "Loading" }: { label?: string }) {
  return (
    <div class={styles.state} role="status">
      <div class={styles.spinner} />
      <span>{label}…</span>
    </div>
  );
}

/** The message of a failed call, with a button that repeats it. */
export function ErrorMessage({ problem, onRetry }: { problem: unknown; onRetry?: () => void }) {
  return (
    <div class={styles.error} role="alert">
      <div class={styles.errorText}>{asApiError(problem).message}</div>
      {onRetry ? (
        <Button kind="quiet" onClick={onRetry}>
          Try again
        </Button>
      ) : null}
    </div>
  );
}
