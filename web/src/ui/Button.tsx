import type { ButtonHTMLAttributes, ComponentChildren } from "preact";
import styles from "./controls.module.css";

type Kind = "normal" | "primary" | "danger" | "quiet";
type Attributes = Omit<ButtonHTMLAttributes<HTMLButtonElement>, "class" | "className" | "icon">;

interface Props extends Attributes {
  kind?: Kind;
  children: ComponentChildren;
}

export function Button({ kind = "normal", type = "button", children, ...rest }: Props) {
  return (
    <button type={type} class={`${styles.button} ${styles[kind] ?? ""}`} {...rest}>
      {children}
    </button>
  );
}

interface IconButtonProps extends Attributes {
  /** The name for screen readers, shown as a tooltip too. */
  label: string;
  kind?: Kind;
  children: ComponentChildren;
}

/** A square button whose only content is an icon. */
export function IconButton({ label, kind = "quiet", type = "button", children, ...rest }: IconButtonProps) {
  return (
    <button
      type={type}
      class={`${styles.button} ${styles.icon} ${styles[kind] ?? ""}`}
      aria-label={label}
      title={label}
      {...rest}
    >
      {children}
    </button>
  );
}
