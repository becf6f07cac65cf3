import { X } from "lucide-preact";
import type { ComponentChildren } from "preact";
import { useEffect, useId, useRef } from "preact/hooks";
import { IconButton } from "./Button.tsx";
import styles from "./Dialog.module.css";

interface Props {
  title: string;
  onClose: () => void;
  /** Buttons at the foot; the last one is the main action. */
  actions?: ComponentChildren;
  isWide?: boolean;
  children: ComponentChildren;
}

/** A modal dialog. Escape and the close button call `onClose`. The focus stays inside, and returns to the opener after. */
export function Dialog({ title, onClose, actions, isWide = false, children }: Props) {
  const element = useRef<HTMLDialogElement>(null);
  const titleId = useId();
  useEffect(() => {
    const dialog = element.current;
    const opener = focused();
    dialog?.showModal();
    return () => {
      dialog?.close();
      // The browser returns the focus only if the dialog is still in the page.
      if (opener?.isConnected) opener.focus();
    };
  }, []);
  return (
    <dialog
      ref={element}
      class={isWide ? `${styles.dialog} ${styles.wide}` : styles.dialog}
      aria-labelledby={titleId}
      onCancel={(event) => {
        event.preventDefault();
        onClose();
      }}
    >
      <div class={styles.head}>
        <h2 id={titleId}>{title}</h2>
        <IconButton label="Close" onClick={onClose}>
          <X size={18} aria-hidden />
        </IconButton>
      </div>
      <div class={styles.body}>{children}</div>
      {actions ? <div class={styles.foot}>{actions}</div> : null}
    </dialog>
  );
}

/** Return the element that has the focus, also inside the shadow root of the editor. */
function focused(): HTMLElement | null {
  const outer = document.activeElement;
  const inner = outer?.shadowRoot?.activeElement ?? outer;
  return inner instanceof HTMLElement && inner !== document.body ? inner : null;
}
