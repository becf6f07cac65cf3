import type { ComponentChildren, InputHTMLAttributes, TargetedEvent, TargetedKeyboardEvent } from "preact";
import { useId } from "preact/hooks";
import styles from "./controls.module.css";

interface Described {
  label: string;
  hint?: ComponentChildren;
  /** What is wrong with the value; shown below the input and linked to it. */
  problem?: string;
}

interface InputProps {
  name?: string;
  value?: string;
  defaultValue?: string;
  placeholder?: string;
  autocomplete?: string;
  required?: boolean;
  disabled?: boolean;
  readonly?: boolean;
  autofocus?: boolean;
  inputmode?: "numeric";
  /** The id of a `datalist` with suggestions. */
  list?: string;
  onInput?: (event: TargetedEvent<HTMLInputElement>) => void;
  onKeyDown?: (event: TargetedKeyboardEvent<HTMLInputElement>) => void;
}

interface TextProps extends Described, InputProps {
  type?: "text" | "password" | "number" | "search" | "date" | "email" | "url";
}

interface CheckProps extends Described {
  name?: string;
  checked?: boolean;
  defaultChecked?: boolean;
  disabled?: boolean;
  onChange?: (event: TargetedEvent<HTMLInputElement>) => void;
}

interface AreaProps extends Described {
  value: string;
  rows: number;
  placeholder?: string;
  onInput: (text: string) => void;
}

type SelectProps = Described & {
  value: string;
  options: ReadonlyArray<{ value: string; label: string }>;
  onChange: (value: string) => void;
  disabled?: boolean;
};

/** A labelled text input. */
export function TextField({ label, hint, problem, type = "text", ...rest }: TextProps) {
  const id = useId();
  // Preact's types list the permitted roles of each input type, and cannot match a type that is known at run time only.
  const input = { ...rest, type } as InputHTMLAttributes;
  return (
    <Labelled {...{ id, label, hint, problem }}>
      <input
        id={id}
        class={styles.input}
        aria-invalid={problem !== undefined}
        aria-describedby={hint || problem ? `${id}-about` : undefined}
        {...input}
      />
    </Labelled>
  );
}

/** A labelled choice. */
export function SelectField({ label, hint, problem, value, options, onChange, disabled = false }: SelectProps) {
  const id = useId();
  return (
    <Labelled {...{ id, label, hint, problem }}>
      <select
        id={id}
        class={styles.input}
        disabled={disabled}
        value={value}
        aria-invalid={problem !== undefined}
        aria-describedby={hint || problem ? `${id}-about` : undefined}
        onChange={(event) => onChange(event.currentTarget.value)}
      >
        {options.map((one) => (
          <option key={one.value} value={one.value}>
            {one.label}
          </option>
        ))}
      </select>
    </Labelled>
  );
}

/** A labelled text of several lines. */
export function AreaField({ label, hint, problem, value, rows, placeholder = "", onInput }: AreaProps) {
  const id = useId();
  return (
    <Labelled {...{ id, label, hint, problem }}>
      <textarea
        id={id}
        class={styles.input}
        rows={rows}
        value={value}
        placeholder={placeholder}
        aria-invalid={problem !== undefined}
        aria-describedby={hint || problem ? `${id}-about` : undefined}
        onInput={(event) => onInput(event.currentTarget.value)}
      />
    </Labelled>
  );
}

/** A labelled check box. */
export function CheckField({ label, hint, problem, ...input }: CheckProps) {
  const id = useId();
  const isDescribed = Boolean(hint || problem);
  const box = (
    <label class={styles.check}>
      <input
        type="checkbox"
        aria-invalid={problem === undefined ? undefined : true}
        aria-describedby={isDescribed ? `${id}-about` : undefined}
        {...input}
      />
      {label}
    </label>
  );
  if (!isDescribed) return box;
  return (
    <div class={styles.field}>
      {box}
      <About id={id} hint={hint} problem={problem} />
    </div>
  );
}

interface LabelledProps extends AboutProps {
  label: string;
  children: ComponentChildren;
}

/** A control below its label, and above its hint and what is wrong with its value. */
function Labelled({ label, children, ...about }: LabelledProps) {
  return (
    <div class={styles.field}>
      <label class={styles.label} for={about.id}>
        {label}
      </label>
      {children}
      <About {...about} />
    </div>
  );
}

interface AboutProps {
  /** The id of the control; the texts below it have the id with `-about`. */
  id: string;
  hint: ComponentChildren;
  problem: string | undefined;
}

function About({ id, hint, problem }: AboutProps) {
  if (!hint && !problem) return null;
  return (
    <div id={`${id}-about`}>
      {hint ? <div class={styles.hint}>{hint}</div> : null}
      {problem ? <div class={styles.problem}>{problem}</div> : null}
    </div>
  );
}
