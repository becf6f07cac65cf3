import { ChevronRight } from "lucide-preact";
import { addressOf, crumbsOf } from "./paths.ts";
import styles from "./picker.module.css";

interface Props {
  path: string;
  /** Without it, the crumbs are links to the view of each directory. */
  onOpen?: (path: string) => void;
}

/** The directories from the root to a path; each but the last one can be opened. */
export function Crumbs({ path, onOpen }: Props) {
  const crumbs = crumbsOf(path);
  return (
    <nav class={styles.crumbs} aria-label="Path">
      <ol>
        {crumbs.map((crumb, index) => (
          <li key={crumb.path}>
            {index > 0 ? <ChevronRight size={14} aria-hidden /> : null}
            <Step path={crumb.path} label={crumb.label} isLast={index === crumbs.length - 1} onOpen={onOpen} />
          </li>
        ))}
      </ol>
    </nav>
  );
}

interface StepProps {
  path: string;
  label: string;
  isLast: boolean;
  onOpen: ((path: string) => void) | undefined;
}

function Step({ path, label, isLast, onOpen }: StepProps) {
  if (isLast) return <span aria-current="page">{label}</span>;
  if (!onOpen) return <a href={addressOf(path)}>{label}</a>;
  return (
    <button type="button" onClick={() => onOpen(path)}>
      {label}
    </button>
  );
}
