import { Button } from "../ui/Button.tsx";
import { Dialog } from "../ui/Dialog.tsx";
import { CheckField, TextField } from "../ui/Field.tsx";
import type { ColumnEdit, EditedColumn } from "./columns.ts";
import { NullWordsField } from "./NullWordsField.tsx";

interface Props {
  column: EditedColumn;
  onEdit: (edit: ColumnEdit) => void;
  onClose: () => void;
}

/** How the cells of one column are read. */
export function ColumnDialog({ column, onEdit, onClose }: Props) {
  return (
    <Dialog
      title={`Column ${column.name}`}
      onClose={onClose}
      actions={
        <Button kind="primary" onClick={onClose}>
          Done
        </Button>
      }
    >
      <TextField
        label="Format of dates or numbers"
        placeholder="as ISO dates and plain numbers"
        hint="Dates as in %d/%m/%Y or %b %d %Y %H:%M; numbers as one of 1234.5 1234,5 1,234.5 1.234,5 1 234,5 1'234.5"
        value={column.format}
        onInput={(event) => onEdit({ format: event.currentTarget.value })}
      />
      <NullWordsField value={column.nullWords} onChange={(nullWords) => onEdit({ nullWords })} />
      <CheckField
        label="A value is required (NOT NULL); rows without one are rejected"
        checked={column.isRequired}
        onChange={(event) => onEdit({ isRequired: event.currentTarget.checked })}
      />
    </Dialog>
  );
}
