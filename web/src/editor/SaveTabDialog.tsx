import { type Draft, SaveDialog } from "../queries/SaveDialog.tsx";
import { notify } from "../ui/Toasts.tsx";
import { type ParameterValue, parameterFields, TYPES } from "./sql/parameters.ts";
import type { EditorTab } from "./tabs.ts";
import { connectorOf } from "./workspace.ts";

/** Save the text of a tab as a query, or as a new version of the one that it shows. */
export function SaveTabDialog({ tab, onClose }: { tab: EditorTab; onClose: () => void }) {
  return (
    <SaveDialog
      draft={draftOf(tab)}
      onClose={onClose}
      onSaved={({ uuid, name, version }) => {
        tab.update({ document: uuid, documentVersion: version, title: name });
        notify(`Saved as ${name}.`);
        onClose();
      }}
    />
  );
}

function draftOf(tab: EditorTab): Draft {
  const { text, title, database, document, documentVersion, parameters } = tab.content.peek();
  const connector = connectorOf(tab.content.peek());
  // The server knows the markers of a saved query, and variables are a part of its text.
  const markers = parameterFields(text, connector?.dialect ?? "").filter(({ isVariable }) => !isVariable);
  const draft = {
    statement: text,
    connector: connector?.id ?? "",
    database,
    parameters: markers.map(({ name }) => ({ name, ...defaultOf(parameters[name]) })),
  };
  return document === null ? { ...draft, name: title } : { ...draft, uuid: document, version: documentVersion };
}

function defaultOf(value: ParameterValue | undefined) {
  const type = TYPES.find((one) => one === value?.type) ?? null;
  return { type, default: value?.text || null };
}
