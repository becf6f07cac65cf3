import { Plus } from "lucide-preact";
import { useState } from "preact/hooks";
import { useLocation } from "preact-iso";
import { connectors } from "../app/config.ts";
import { at } from "../app/prefix.ts";
import { Button } from "../ui/Button.tsx";
import { TextField } from "../ui/Field.tsx";
import { EmptyState, ErrorMessage, Loading } from "../ui/States.tsx";
import { notify } from "../ui/Toasts.tsx";
import { useAction } from "../ui/useAction.ts";
import { useLoaded } from "../ui/useLoaded.ts";
import admin from "./admin.module.css";
import { DeleteDialog, TestDialog } from "./ConnectorDialogs.tsx";
import { ConnectorForm } from "./ConnectorForm.tsx";
import { ConnectorTable, FileTable } from "./ConnectorTables.tsx";
import styles from "./connectors.module.css";
import { draftKey, drafts, installExamples, openedBy, type StoredConnector, storedConnectors } from "./connectors.ts";
import { TypeChooser } from "./TypeChooser.tsx";

const LIST = "/admin/connectors";
type Doing = { what: "test" | "delete"; connector: StoredConnector };

/** The connectors: a list, or the form that the address opens. */
export function ConnectorsPage() {
  const { query, route } = useLocation();
  const opened = openedBy(query);
  const back = () => route(at(LIST));
  if (opened) return <ConnectorForm key={draftKey(opened)} opened={opened} onClose={back} />;
  if (query.new !== undefined) return <TypeChooser onClose={back} />;
  return <ConnectorList />;
}

function ConnectorList() {
  const { route } = useLocation();
  const { value, problem, reload } = useLoaded("connectors", storedConnectors);
  const [text, setText] = useState("");
  const [doing, setDoing] = useState<Doing | null>(null);
  const close = () => setDoing(null);
  const isFound = (...names: string[]) => names.some((name) => name.toLowerCase().includes(text.toLowerCase()));
  const stored = (value ?? []).filter((one) => isFound(one.nice_name, one.dialect, one.description));
  const ids = new Set((value ?? []).map(({ id }) => id));
  const inFile = connectors.value.filter((one) => !ids.has(one.id) && isFound(one.displayName, one.dialect, one.id));
  return (
    <>
      <ListBar text={text} onText={setText} onInstalled={reload} />
      <Unsaved />
      {problem ? <ErrorMessage problem={problem} onRetry={reload} /> : null}
      {value === null && !problem ? <Loading label="Loading connectors" /> : null}
      {value?.length === 0 ? (
        <EmptyState title="No connector is stored.">Add one, or install the examples to try it.</EmptyState>
      ) : null}
      {value && value.length > 0 && stored.length === 0 ? <EmptyState title="No stored connector matches." /> : null}
      {stored.length > 0 ? (
        <ConnectorTable
          connectors={stored}
          onOpen={(query) => route(at(`${LIST}?${query}`))}
          onTest={(connector) => setDoing({ what: "test", connector })}
          onDelete={(connector) => setDoing({ what: "delete", connector })}
        />
      ) : null}
      {value && inFile.length > 0 ? <FileTable connectors={inFile} /> : null}
      {doing?.what === "test" ? <TestDialog connector={doing.connector} onClose={close} /> : null}
      {doing?.what === "delete" ? (
        <DeleteDialog connector={doing.connector} onClose={close} onDeleted={reload} />
      ) : null}
    </>
  );
}

interface BarProps {
  text: string;
  onText: (text: string) => void;
  onInstalled: () => void;
}

function ListBar({ text, onText, onInstalled }: BarProps) {
  const { route } = useLocation();
  const { isBusy, problem, run } = useAction();
  const install = async () => {
    notify(await installExamples());
    onInstalled();
  };
  return (
    <>
      <div class={admin.bar}>
        <TextField label="Search" type="search" value={text} onInput={(event) => onText(event.currentTarget.value)} />
        <Button kind="primary" onClick={() => route(at(`${LIST}?new=`))}>
          <Plus size={16} aria-hidden />
          New connector
        </Button>
        <Button disabled={isBusy} onClick={() => run(install)}>
          Install examples
        </Button>
      </div>
      {problem ? <ErrorMessage problem={problem} /> : null}
    </>
  );
}

/** Forms with changes that were left without saving them. */
function Unsaved() {
  const open = [...drafts.value];
  if (open.length === 0) return null;
  return (
    <div class={styles.notice}>
      <strong>Not saved yet:</strong>
      <ul class={styles.chips} aria-label="Connectors that are not saved">
        {open.map(([key, draft]) => (
          <li key={key}>
            <a href={at(`${LIST}?${key}`)}>{draft.niceName || `New connector (${draft.dialect})`}</a>
          </li>
        ))}
      </ul>
    </div>
  );
}
