import { Bot, CircleSlash, EllipsisVertical, KeyRound, LogOut, Pencil, ShieldCheck, User } from "lucide-preact";
import { IconButton } from "../ui/Button.tsx";
import { Menu } from "../ui/Menu.tsx";
import { ago, dateText } from "../ui/texts.ts";
import styles from "./admin.module.css";
import { fullName, type UserSummary, utc } from "./people.ts";

export interface UserAction {
  what: "edit" | "password" | "revoke" | "toggle";
  user: UserSummary;
}

interface Props {
  users: readonly UserSummary[];
  onAction: (action: UserAction) => void;
}

/** A page of users. */
export function UserTable({ users, onAction }: Props) {
  return (
    // biome-ignore lint/a11y/noNoninteractiveTabindex: a region that scrolls must be reachable with the keyboard
    <section class={styles.scroller} aria-label="Users" tabIndex={0}>
      <table class={styles.table}>
        <thead>
          <tr>
            <th scope="col">User</th>
            <th scope="col">
              <span class="visually-hidden">Actions</span>
            </th>
            <th scope="col">Kind</th>
            <th scope="col">Name</th>
            <th scope="col">E-mail</th>
            <th scope="col">Groups</th>
            <th scope="col">Last login</th>
          </tr>
        </thead>
        <tbody>
          {users.map((user) => (
            <Row key={user.id} user={user} onAction={onAction} />
          ))}
        </tbody>
      </table>
    </section>
  );
}

function Row({ user, onAction }: { user: UserSummary; onAction: Props["onAction"] }) {
  const name = user.username;
  const groups = user.groups.join(", ");
  return (
    <tr>
      <th scope="row" title={name}>
        {name}
      </th>
      <td class={styles.actions}>
        <IconButton label={`Edit ${name}`} onClick={() => onAction({ what: "edit", user })}>
          <Pencil size={16} aria-hidden />
        </IconButton>
        <Menu
          label={`Actions of ${name}`}
          items={[
            {
              label: "Set a password",
              icon: <KeyRound size={16} aria-hidden />,
              isDisabled: user.is_service_account,
              onSelect: () => onAction({ what: "password", user }),
            },
            {
              label: "Log out and revoke tokens",
              icon: <LogOut size={16} aria-hidden />,
              onSelect: () => onAction({ what: "revoke", user }),
            },
            {
              label: user.is_active ? "Disable" : "Enable",
              icon: <CircleSlash size={16} aria-hidden />,
              isDanger: user.is_active,
              onSelect: () => onAction({ what: "toggle", user }),
            },
          ]}
        >
          <EllipsisVertical size={16} aria-hidden />
        </Menu>
      </td>
      <td>
        <Kind user={user} />
      </td>
      <td title={fullName(user)}>{fullName(user)}</td>
      <td title={user.email}>{user.email}</td>
      <td title={groups}>{groups}</td>
      <td>
        {user.last_login ? (
          <time dateTime={utc(user.last_login)} title={dateText(utc(user.last_login))}>
            {ago(utc(user.last_login))}
          </time>
        ) : (
          <span class={styles.soft}>never</span>
        )}
      </td>
    </tr>
  );
}

function Kind({ user }: { user: UserSummary }) {
  const [Icon, text] = user.superuser
    ? ([ShieldCheck, "Administrator"] as const)
    : user.is_service_account
      ? ([Bot, "Service account"] as const)
      : ([User, "User"] as const);
  return (
    <span class={`${styles.state} ${user.is_active ? "" : styles.bad}`}>
      {user.is_active ? <Icon size={16} aria-hidden /> : <CircleSlash size={16} aria-hidden />}
      {user.is_active ? text : `${text}, disabled`}
    </span>
  );
}
