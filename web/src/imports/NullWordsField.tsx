import { TextField } from "../ui/Field.tsx";

interface Props {
  value: string;
  placeholder?: string;
  onChange: (words: string) => void;
}

/** The words that are read as NULL, of one column or of the whole file. */
export function NullWordsField({ value, placeholder = "", onChange }: Props) {
  return (
    <TextField
      label="Words for NULL"
      hint="With commas between them: NA, -"
      placeholder={placeholder}
      value={value}
      onInput={(event) => onChange(event.currentTarget.value)}
    />
  );
}
