import { useEffect, useState } from "preact/hooks";
import type { Draft, Option, Problems } from "./connectorForm.ts";
import styles from "./connectors.module.css";
import { OptionField } from "./OptionField.tsx";

interface Props {
  options: readonly Option[];
  draft: Draft;
  initial: Draft;
  problems: Problems;
  onChange: (name: string, value: string) => void;
}

const FOLDED = [
  { section: "advanced", title: "Advanced settings" },
  { section: "general", title: "Limits and behavior of statements" },
] as const;

/** The settings of a type: the main ones, and those that few connectors need, folded. */
export function OptionSections({ options, ...rest }: Props) {
  const of = (section: Option["section"]) => options.filter((option) => option.section === section);
  return (
    <>
      <OptionFields options={of("main")} {...rest} />
      {FOLDED.map(({ section, title }) => (
        <FoldedSection key={section} title={title} options={of(section)} {...rest} />
      ))}
    </>
  );
}

/** Opens by itself if one of its values was refused. */
function FoldedSection({ title, ...fields }: Props & { title: string }) {
  const { options, problems, draft, initial } = fields;
  const [isOpen, setOpen] = useState(false);
  const isRefused = options.some(({ name }) => name in problems.fields);
  useEffect(() => {
    if (isRefused) setOpen(true);
  }, [isRefused]);
  if (options.length === 0) return null;
  const changed = options.filter(({ name }) => draft.values[name] !== initial.values[name]).length;
  return (
    <details class={styles.section} open={isOpen || isRefused} onToggle={(event) => setOpen(event.currentTarget.open)}>
      <summary>
        {title}
        {changed > 0 ? <span class={styles.soft}> · {changed} changed</span> : null}
      </summary>
      <OptionFields {...fields} />
    </details>
  );
}

function OptionFields({ options, draft, initial, problems, onChange }: Props) {
  return (
    <div class={styles.fields}>
      {options.map((option) => (
        <OptionField
          key={option.name}
          option={option}
          value={draft.values[option.name] ?? ""}
          initial={initial.values[option.name] ?? ""}
          problem={problems.fields[option.name]}
          onChange={(value) => onChange(option.name, value)}
        />
      ))}
    </div>
  );
}
