import { Dialog } from "../ui/Dialog.tsx";
import { ErrorMessage, Loading } from "../ui/States.tsx";
import styles from "./EditorView.module.css";
import type { Plan } from "./workspace.ts";

/** How the data source would run a statement. */
export function PlanDialog({ plan, onClose }: { plan: Plan; onClose: () => void }) {
  return (
    <Dialog title="Plan" onClose={onClose} isWide>
      {plan.problem ? <ErrorMessage problem={plan.problem} /> : null}
      {plan.text === null && !plan.problem ? <Loading label="Explaining" /> : null}
      {plan.estimates.map((estimate) => (
        <p key={estimate}>{estimate}</p>
      ))}
      {plan.text === null ? null : (
        // biome-ignore lint/a11y/noNoninteractiveTabindex: a wide plan scrolls by the keyboard too
        <pre class={styles.plan} tabIndex={0}>
          {plan.text}
        </pre>
      )}
    </Dialog>
  );
}
