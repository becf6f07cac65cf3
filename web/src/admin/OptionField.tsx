import type { ComponentChildren } from "preact";
import { AreaField, CheckField, SelectField, TextField } from "../ui/Field.tsx";
import { defaultText, labelOf, type Option } from "./connectorForm.ts";
import { SecretField } from "./SecretField.tsx";
import { UrlField } from "./UrlField.tsx";

interface Props {
  option: Option;
  value: string;
  /** The value when the form was opened. */
  initial: string;
  problem: string | undefined;
  onChange: (value: string) => void;
}

const YES_NO = [
  { value: "true", label: "Yes" },
  { value: "false", label: "No" },
];

/** The field of a setting, by the kind of its option. */
export function OptionField({ option, value, initial, problem, onChange }: Props) {
  const label = labelOf(option.name);
  const about = {
    label: option.required ? `${label} (required)` : label,
    hint: helpOf(option.description),
    ...(problem === undefined ? {} : { problem }),
  };
  const empty = defaultText(option);
  switch (option.kind) {
    case "boolean":
      if (option.default === null) {
        return <SelectField {...about} value={value} options={withDefault(YES_NO)} onChange={onChange} />;
      }
      return (
        <CheckField
          {...about}
          checked={value === "true"}
          onChange={(event) => onChange(String(event.currentTarget.checked))}
        />
      );
    case "choice":
      return <SelectField {...about} value={value} options={choicesOf(option)} onChange={onChange} />;
    case "multiline":
      return <AreaField {...about} value={value} rows={4} onInput={onChange} />;
    case "secret":
      return <SecretField {...about} value={value} initial={initial} onChange={onChange} />;
    case "url":
      return <UrlField {...about} example={empty} value={value} initial={initial} onChange={onChange} />;
    default:
      return (
        <TextField
          {...about}
          value={value}
          autocomplete="off"
          placeholder={empty || (option.section === "general" ? "As the server’s settings say" : "")}
          {...(option.kind === "integer" ? { inputmode: "numeric" as const } : {})}
          onInput={(event) => onChange(event.currentTarget.value)}
        />
      );
  }
}

function choicesOf({ choices, default: value }: Option) {
  const words = choices.map((word) => ({ value: word, label: word || "By the other settings" }));
  return value === null ? withDefault(words) : words;
}

function withDefault(choices: ReadonlyArray<{ value: string; label: string }>) {
  return [{ value: "", label: "As the server’s settings say" }, ...choices];
}

/** Return a description as text, with code where it has backticks. */
export function helpOf(description: string): ComponentChildren {
  if (description === "") return null;
  return description
    .split("`")
    .map((part, index) => (index % 2 === 1 ? <code key={`${index} ${part}`}>{part}</code> : part));
}
