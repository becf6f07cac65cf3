import { Button } from "../ui/Button.tsx";
import { numberText } from "../ui/texts.ts";
import styles from "./admin.module.css";

interface Props {
  /** From 1. */
  page: number;
  size: number;
  count: number;
  onPage: (page: number) => void;
}

/** Buttons to the pages of a list, and which entries are shown; nothing if there is one page. */
export function Pages({ page, size, count, onPage }: Props) {
  if (count <= size && page === 1) return null;
  const first = Math.min((page - 1) * size + 1, count);
  const last = Math.min(page * size, count);
  return (
    <div class={styles.bar}>
      <Button onClick={() => onPage(page - 1)} disabled={page === 1}>
        Back
      </Button>
      <Button onClick={() => onPage(page + 1)} disabled={last >= count}>
        Next
      </Button>
      <span class={styles.soft}>
        {numberText(first)} to {numberText(last)} of {numberText(count)}
      </span>
    </div>
  );
}
