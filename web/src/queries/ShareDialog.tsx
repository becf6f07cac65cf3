import { Copy } from "lucide-preact";
import type { ComponentChildren } from "preact";
import { useState } from "preact/hooks";
import { Button, IconButton } from "../ui/Button.tsx";
import { copyText } from "../ui/clipboard.ts";
import { Dialog } from "../ui/Dialog.tsx";
import { SelectField, TextField } from "../ui/Field.tsx";
import { EmptyState, ErrorMessage, Loading } from "../ui/States.tsx";
import { notify } from "../ui/Toasts.tsx";
import { dateText } from "../ui/texts.ts";
import { useAction } from "../ui/useAction.ts";
import { type Loaded, useLoaded } from "../ui/useLoaded.ts";
import { type Grantee, getDocument, grantDocument, type Permission } from "./documents.ts";
import { GranteeField } from "./GranteeField.tsx";
import styles from "./queries.module.css";
import { linkOf, revokeShare, type Share, shareResult, sharesOf } from "./results.ts";

type Subject =
  | { kind: "result"; operationId: string; title: string }
  | { kind: "document"; uuid: string; name: string };

interface Props {
  subject: Subject;
  onClose: () => void;
}

const NO_ONE: Grantee = { kind: "user", name: "" };
const PERMISSIONS = [
  { value: "view", label: "May read" },
  { value: "run", label: "May run" },
  { value: "edit", label: "May change" },
] as const;

/** Share a result or a saved query with users and groups, see with whom it is shared, and end shares. */
export function ShareDialog({ subject, onClose }: Props) {
  return subject.kind === "result" ? (
    <ResultShares operationId={subject.operationId} title={subject.title} onClose={onClose} />
  ) : (
    <DocumentShares uuid={subject.uuid} name={subject.name} onClose={onClose} />
  );
}

function ResultShares({ operationId, title, onClose }: { operationId: string; title: string; onClose: () => void }) {
  const shared = useLoaded(operationId, (signal) => sharesOf(operationId, signal));
  const [to, setTo] = useState(NO_ONE);
  const [text, setText] = useState(title.slice(0, 200));
  const [day, setDay] = useState("");
  const action = useAction();
  const share = () =>
    action.run(async () => {
      await shareResult(operationId, { ...to, name: to.name.trim() }, text, day);
      notify(`Shared with ${to.name.trim()}. Send the link.`);
      setTo({ ...to, name: "" });
      shared.reload();
    });
  const end = (one: Grantee | null) =>
    action.run(async () => {
      await revokeShare(operationId, one);
      shared.reload();
    });
  const shares = shared.value?.shares ?? [];
  return (
    <Dialog title="Share the result" onClose={onClose} actions={<Button onClick={onClose}>Done</Button>}>
      <LinkField link={linkOf(operationId)} />
      <ShareForm to={to} isBusy={action.isBusy} onChange={setTo} onShare={share}>
        <TextField label="Title" value={text} onInput={(event) => setText(event.currentTarget.value)} />
        <TextField
          label="Until"
          type="date"
          hint="Empty: as long as the server grants by default"
          value={day}
          onInput={(event) => setDay(event.currentTarget.value)}
        />
      </ShareForm>
      {action.problem ? <ErrorMessage problem={action.problem} /> : null}
      <SharedWith list={shared} isEmpty={shares.length === 0}>
        {shares.map((one) => (
          <li key={`${one.user} ${one.group}`}>
            <GranteeName {...granteeOf(one)} />
            <span class={styles.soft}>until {dateText(one.until)}</span>
            <Button kind="quiet" disabled={action.isBusy} onClick={() => end(granteeOf(one))}>
              End
            </Button>
          </li>
        ))}
      </SharedWith>
      {shares.length > 1 ? (
        <Button kind="danger" disabled={action.isBusy} onClick={() => end(null)}>
          End all shares
        </Button>
      ) : null}
    </Dialog>
  );
}

function granteeOf(share: Pick<Share, "user" | "group">): Grantee {
  return share.group === null ? { kind: "user", name: share.user ?? "" } : { kind: "group", name: share.group };
}

function DocumentShares({ uuid, name, onClose }: { uuid: string; name: string; onClose: () => void }) {
  const shared = useLoaded(uuid, (signal) => getDocument(uuid, signal));
  const [to, setTo] = useState(NO_ONE);
  const [permission, setPermission] = useState<Permission>("run");
  const action = useAction();
  const grant = (one: Grantee, what: Permission) =>
    action.run(async () => {
      await grantDocument(uuid, { ...one, name: one.name.trim() }, what);
      if (one === to) setTo({ ...to, name: "" });
      shared.reload();
    });
  const grants = shared.value?.grants ?? [];
  return (
    <Dialog title={`Share “${name}”`} onClose={onClose} actions={<Button onClick={onClose}>Done</Button>}>
      <ShareForm to={to} isBusy={action.isBusy} onChange={setTo} onShare={() => grant(to, permission)}>
        <PermissionField label="Permission" value={permission} onChange={setPermission} />
      </ShareForm>
      <p class={styles.soft}>A shared query gives no right to its data: others run it with their own rights.</p>
      {action.problem ? <ErrorMessage problem={action.problem} /> : null}
      <SharedWith list={shared} isEmpty={grants.length === 0}>
        {grants.map((one) => (
          <li key={`${one.user} ${one.group}`}>
            <GranteeName {...granteeOf(one)} />
            <PermissionField
              label={`Permission of ${granteeOf(one).name}`}
              value={PERMISSIONS.find(({ value: known }) => known === one.permission)?.value ?? "view"}
              onChange={(what) => grant(granteeOf(one), what)}
            />
            <Button kind="quiet" disabled={action.isBusy} onClick={() => grant(granteeOf(one), "none")}>
              End
            </Button>
          </li>
        ))}
      </SharedWith>
    </Dialog>
  );
}

interface SharedWithProps {
  list: Loaded<unknown>;
  isEmpty: boolean;
  /** Items of a list. */
  children: ComponentChildren;
}

function SharedWith({ list: { value, problem, reload }, isEmpty, children }: SharedWithProps) {
  return (
    <>
      <h3>Shared with</h3>
      {problem ? <ErrorMessage problem={problem} onRetry={reload} /> : null}
      {value === null && !problem ? <Loading /> : null}
      {value !== null && isEmpty ? <EmptyState title="Not shared yet" /> : null}
      <ul class={styles.shares}>{children}</ul>
    </>
  );
}

interface FormProps {
  to: Grantee;
  isBusy: boolean;
  onChange: (to: Grantee) => void;
  onShare: () => void;
  children: ComponentChildren;
}

function ShareForm({ to, isBusy, onChange, onShare, children }: FormProps) {
  return (
    <form
      class={styles.fields}
      onSubmit={(event) => {
        event.preventDefault();
        onShare();
      }}
    >
      <GranteeField value={to} onChange={onChange} />
      <div class={styles.pair}>{children}</div>
      <div>
        <Button kind="primary" type="submit" disabled={isBusy || to.name.trim() === ""}>
          Share
        </Button>
      </div>
    </form>
  );
}

interface PermissionProps {
  label: string;
  value: Permission;
  onChange: (permission: Permission) => void;
}

function PermissionField({ label, value, onChange }: PermissionProps) {
  const change = (chosen: string) => onChange(PERMISSIONS.find((one) => one.value === chosen)?.value ?? "view");
  return <SelectField label={label} value={value} options={PERMISSIONS} onChange={change} />;
}

function GranteeName({ kind, name }: Grantee) {
  return (
    <span class={styles.name}>
      {name} <span class={styles.soft}>{kind}</span>
    </span>
  );
}

function LinkField({ link }: { link: string }) {
  return (
    <div class={styles.link}>
      <TextField label="Link" value={link} readonly />
      <IconButton
        label="Copy the link"
        kind="normal"
        onClick={() => void copyText(link, "The link is in the clipboard.")}
      >
        <Copy size={16} aria-hidden />
      </IconButton>
    </div>
  );
}
