import { RotateCw } from "lucide-preact";
import { useState } from "preact/hooks";
import { connectors } from "../app/config.ts";
import { Button, IconButton } from "../ui/Button.tsx";
import { SelectField, TextField } from "../ui/Field.tsx";
import { EmptyState, ErrorMessage, Loading } from "../ui/States.tsx";
import { useDebounced } from "../ui/useDebounced.ts";
import { useLoaded } from "../ui/useLoaded.ts";
import styles from "./admin.module.css";
import { ShowDialog, StopDialog } from "./StatementDialogs.tsx";
import { StatementTable } from "./StatementTable.tsx";
import {
  AGE_CHOICES,
  EVERYTHING_ACTIVE,
  type Filters,
  STATE_CHOICES,
  type Statement,
  statementPage,
} from "./statements.ts";
import { useRefreshed } from "./useRefreshed.ts";

const REFRESH_MS = 3000;

type Doing = { what: "show" | "stop"; statement: Statement };

/** The statements of all users, newest first, by pages. The shown page is loaded again every few seconds. */
export function StatementsPage() {
  const [chosen, setChosen] = useState(EVERYTHING_ACTIVE);
  // Where the pages up to the shown one begin.
  const [starts, setStarts] = useState<readonly (number | null)[]>([null]);
  const [doing, setDoing] = useState<Doing | null>(null);
  const filters = useDebounced(chosen);
  const after = starts.at(-1) ?? null;
  const { value, problem, isLoading, reload } = useLoaded(JSON.stringify([filters, after]), (signal) =>
    statementPage(filters, after, signal),
  );
  useRefreshed(isLoading, reload, REFRESH_MS);
  const choose = (change: Partial<Filters>) => {
    setChosen((before) => ({ ...before, ...change }));
    setStarts([null]);
  };
  const close = () => setDoing(null);
  return (
    <>
      <FilterBar filters={chosen} onChoose={choose} onReload={reload} />
      {problem ? <ErrorMessage problem={problem} onRetry={reload} /> : null}
      {value === null && !problem ? <Loading label="Loading statements" /> : null}
      {value?.statements.length === 0 ? <NoStatements filters={filters} /> : null}
      {value && value.statements.length > 0 ? (
        <StatementTable
          statements={value.statements}
          onShow={(statement) => setDoing({ what: "show", statement })}
          onStop={(statement) => setDoing({ what: "stop", statement })}
        />
      ) : null}
      <Pager
        page={starts.length}
        hasNext={value?.nextAfter != null}
        onBack={() => setStarts((before) => before.slice(0, -1))}
        onNext={() => setStarts((before) => [...before, value?.nextAfter ?? null])}
      />
      {doing?.what === "show" ? <ShowDialog statement={doing.statement} onClose={close} /> : null}
      {doing?.what === "stop" ? <StopDialog statement={doing.statement} onClose={close} onStopped={reload} /> : null}
    </>
  );
}

interface BarProps {
  filters: Filters;
  onChoose: (change: Partial<Filters>) => void;
  onReload: () => void;
}

function FilterBar({ filters, onChoose, onReload }: BarProps) {
  return (
    <div class={styles.bar}>
      <TextField
        label="User"
        type="search"
        placeholder="Exact user name"
        value={filters.user}
        onInput={(event) => onChoose({ user: event.currentTarget.value.trim() })}
      />
      <SelectField
        label="Connector"
        value={filters.connector}
        options={[
          { value: "", label: "All" },
          ...connectors.value.map(({ id, displayName }) => ({ value: id, label: displayName })),
        ]}
        onChange={(connector) => onChoose({ connector })}
      />
      <SelectField
        label="State"
        value={filters.state}
        options={STATE_CHOICES}
        onChange={(value) => {
          const state = STATE_CHOICES.find((one) => one.value === value)?.value;
          if (state) onChoose({ state });
        }}
      />
      <SelectField
        label="Submitted"
        value={String(filters.olderThanS)}
        options={AGE_CHOICES}
        onChange={(value) => onChoose({ olderThanS: Number(value) })}
      />
      <IconButton label="Reload the statements" onClick={onReload}>
        <RotateCw size={16} aria-hidden />
      </IconButton>
    </div>
  );
}

function NoStatements({ filters }: { filters: Filters }) {
  const isNarrowed = filters.user !== "" || filters.connector !== "" || filters.olderThanS > 0;
  const title =
    isNarrowed || filters.state !== "active" ? "No statement matches." : "No statement is waiting or running.";
  return <EmptyState title={title} />;
}

interface PagerProps {
  /** From 1. */
  page: number;
  hasNext: boolean;
  onBack: () => void;
  onNext: () => void;
}

function Pager({ page, hasNext, onBack, onNext }: PagerProps) {
  if (page === 1 && !hasNext) return null;
  return (
    <div class={styles.bar}>
      <Button onClick={onBack} disabled={page === 1}>
        Newer
      </Button>
      <Button onClick={onNext} disabled={!hasNext}>
        Older
      </Button>
      <span class={styles.soft}>Page {page}</span>
    </div>
  );
}
