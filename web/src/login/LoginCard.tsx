import type { ComponentChildren } from "preact";
import icon from "../app/icon.svg";
import styles from "./LoginView.module.css";

/** The card in the middle of the login pages. */
export function LoginCard({ children }: { children: ComponentChildren }) {
  return (
    <main class={styles.page}>
      <div class={styles.card}>
        <div class={styles.brand}>
          <img src={icon} alt="" width={36} height={36} />
          <h1>Query Server</h1>
        </div>
        {children}
      </div>
    </main>
  );
}

/** What went wrong with a login. */
export function LoginProblem({ text }: { text: string }) {
  return (
    <div class={styles.problem} role="alert">
      {text}
    </div>
  );
}
