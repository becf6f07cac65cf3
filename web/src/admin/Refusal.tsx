import styles from "./connectors.module.css";

/** Why a group of fields was refused. It takes the focus in place of a field. */
export function Refusal({ text }: { text: string }) {
  return (
    <div class={styles.problem} tabIndex={-1} data-refused>
      {text}
    </div>
  );
}
