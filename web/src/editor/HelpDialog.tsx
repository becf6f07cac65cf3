import { Dialog } from "../ui/Dialog.tsx";
import styles from "./EditorView.module.css";

export const modKey = /Mac|iPhone|iPad/.test(navigator.platform) ? "⌘" : "Ctrl";

const SHORTCUTS: ReadonlyArray<readonly [keys: string, effect: string]> = [
  [`${modKey}+Enter`, "Run the selection, or the statement at the cursor"],
  [`${modKey}+Shift+Enter`, "Run all statements in order"],
  [`${modKey}+.`, "Stop the statement"],
  [`${modKey}+Space`, "Complete the word"],
  ["Tab or Enter", "Accept the selected completion"],
  [`${modKey}+Shift+F`, "Format the selection, or the whole text"],
  [`${modKey}+Shift+E`, "Explain the statement"],
  [`${modKey}+S`, "Save as a query"],
  [`${modKey}+/`, "Comment or uncomment lines"],
  [`${modKey}+F`, "Find and replace"],
  [`${modKey}+Z, ${modKey}+Y`, "Undo, redo"],
  ["F8", "Go to the error"],
  ["Alt+Shift+N", "New tab"],
  ["Alt+Page Up, Alt+Page Down", "Previous tab, next tab"],
  ["Escape, then Tab", "Leave the editor with the keyboard"],
  ["F1", "Show this list"],
];

/** The keyboard shortcuts and the parameters of statements. */
export function HelpDialog({ onClose }: { onClose: () => void }) {
  return (
    <Dialog title="Editor help" onClose={onClose}>
      <dl class={styles.shortcuts} tabIndex={0} aria-label="Keyboard shortcuts">
        {SHORTCUTS.map(([keys, effect]) => (
          <div key={keys}>
            <dt>
              <kbd>{keys}</kbd>
            </dt>
            <dd>{effect}</dd>
          </div>
        ))}
      </dl>
      <h3>Parameters</h3>
      <p>
        A marker <code>:name</code> gets a value that is sent separately from the text. <code>${"{name}"}</code> and{" "}
        <code>${"{name=default}"}</code> are replaced in the text itself, so they can also stand for table names.
      </p>
    </Dialog>
  );
}
