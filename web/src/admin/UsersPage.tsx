import { Plus, RotateCw } from "lucide-preact";
import { useState } from "preact/hooks";
import { useLocation } from "preact-iso";
import { Button, IconButton } from "../ui/Button.tsx";
import { SelectField, TextField } from "../ui/Field.tsx";
import { EmptyState, ErrorMessage, Loading } from "../ui/States.tsx";
import { useDebounced } from "../ui/useDebounced.ts";
import { useLoaded } from "../ui/useLoaded.ts";
import styles from "./admin.module.css";
import { Pages } from "./Pages.tsx";
import { EVERYBODY, groupList, PAGE_SIZE, type UserFilters, userPage } from "./people.ts";
import { ActiveDialog, PasswordDialog, RevokeDialog } from "./UserActions.tsx";
import { EditUserDialog, NewUserDialog } from "./UserDialogs.tsx";
import { type UserAction, UserTable } from "./UserTable.tsx";

const STATES: ReadonlyArray<{ value: UserFilters["state"]; label: string }> = [
  { value: "", label: "All" },
  { value: "active", label: "Active" },
  { value: "disabled", label: "Disabled" },
  { value: "service", label: "Service accounts" },
];

type Doing = { what: "new" } | UserAction;

/** All users, by pages, and what administrators do with them. */
export function UsersPage() {
  const { query } = useLocation();
  const [chosen, setChosen] = useState<UserFilters>({ ...EVERYBODY, group: query.group ?? "" });
  const [page, setPage] = useState(1);
  const [doing, setDoing] = useState<Doing | null>(null);
  const filters = useDebounced(chosen);
  const groups = useLoaded("groups", groupList);
  const users = useLoaded(JSON.stringify([filters, page]), (signal) => userPage(filters, page, signal));
  const names = groups.value?.groups.map(({ name }) => name) ?? [];
  const choose = (change: Partial<UserFilters>) => {
    setChosen((before) => ({ ...before, ...change }));
    setPage(1);
  };
  const shared = { groups: names, onClose: () => setDoing(null), onChanged: users.reload };
  return (
    <>
      <div class={styles.bar}>
        <TextField
          label="Search"
          type="search"
          placeholder="Name or e-mail"
          value={chosen.text}
          onInput={(event) => choose({ text: event.currentTarget.value.trim() })}
        />
        <SelectField
          label="Group"
          value={chosen.group}
          options={[
            { value: "", label: "All" },
            ...[...new Set([...names, ...(chosen.group ? [chosen.group] : [])])].map((name) => ({
              value: name,
              label: name,
            })),
          ]}
          onChange={(group) => choose({ group })}
        />
        <SelectField
          label="State"
          value={chosen.state}
          options={STATES}
          onChange={(value) => choose({ state: STATES.find((one) => one.value === value)?.value ?? "" })}
        />
        <IconButton label="Reload the users" onClick={users.reload}>
          <RotateCw size={16} aria-hidden />
        </IconButton>
        <Button kind="primary" onClick={() => setDoing({ what: "new" })}>
          <Plus size={16} aria-hidden />
          New user
        </Button>
      </div>
      {users.problem ? <ErrorMessage problem={users.problem} onRetry={users.reload} /> : null}
      {groups.problem ? <ErrorMessage problem={groups.problem} onRetry={groups.reload} /> : null}
      {users.value === null && !users.problem ? <Loading label="Loading users" /> : null}
      {users.value?.users.length === 0 ? <EmptyState title="No user matches." /> : null}
      {users.value && users.value.users.length > 0 ? <UserTable users={users.value.users} onAction={setDoing} /> : null}
      {users.value ? <Pages page={page} size={PAGE_SIZE} count={users.value.count} onPage={setPage} /> : null}
      {doing ? <Doing doing={doing} {...shared} /> : null}
    </>
  );
}

interface DoingProps {
  doing: Doing;
  groups: readonly string[];
  onClose: () => void;
  onChanged: () => void;
}

function Doing({ doing, groups, ...rest }: DoingProps) {
  if (doing.what === "new") return <NewUserDialog groups={groups} {...rest} />;
  const props = { username: doing.user.username, ...rest };
  if (doing.what === "edit") return <EditUserDialog groups={groups} {...props} />;
  if (doing.what === "password") return <PasswordDialog {...props} />;
  if (doing.what === "revoke") return <RevokeDialog {...props} />;
  return <ActiveDialog isActive={!doing.user.is_active} {...props} />;
}
