import { useState } from "preact/hooks";
import { Button } from "../ui/Button.tsx";
import { Dialog } from "../ui/Dialog.tsx";
import { ErrorMessage, Loading } from "../ui/States.tsx";
import { notify } from "../ui/Toasts.tsx";
import { dateText } from "../ui/texts.ts";
import { useAction } from "../ui/useAction.ts";
import { useLoaded } from "../ui/useLoaded.ts";
import { type Entry, getVersion, listVersions, restoreVersion } from "./documents.ts";
import styles from "./queries.module.css";

interface Props {
  entry: Entry;
  onClose: () => void;
  onChanged: () => void;
}

/** The versions of a saved query, each with its text; a former one can be made the newest. */
export function VersionsDialog({ entry, onClose, onChanged }: Props) {
  const [chosen, setChosen] = useState<number | null>(null);
  const { value: versions, problem, reload } = useLoaded(entry.uuid, (signal) => listVersions(entry.uuid, signal));
  const action = useAction();
  const current = versions?.[0]?.version ?? entry.version;
  const shown = chosen ?? current;
  const mayEdit = entry.permission === "edit" || entry.permission === "manage";
  const restore = () =>
    action.run(async () => {
      await restoreVersion(entry.uuid, shown, current);
      notify(`Version ${shown} is restored as the newest one.`);
      setChosen(null);
      reload();
      onChanged();
    });
  return (
    <Dialog
      title={`Versions of “${entry.name}”`}
      isWide
      onClose={onClose}
      actions={
        <>
          <Button onClick={onClose}>Close</Button>
          <Button kind="primary" disabled={action.isBusy || shown === current || !mayEdit} onClick={restore}>
            Restore version {shown}
          </Button>
        </>
      }
    >
      {problem ? <ErrorMessage problem={problem} onRetry={reload} /> : null}
      {action.problem ? <ErrorMessage problem={action.problem} /> : null}
      {versions === null && !problem ? <Loading label="Loading versions" /> : null}
      {versions ? (
        <div class={styles.versions}>
          <ul class={styles.versionList} aria-label="Versions">
            {versions.map((one) => (
              <li key={one.version}>
                <button
                  type="button"
                  class={styles.folder}
                  aria-current={one.version === shown}
                  onClick={() => setChosen(one.version)}
                >
                  <span>
                    {one.version === current ? `Version ${one.version}, current` : `Version ${one.version}`}
                    <span class={styles.about}>
                      {dateText(one.modified)} · {one.modified_by}
                    </span>
                  </span>
                </button>
              </li>
            ))}
          </ul>
          <VersionText uuid={entry.uuid} version={shown} />
        </div>
      ) : null}
    </Dialog>
  );
}

function VersionText({ uuid, version }: { uuid: string; version: number }) {
  const { value, problem, isLoading, reload } = useLoaded(`${version}`, (signal) => getVersion(uuid, version, signal));
  if (problem) return <ErrorMessage problem={problem} onRetry={reload} />;
  if (value === null) return isLoading ? <Loading label="Loading the version" /> : null;
  return (
    <div class={styles.version}>
      <h3>{value.name}</h3>
      {value.description ? <p class={styles.soft}>{value.description}</p> : null}
      {/* biome-ignore lint/a11y/noNoninteractiveTabindex: a region that scrolls is reached with the keyboard */}
      <section class={styles.code} aria-label={`Text of version ${version}`} tabIndex={0}>
        <pre>{value.statement}</pre>
      </section>
    </div>
  );
}
