import { CircleCheck, CircleX } from "lucide-preact";
import { durationText } from "../ui/texts.ts";
import styles from "./connectors.module.css";
import type { TestOutcome } from "./connectors.ts";

const STEPS: Record<TestOutcome["checks"][number]["name"], string> = {
  resolve: "Find the address of the host",
  connect: "Connect",
  login: "Log in",
  statement: "Run a statement",
};
const REASONS: Record<TestOutcome["reason"], string> = {
  "": "",
  dns: "The host name has no address.",
  refused: "The connection was refused.",
  timeout: "There was no answer in time.",
  tls: "The encrypted connection failed.",
  auth: "The login was refused.",
  engine: "The data source reported an error.",
  other: "",
};

/** The outcome of a connection test: each step, and the texts of the server. */
export function TestResult({ outcome }: { outcome: TestOutcome }) {
  const { ok, checks, warnings, reason } = outcome;
  const version = outcome.server_version ? `, version ${outcome.server_version}` : "";
  return (
    <div class={ok ? styles.outcome : `${styles.outcome} ${styles.failed}`} role="status">
      <strong>
        {ok ? "The connection works" : "The connection failed"}
        {version} ({durationText(outcome.duration_ms)})
      </strong>
      {reason && REASONS[reason] ? <div>{REASONS[reason]}</div> : null}
      {warnings ? <div class={styles.finding}>{warnings}</div> : null}
      <ol class={styles.steps} aria-label="Steps of the test">
        {checks.map(({ name, ok: isGood, ms }) => (
          <li key={name} class={isGood ? styles.good : styles.bad}>
            {isGood ? <CircleCheck size={16} aria-hidden /> : <CircleX size={16} aria-hidden />}
            <span>
              {STEPS[name]}: {isGood ? "done" : "failed"}, {durationText(ms)}
            </span>
          </li>
        ))}
      </ol>
    </div>
  );
}
