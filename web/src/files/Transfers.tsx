import { Pause, Play, X } from "lucide-preact";
import { useRef } from "preact/hooks";
import { Button, IconButton } from "../ui/Button.tsx";
import { notifyProblem } from "../ui/Toasts.tsx";
import { bytesText, numberText } from "../ui/texts.ts";
import { forget, type Operation, operations } from "./operations.ts";
import styles from "./transfers.module.css";
import type { Upload, UploadState } from "./Upload.ts";
import { remove, removeEnded, resume, uploads } from "./uploads.ts";

const STATES: Record<UploadState, string> = {
  waiting: "waiting",
  running: "sending",
  offline: "no connection, goes on by itself",
  paused: "paused",
  detached: "interrupted; choose the file again to go on",
  done: "complete",
  failed: "failed",
};

/** What is on its way: uploads and long changes, with what failed. Nothing if there is none. */
export function Transfers() {
  if (uploads.value.length === 0 && operations.value.length === 0) return null;
  const hasEnded = uploads.value.some((one) => !one.isOpen.value);
  return (
    <section class={styles.transfers} aria-label="Transfers">
      <div class={styles.transfersHead}>
        <h2>Transfers</h2>
        {hasEnded ? (
          <Button kind="quiet" onClick={removeEnded}>
            Clear finished
          </Button>
        ) : null}
      </div>
      <ul>
        {operations.value.map((one) => (
          <OperationItem key={`o${one.key}`} operation={one} />
        ))}
        {uploads.value.map((one) => (
          <UploadItem key={one.record.id} upload={one} />
        ))}
      </ul>
    </section>
  );
}

function UploadItem({ upload }: { upload: Upload }) {
  const { name, size, directory } = upload.record;
  const state = upload.state.value;
  const problem = upload.problem.value;
  return (
    <li>
      <div class={styles.transferName} title={directory}>
        {name}
      </div>
      <UploadButtons upload={upload} />
      {upload.isOpen.value ? (
        <progress aria-label={`Progress of ${name}`} max={Math.max(1, size)} value={upload.arrived.value} />
      ) : null}
      <div class={styles.transferState}>
        {upload.isOpen.value ? `${bytesText(upload.arrived.value)} of ${bytesText(size)}, ` : null}
        {STATES[state]}
      </div>
      {problem && state === "failed" ? <div class={styles.bad}>{problem.message}</div> : null}
    </li>
  );
}

function UploadButtons({ upload }: { upload: Upload }) {
  const { name } = upload.record;
  const state = upload.state.value;
  const isActive = ["waiting", "running", "offline"].includes(state);
  const isOccupied = state === "failed" && upload.problem.value?.code === "already_exists";
  return (
    <div class={styles.transferButtons}>
      {isActive ? (
        <IconButton label={`Pause ${name}`} onClick={() => upload.pause()}>
          <Pause size={16} aria-hidden />
        </IconButton>
      ) : null}
      {state === "detached" ? <ChooseAgain upload={upload} /> : null}
      {isOccupied ? <Button onClick={() => resume(upload, true)}>Replace</Button> : null}
      {state === "paused" || (state === "failed" && !isOccupied) ? (
        <IconButton label={`Resume ${name}`} onClick={() => resume(upload)}>
          <Play size={16} aria-hidden />
        </IconButton>
      ) : null}
      <IconButton
        label={upload.isOpen.value ? `Cancel ${name}` : `Remove ${name} from the list`}
        onClick={() => remove(upload).catch(notifyProblem)}
      >
        <X size={16} aria-hidden />
      </IconButton>
    </div>
  );
}

/** After a reload, the browser reads a file only if the user chooses it again. */
function ChooseAgain({ upload }: { upload: Upload }) {
  const input = useRef<HTMLInputElement>(null);
  const { name, directory } = upload.record;
  const choose = () => {
    const file = input.current?.files?.[0];
    if (!file || !input.current) return;
    // The same file can be chosen again.
    input.current.value = "";
    if (!upload.matches(file, directory)) {
      notifyProblem(new Error(`This is not the file “${name}” whose upload was interrupted, or it has changed.`));
      return;
    }
    upload.attach(file);
    resume(upload);
  };
  return (
    <>
      <Button onClick={() => input.current?.click()}>Choose file</Button>
      <input ref={input} type="file" hidden aria-label={`Choose ${name} again`} onChange={choose} />
    </>
  );
}

function OperationItem({ operation }: { operation: Operation }) {
  const { title, state, done, total, message, failures } = operation;
  return (
    <li>
      <div class={styles.transferName}>{title}</div>
      {state === "failed" ? (
        <div class={styles.transferButtons}>
          <IconButton label={`Remove ${title} from the list`} onClick={() => forget(operation.key)}>
            <X size={16} aria-hidden />
          </IconButton>
        </div>
      ) : (
        <progress aria-label={title} {...(total === null ? {} : { max: Math.max(1, total), value: done })} />
      )}
      {state === "running" && total !== null ? (
        <div class={styles.transferState}>
          {numberText(done)} of {numberText(total)}
        </div>
      ) : null}
      {state === "failed" ? (
        <div class={styles.bad} role="alert">
          {message}
          {failures.length > 0 ? (
            <ul class={styles.failures}>
              {failures.map((failure) => (
                <li key={failure.path}>
                  <b>{failure.path}</b>: {failure.message}
                </li>
              ))}
            </ul>
          ) : null}
        </div>
      ) : null}
    </li>
  );
}
