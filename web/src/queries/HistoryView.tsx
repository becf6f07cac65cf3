import { HistoryPanel } from "./HistoryPanel.tsx";
import styles from "./queries.module.css";

export function HistoryView() {
  return (
    <div class={styles.view}>
      <h1>History</h1>
      <div class={styles.panel}>
        <HistoryPanel />
      </div>
    </div>
  );
}
