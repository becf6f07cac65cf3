import { Ban, Plus } from "lucide-preact";
import { useState } from "preact/hooks";
import { connectors } from "../app/config.ts";
import { Button, IconButton } from "../ui/Button.tsx";
import { EmptyState, ErrorMessage, Loading } from "../ui/States.tsx";
import { ago, dateText } from "../ui/texts.ts";
import { useLoaded } from "../ui/useLoaded.ts";
import styles from "./admin.module.css";
import { NewTokenDialog, ValueDialog } from "./NewTokenDialog.tsx";
import { Pages } from "./Pages.tsx";
import { type ApiToken, type Owner, PAGE_SIZE, revokeToken, STATE_TEXTS, tokenPage } from "./tokens.ts";
import { Confirmation } from "./UserActions.tsx";

interface Props {
  owner: Owner;
}

/** API tokens with their states: of the user, of all users, or of one. */
export function TokenList({ owner }: Props) {
  const [page, setPage] = useState(1);
  const [isNew, setNew] = useState(false);
  const [created, setCreated] = useState<string | null>(null);
  const [revoked, setRevoked] = useState<ApiToken | null>(null);
  const key = JSON.stringify([owner, page]);
  const { value, problem, reload } = useLoaded(key, (signal) => tokenPage(owner, page, signal));
  const showCreated = (text: string) => {
    setCreated(text);
    reload();
  };
  return (
    <>
      <div class={styles.bar}>
        <Button kind="primary" onClick={() => setNew(true)}>
          <Plus size={16} aria-hidden />
          New token
        </Button>
      </div>
      {problem ? <ErrorMessage problem={problem} onRetry={reload} /> : null}
      {value === null && !problem ? <Loading label="Loading tokens" /> : null}
      {value?.tokens.length === 0 ? (
        <EmptyState title="There are no API tokens.">
          Programs log in with an API token. It can be limited to some calls and data sources, and it expires.
        </EmptyState>
      ) : null}
      {value && value.tokens.length > 0 ? (
        <TokenTable tokens={value.tokens} hasUsers={owner.whose !== "own"} onRevoke={setRevoked} />
      ) : null}
      {value ? <Pages page={page} size={PAGE_SIZE} count={value.count} onPage={setPage} /> : null}
      {isNew ? <NewTokenDialog owner={owner} onClose={() => setNew(false)} onCreated={showCreated} /> : null}
      {created ? <ValueDialog value={created} onClose={() => setCreated(null)} /> : null}
      {revoked ? (
        <Confirmation
          title={`Revoke the token ${revoked.name}?`}
          action="Revoke"
          done={`Token ${revoked.name} revoked.`}
          work={() => revokeToken(revoked.id)}
          onClose={() => setRevoked(null)}
          onChanged={reload}
        >
          Programs that use this token of {revoked.username} are refused at once. This cannot be taken back.
        </Confirmation>
      ) : null}
    </>
  );
}

interface TableProps {
  tokens: readonly ApiToken[];
  hasUsers: boolean;
  onRevoke: (token: ApiToken) => void;
}

function TokenTable({ tokens, hasUsers, onRevoke }: TableProps) {
  return (
    // biome-ignore lint/a11y/noNoninteractiveTabindex: a region that scrolls must be reachable with the keyboard
    <section class={styles.scroller} aria-label="API tokens" tabIndex={0}>
      <table class={styles.table}>
        <thead>
          <tr>
            <th scope="col">Token</th>
            <th scope="col">
              <span class="visually-hidden">Actions</span>
            </th>
            {hasUsers ? <th scope="col">User</th> : null}
            <th scope="col">State</th>
            <th scope="col">Scopes</th>
            <th scope="col">Data sources</th>
            <th scope="col">Expires</th>
            <th scope="col">Last use</th>
          </tr>
        </thead>
        <tbody>
          {tokens.map((token) => (
            <tr key={token.id}>
              <th scope="row" title={token.name}>
                {token.name}
              </th>
              <td class={styles.actions}>
                <IconButton
                  label={`Revoke ${token.name}`}
                  kind="danger"
                  disabled={token.state !== "active"}
                  onClick={() => onRevoke(token)}
                >
                  <Ban size={16} aria-hidden />
                </IconButton>
              </td>
              {hasUsers ? <td title={token.username}>{token.username}</td> : null}
              <td class={token.state === "active" ? styles.good : styles.soft}>{STATE_TEXTS[token.state]}</td>
              <td title={token.scopes.join(", ")}>{token.scopes.join(", ")}</td>
              <td title={connectorsText(token)}>{connectorsText(token)}</td>
              <td>
                <time dateTime={token.expires_at}>{dateText(token.expires_at)}</time>
              </td>
              <td>{token.last_used_at ? ago(token.last_used_at) : <span class={styles.soft}>never</span>}</td>
            </tr>
          ))}
        </tbody>
      </table>
    </section>
  );
}

function connectorsText(token: ApiToken): string {
  if (token.connectors === null) return "All";
  const names = token.connectors.map((key) => connectors.value.find(({ id }) => id === key)?.displayName ?? key);
  return names.join(", ");
}
