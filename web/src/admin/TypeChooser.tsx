import { ArrowLeft } from "lucide-preact";
import { useState } from "preact/hooks";
import { at } from "../app/prefix.ts";
import { IconButton } from "../ui/Button.tsx";
import { TextField } from "../ui/Field.tsx";
import { EmptyState, ErrorMessage, Loading } from "../ui/States.tsx";
import { useLoaded } from "../ui/useLoaded.ts";
import styles from "./connectors.module.css";
import { type ConnectorType, connectorTypes } from "./connectors.ts";

/** The types of connectors, of which one is chosen. Those that this server runs come first. */
export function TypeChooser({ onClose }: { onClose: () => void }) {
  const { value, problem, reload } = useLoaded("types", connectorTypes);
  const [text, setText] = useState("");
  const found = (value ?? []).filter((type) => matches(type, text));
  const runnable = found.filter((type) => type.is_runnable);
  const others = found.filter((type) => !type.is_runnable);
  return (
    <>
      <div class={styles.title}>
        <IconButton label="Back to the list" onClick={onClose}>
          <ArrowLeft size={18} aria-hidden />
        </IconButton>
        <h2>New connector</h2>
      </div>
      <div class={styles.search}>
        <TextField
          label="Search for a type"
          type="search"
          value={text}
          autofocus
          onInput={(event) => setText(event.currentTarget.value)}
        />
      </div>
      {problem ? <ErrorMessage problem={problem} onRetry={reload} /> : null}
      {value === null && !problem ? <Loading label="Loading the types" /> : null}
      {value && found.length === 0 ? <EmptyState title="No type matches." /> : null}
      <TypeList label="Types that this server runs" types={runnable} />
      {others.length > 0 ? (
        <details class={styles.section} open={text !== "" && runnable.length === 0}>
          <summary>
            {others.length} more, which need a driver that is not installed here, or can only be stored or tested
          </summary>
          <TypeList label="Other types" types={others} />
        </details>
      ) : null}
    </>
  );
}

function TypeList({ label, types }: { label: string; types: readonly ConnectorType[] }) {
  if (types.length === 0) return null;
  return (
    <ul class={styles.types} aria-label={label}>
      {types.map((type) => {
        const key = `${type.dialect}/${type.interface}`;
        return (
          <li key={key}>
            <a class={styles.type} href={at(`/admin/connectors?new=${encodeURIComponent(key)}`)}>
              <strong>{type.nice_name}</strong>
              <span class={styles.soft}>{[type.interface, type.description].filter(Boolean).join(" · ")}</span>
            </a>
          </li>
        );
      })}
    </ul>
  );
}

/** Return whether all words of the text are in what the list shows of a type. */
function matches(type: ConnectorType, text: string): boolean {
  const shown = `${type.nice_name} ${type.dialect} ${type.interface} ${type.description}`.toLowerCase();
  return text
    .toLowerCase()
    .split(/\s+/)
    .every((word) => shown.includes(word));
}
