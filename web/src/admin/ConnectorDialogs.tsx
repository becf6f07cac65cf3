import { Button } from "../ui/Button.tsx";
import { Dialog } from "../ui/Dialog.tsx";
import { ErrorMessage, Loading } from "../ui/States.tsx";
import { notify } from "../ui/Toasts.tsx";
import { useAction } from "../ui/useAction.ts";
import { useLoaded } from "../ui/useLoaded.ts";
import { deleteConnector, type StoredConnector, testConnector } from "./connectors.ts";
import { TestResult } from "./TestResult.tsx";

interface Props {
  connector: StoredConnector;
  onClose: () => void;
}

/** Tests a stored connector, and shows the outcome. */
export function TestDialog({ connector, onClose }: Props) {
  const { id, nice_name: name } = connector;
  const { value, problem, isLoading, reload } = useLoaded(id, (signal) => testConnector({ id }, signal));
  const actions = (
    <Button disabled={isLoading} onClick={reload}>
      Test again
    </Button>
  );
  return (
    <Dialog title={`Test of ${name}`} onClose={onClose} actions={actions}>
      {isLoading ? <Loading label="Testing the connection" /> : null}
      {problem && !isLoading ? <ErrorMessage problem={problem} /> : null}
      {value && !isLoading && !problem ? <TestResult outcome={value} /> : null}
    </Dialog>
  );
}

/** Asks before a connector is deleted. */
export function DeleteDialog({ connector, onClose, onDeleted }: Props & { onDeleted: () => void }) {
  const { isBusy, problem, run } = useAction();
  const remove = async () => {
    await deleteConnector(connector.id);
    notify(`${connector.nice_name} was deleted.`);
    onDeleted();
    onClose();
  };
  const actions = (
    <>
      <Button onClick={onClose}>Keep it</Button>
      <Button kind="danger" disabled={isBusy} onClick={() => run(remove)}>
        Delete the connector
      </Button>
    </>
  );
  return (
    <Dialog title={`Delete ${connector.nice_name}?`} onClose={onClose} actions={actions}>
      <p>
        Its settings and grants are lost, and saved queries that name it no longer run. The history and the results of
        its statements stay. Tables and files of the data source are not touched.
      </p>
      {problem ? <ErrorMessage problem={problem} /> : null}
    </Dialog>
  );
}

/** Asks before a form with changes is left. */
export function DiscardDialog({ onClose, onDiscard }: { onClose: () => void; onDiscard: () => void }) {
  const actions = (
    <>
      <Button onClick={onClose}>Go on editing</Button>
      <Button kind="danger" onClick={onDiscard}>
        Discard the changes
      </Button>
    </>
  );
  return (
    <Dialog title="Discard the changes?" onClose={onClose} actions={actions}>
      <p>They have not been saved.</p>
    </Dialog>
  );
}
