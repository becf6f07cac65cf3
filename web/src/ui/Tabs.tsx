import { useRef } from "preact/hooks";
import styles from "./Tabs.module.css";

interface Props<Key extends string> {
  /** The name of the list for screen readers. */
  label: string;
  tabs: ReadonlyArray<{ key: Key; label: string }>;
  selected: Key;
  onSelect: (key: Key) => void;
}

/** A list of tabs. The caller shows the selected panel with `role="tabpanel"`. Arrow keys, Home and End move. */
export function Tabs<Key extends string>({ label, tabs, selected, onSelect }: Props<Key>) {
  const list = useRef<HTMLDivElement>(null);
  const move = (event: KeyboardEvent) => {
    const now = tabs.findIndex((tab) => tab.key === selected);
    const to = { ArrowRight: now + 1, ArrowLeft: now - 1, Home: 0, End: tabs.length - 1 }[event.key];
    if (to === undefined) return;
    event.preventDefault();
    const index = (to + tabs.length) % tabs.length;
    const tab = tabs[index];
    if (tab) onSelect(tab.key);
    list.current?.querySelectorAll("button")[index]?.focus();
  };
  return (
    <div ref={list} class={styles.tabs} role="tablist" aria-label={label} onKeyDown={move}>
      {tabs.map((tab) => (
        <button
          key={tab.key}
          type="button"
          role="tab"
          class={styles.tab}
          aria-selected={tab.key === selected}
          tabIndex={tab.key === selected ? 0 : -1}
          onClick={() => onSelect(tab.key)}
        >
          {tab.label}
        </button>
      ))}
    </div>
  );
}
