import { Pencil, Plus, Trash2 } from "lucide-preact";
import { useState } from "preact/hooks";
import { at } from "../app/prefix.ts";
import { Button, IconButton } from "../ui/Button.tsx";
import { TextField } from "../ui/Field.tsx";
import { FormDialog } from "../ui/FormDialog.tsx";
import { ErrorMessage, Loading } from "../ui/States.tsx";
import { notify } from "../ui/Toasts.tsx";
import { countText } from "../ui/texts.ts";
import { useLoaded } from "../ui/useLoaded.ts";
import styles from "./admin.module.css";
import { CheckList } from "./CheckList.tsx";
import people from "./people.module.css";
import {
  changeRights,
  createGroup,
  deleteGroup,
  type Group,
  groupList,
  rightChoices,
  rightText,
  without,
} from "./people.ts";
import { Confirmation } from "./UserActions.tsx";

type Doing = { what: "new" } | { what: "edit" | "delete"; group: Group };

/** All groups with their rights. */
export function GroupsPage() {
  const { value, problem, reload } = useLoaded("groups", groupList);
  const [doing, setDoing] = useState<Doing | null>(null);
  const shared = { named: value?.rights ?? [], onClose: () => setDoing(null), onChanged: reload };
  return (
    <>
      <div class={styles.bar}>
        <Button kind="primary" onClick={() => setDoing({ what: "new" })} disabled={value === null}>
          <Plus size={16} aria-hidden />
          New group
        </Button>
        <span class={styles.soft}>{value ? countText(value.groups.length, "group") : ""}</span>
      </div>
      {problem ? <ErrorMessage problem={problem} onRetry={reload} /> : null}
      {value === null && !problem ? <Loading label="Loading groups" /> : null}
      {value ? <GroupTable groups={value.groups} onAction={setDoing} /> : null}
      {doing?.what === "new" ? <GroupDialog group={null} {...shared} /> : null}
      {doing?.what === "edit" ? <GroupDialog group={doing.group} {...shared} /> : null}
      {doing?.what === "delete" ? <DeleteDialog group={doing.group} {...shared} /> : null}
    </>
  );
}

function GroupTable({ groups, onAction }: { groups: readonly Group[]; onAction: (action: Doing) => void }) {
  return (
    // biome-ignore lint/a11y/noNoninteractiveTabindex: a region that scrolls must be reachable with the keyboard
    <section class={styles.scroller} aria-label="Groups" tabIndex={0}>
      <table class={styles.table}>
        <thead>
          <tr>
            <th scope="col">Group</th>
            <th scope="col">
              <span class="visually-hidden">Actions</span>
            </th>
            <th scope="col">Members</th>
            <th scope="col">Rights</th>
          </tr>
        </thead>
        <tbody>
          {groups.map((group) => (
            <tr key={group.name}>
              <th scope="row" title={group.name}>
                {group.name}
              </th>
              <td class={styles.actions}>
                <IconButton label={`Edit ${group.name}`} onClick={() => onAction({ what: "edit", group })}>
                  <Pencil size={16} aria-hidden />
                </IconButton>
                <IconButton
                  label={`Delete ${group.name}`}
                  kind="danger"
                  disabled={group.is_default}
                  onClick={() => onAction({ what: "delete", group })}
                >
                  <Trash2 size={16} aria-hidden />
                </IconButton>
              </td>
              <td>
                <a href={at(`/admin/users?group=${encodeURIComponent(group.name)}`)}>
                  {countText(group.members, "user")}
                </a>
              </td>
              <td>
                <div class={people.rights}>
                  {group.rights.map((right) => (
                    <span key={right} class={people.chip} title={rightText(right)}>
                      {right}
                    </span>
                  ))}
                  {group.rights.length === 0 ? <span class={styles.soft}>none</span> : null}
                </div>
              </td>
            </tr>
          ))}
        </tbody>
      </table>
    </section>
  );
}

interface DialogProps {
  /** The rights that are not on single connectors. */
  named: readonly string[];
  onClose: () => void;
  onChanged: () => void;
}

/** Creates a group, or changes the rights of one. */
function GroupDialog({ group, named, onClose, onChanged }: DialogProps & { group: Group | null }) {
  const [name, setName] = useState(group?.name ?? "");
  const before = group?.rights ?? [];
  const [rights, setRights] = useState<readonly string[]>(before);
  const save = async () => {
    if (group === null) await createGroup(name, rights);
    else await changeRights(group.name, without(rights, before), without(before, rights));
    notify(`Group ${name} ${group === null ? "created" : "changed"}.`);
    onChanged();
  };
  return (
    <FormDialog
      title={group === null ? "New group" : `Group ${group.name}`}
      action={group === null ? "Create the group" : "Save"}
      onSubmit={save}
      onClose={onClose}
    >
      {group === null ? (
        <TextField
          label="Name"
          autocomplete="off"
          required
          value={name}
          onInput={(event) => setName(event.currentTarget.value)}
        />
      ) : null}
      <CheckList
        legend="Rights"
        hint="They hold from the next call of each member."
        options={rightChoices(named, before).map((right) => ({ value: right, label: rightText(right) }))}
        chosen={rights}
        onChange={setRights}
      />
    </FormDialog>
  );
}

function DeleteDialog({ group, onClose, onChanged }: DialogProps & { group: Group }) {
  return (
    <Confirmation
      title={`Delete the group ${group.name}?`}
      action="Delete"
      done={`Group ${group.name} deleted.`}
      work={() => deleteGroup(group.name)}
      onClose={onClose}
      onChanged={onChanged}
    >
      Its {countText(group.members, "member")} lose the rights that they have by this group only, and what is shared
      with the group.
    </Confirmation>
  );
}
