import styles from "./people.module.css";

interface Props {
  legend: string;
  hint?: string;
  options: ReadonlyArray<{ value: string; label: string }>;
  chosen: readonly string[];
  onChange: (chosen: string[]) => void;
}

/** Several choices, of which any number may be made. */
export function CheckList({ legend, hint, options, chosen, onChange }: Props) {
  const toggle = (value: string, isChosen: boolean) =>
    onChange(isChosen ? [...chosen, value] : chosen.filter((one) => one !== value));
  return (
    <fieldset class={styles.choices}>
      <legend>{legend}</legend>
      {hint ? <p class={styles.hint}>{hint}</p> : null}
      <div class={styles.options}>
        {options.map(({ value, label }) => (
          <label key={value} class={styles.option} title={value}>
            <input
              type="checkbox"
              checked={chosen.includes(value)}
              onChange={(event) => toggle(value, event.currentTarget.checked)}
            />
            <span>{label}</span>
          </label>
        ))}
      </div>
    </fieldset>
  );
}
