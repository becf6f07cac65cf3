import {
  CircleCheck,
  CircleSlash,
  CircleX,
  Clock,
  FileText,
  LoaderCircle,
  OctagonX,
  TimerOff,
  Trash2,
} from "lucide-preact";
import type { FunctionComponent } from "preact";
import { connectors } from "../app/config.ts";
import { IconButton } from "../ui/Button.tsx";
import { ago, dateText, durationText } from "../ui/texts.ts";
import styles from "./admin.module.css";
import { isActive, type State, type Statement, stateText } from "./statements.ts";

type Icon = FunctionComponent<{ size?: number; "aria-hidden"?: boolean }>;

const ICONS: Record<State, Icon> = {
  waiting: Clock,
  running: LoaderCircle,
  available: CircleCheck,
  success: CircleCheck,
  failed: CircleX,
  canceled: CircleSlash,
  timed_out: TimerOff,
  expired: Trash2,
  closed: CircleSlash,
};

const COLORS: Partial<Record<State, string | undefined>> = {
  waiting: styles.active,
  running: styles.active,
  available: styles.good,
  success: styles.good,
  failed: styles.bad,
  timed_out: styles.bad,
};

interface Props {
  statements: readonly Statement[];
  onShow: (statement: Statement) => void;
  onStop: (statement: Statement) => void;
}

/** A page of statements. */
export function StatementTable({ statements, onShow, onStop }: Props) {
  return (
    // biome-ignore lint/a11y/noNoninteractiveTabindex: a region that scrolls must be reachable with the keyboard
    <section class={styles.scroller} aria-label="Statements" tabIndex={0}>
      <table class={styles.table}>
        <thead>
          <tr>
            <th scope="col">State</th>
            <th scope="col">User</th>
            <th scope="col">
              <span class="visually-hidden">Actions</span>
            </th>
            <th scope="col">Connector</th>
            <th scope="col">Submitted</th>
            <th scope="col" class={styles.number}>
              Waited
            </th>
            <th scope="col" class={styles.number}>
              Total time
            </th>
            <th scope="col" class={styles.number}>
              Progress
            </th>
            <th scope="col" class={styles.number}>
              Rows
            </th>
            <th scope="col">Instance</th>
          </tr>
        </thead>
        <tbody>
          {statements.map((one) => (
            <Row key={one.id} statement={one} onShow={() => onShow(one)} onStop={() => onStop(one)} />
          ))}
        </tbody>
      </table>
    </section>
  );
}

interface RowProps {
  statement: Statement;
  onShow: () => void;
  onStop: () => void;
}

function Row({ statement: one, onShow, onStop }: RowProps) {
  const name = `the statement of ${one.user} ${ago(one.submitted)}`;
  const connector = connectors.value.find(({ id }) => id === one.connector)?.displayName ?? one.connector;
  return (
    <tr>
      <td>
        <StateCell statement={one} />
      </td>
      <th scope="row" title={one.user}>
        {one.user}
      </th>
      <td class={styles.actions}>
        <IconButton label={`Show ${name}`} onClick={onShow}>
          <FileText size={16} aria-hidden />
        </IconButton>
        <IconButton
          label={`Stop ${name}`}
          kind="danger"
          disabled={!isActive(one.state) || one.cancel_requested}
          onClick={onStop}
        >
          <OctagonX size={16} aria-hidden />
        </IconButton>
      </td>
      <td title={one.connector}>
        {connector}
        {one.is_import ? " (import)" : ""}
      </td>
      <td>
        <time dateTime={one.submitted} title={dateText(one.submitted)}>
          {ago(one.submitted)}
        </time>
      </td>
      <td class={styles.number}>{durationText(one.queued_ms)}</td>
      <td class={styles.number}>{durationText(one.elapsed_ms)}</td>
      <td class={styles.number}>{one.progress}%</td>
      <td class={styles.number}>{one.rows.toLocaleString("en")}</td>
      <td title={one.server ?? ""}>{one.server ?? "none"}</td>
    </tr>
  );
}

function StateCell({ statement }: { statement: Statement }) {
  const Icon = ICONS[statement.state];
  return (
    <span class={`${styles.state} ${COLORS[statement.state] ?? ""}`} title={statement.error_code ?? undefined}>
      <Icon size={16} aria-hidden />
      {stateText(statement)}
    </span>
  );
}
