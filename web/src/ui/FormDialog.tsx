import type { ComponentChildren } from "preact";
import { useId } from "preact/hooks";
import { Button } from "./Button.tsx";
import { Dialog } from "./Dialog.tsx";
import styles from "./FormDialog.module.css";
import { ErrorMessage } from "./States.tsx";
import { useAction } from "./useAction.ts";

interface Props {
  title: string;
  /** The text of the button that submits. */
  action: string;
  isDanger?: boolean;
  /** Whether what was entered is not enough yet. */
  isDisabled?: boolean;
  /** The dialog closes after it; if it rejects, the dialog stays and shows why. */
  onSubmit: () => unknown;
  onClose: () => void;
  children: ComponentChildren;
}

/** A dialog with values to enter or a change to confirm. The button and Enter in a field submit it. */
export function FormDialog({
  title,
  action,
  isDanger = false,
  isDisabled = false,
  onSubmit,
  onClose,
  children,
}: Props) {
  const id = useId();
  const { isBusy, problem, run } = useAction();
  const submit = (event: Event) => {
    event.preventDefault();
    if (isBusy || isDisabled) return;
    run(async () => {
      await onSubmit();
      onClose();
    });
  };
  return (
    <Dialog
      title={title}
      onClose={onClose}
      actions={
        <>
          <Button onClick={onClose}>Cancel</Button>
          <Button kind={isDanger ? "danger" : "primary"} type="submit" form={id} disabled={isBusy || isDisabled}>
            {action}
          </Button>
        </>
      }
    >
      <form id={id} class={styles.fields} onSubmit={submit}>
        {children}
      </form>
      {problem ? <ErrorMessage problem={problem} /> : null}
    </Dialog>
  );
}
