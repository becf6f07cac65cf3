import { ArrowLeft } from "lucide-preact";
import { useEffect, useRef, useState } from "preact/hooks";
import { asApiError, isAbort } from "../api/errors.ts";
import { Button, IconButton } from "../ui/Button.tsx";
import { TextField } from "../ui/Field.tsx";
import { ErrorMessage, Loading } from "../ui/States.tsx";
import { notify } from "../ui/Toasts.tsx";
import { useLoaded } from "../ui/useLoaded.ts";
import { DiscardDialog } from "./ConnectorDialogs.tsx";
import { type Draft, isChanged, NO_PROBLEMS, type Problems, problemsOf, requestFields } from "./connectorForm.ts";
import styles from "./connectors.module.css";
import {
  draftKey,
  drafts,
  forget,
  keep,
  type LoadedForm,
  loadForm,
  type Opened,
  saveConnector,
  type TestOutcome,
  testConnector,
} from "./connectors.ts";
import { GroupsField } from "./GroupsField.tsx";
import { OptionSections } from "./OptionSections.tsx";
import { TestResult } from "./TestResult.tsx";

interface Props {
  opened: Opened;
  /** Called when the form is left: with the name of the connector if it was saved. */
  onClose: (saved: string | null) => void;
}

/** Creates or changes a connector, with the fields that its type describes. */
export function ConnectorForm({ opened, onClose }: Props) {
  const key = draftKey(opened);
  const { value, problem, reload } = useLoaded(key, (signal) => loadForm(opened, signal));
  if (problem) return <ErrorMessage problem={problem} onRetry={reload} />;
  if (!value) return <Loading label="Loading the connector" />;
  const start = () => {
    forget(key);
    reload();
  };
  return <LoadedConnector key={value.initial.version} formKey={key} form={value} onClose={onClose} onReload={start} />;
}

interface LoadedProps {
  formKey: string;
  form: LoadedForm;
  onClose: Props["onClose"];
  /** Begins again with what the server has stored. */
  onReload: () => void;
}

function LoadedConnector({ formKey, form, onClose, onReload }: LoadedProps) {
  const { initial, options } = form;
  const draft = drafts.value.get(formKey) ?? initial;
  const isDirty = isChanged(draft, initial);
  const [isLeaving, setLeaving] = useState(false);
  const state = useCalls(draft, form);
  const element = useRef<HTMLFormElement>(null);
  const report = useRef<HTMLDivElement>(null);
  useReport(element, report, state);
  const change = (part: Partial<Draft>) => {
    const next = { ...draft, ...part };
    if (isChanged(next, initial)) keep(formKey, next);
    else forget(formKey);
    state.edited();
  };
  const save = () =>
    state.run("save", async () => {
      const saved = await saveConnector(requestFields(draft, options));
      forget(formKey);
      notify(`${saved.nice_name} was saved.`);
      onClose(saved.nice_name);
    });
  const test = () => state.run("test", state.test);
  return (
    <form
      ref={element}
      class={styles.form}
      noValidate
      aria-label={titleOf(initial, form.typeName)}
      onSubmit={(event) => {
        event.preventDefault();
        save();
      }}
    >
      <div class={styles.title}>
        <IconButton label="Back to the list" onClick={() => (isDirty ? setLeaving(true) : onClose(null))}>
          <ArrowLeft size={18} aria-hidden />
        </IconButton>
        <h2>{titleOf(initial, form.typeName)}</h2>
        <span class={styles.soft}>
          {draft.dialect} · {draft.interface}
        </span>
      </div>
      {form.lacksSecret ? <p class={styles.notice}>Passwords are not copied: set them again.</p> : null}
      <NameFields draft={draft} problems={state.problems} onChange={change} />
      <OptionSections
        options={options}
        draft={draft}
        initial={initial}
        problems={state.problems}
        onChange={(name, value) => change({ values: { ...draft.values, [name]: value } })}
      />
      <GroupsField
        groups={draft.groups}
        isNew={draft.id === null}
        problem={state.problems.fields.groups}
        onChange={(groups) => change({ groups })}
      />
      <div ref={report} class={styles.report}>
        {state.problems.message ? <ErrorMessage problem={new Error(state.problems.message)} /> : null}
        {state.isConflict ? <Button onClick={onReload}>Discard my changes and load the stored connector</Button> : null}
        {state.busy === "test" ? <Loading label="Testing the connection" /> : null}
        {state.outcome ? <TestResult outcome={state.outcome} /> : null}
      </div>
      <div class={styles.foot}>
        <Button kind="primary" type="submit" disabled={state.busy !== null}>
          {draft.id === null ? "Create" : "Save"}
        </Button>
        <Button disabled={state.busy !== null} onClick={test}>
          Test
        </Button>
        <Button kind="quiet" onClick={() => (isDirty ? setLeaving(true) : onClose(null))}>
          Cancel
        </Button>
        {isDirty ? <span class={styles.soft}>Not saved yet</span> : null}
      </div>
      {isLeaving ? (
        <DiscardDialog
          onClose={() => setLeaving(false)}
          onDiscard={() => {
            forget(formKey);
            onClose(null);
          }}
        />
      ) : null}
    </form>
  );
}

interface NameProps {
  draft: Draft;
  problems: Problems;
  onChange: (part: Partial<Draft>) => void;
}

function NameFields({ draft, problems, onChange }: NameProps) {
  const problemOf = (name: string) => (problems.fields[name] ? { problem: problems.fields[name] } : {});
  return (
    <>
      <TextField
        label="Name (required)"
        value={draft.niceName}
        autocomplete="off"
        {...problemOf("nice_name")}
        onInput={(event) => onChange({ niceName: event.currentTarget.value })}
      />
      <TextField
        label="Description"
        value={draft.description}
        autocomplete="off"
        {...problemOf("description")}
        onInput={(event) => onChange({ description: event.currentTarget.value })}
      />
    </>
  );
}

/** The calls of a form: what runs, what was refused, and the outcome of the last test of the shown values. */
function useCalls(draft: Draft, { options }: LoadedForm) {
  const [busy, setBusy] = useState<"save" | "test" | null>(null);
  const [problems, setProblems] = useState(NO_PROBLEMS);
  const [isConflict, setConflict] = useState(false);
  const [outcome, setOutcome] = useState<TestOutcome | null>(null);
  const controller = useRef<AbortController | null>(null);
  useEffect(() => () => controller.current?.abort(), []);
  const run = (what: "save" | "test", action: () => Promise<void>) => {
    setBusy(what);
    setProblems(NO_PROBLEMS);
    setConflict(false);
    setOutcome(null);
    action()
      .catch((refused: unknown) => {
        if (isAbort(refused)) return;
        const problem = asApiError(refused);
        setConflict(problem.code === "version_conflict");
        setProblems(problemsOf(problem, options));
      })
      .finally(() => setBusy(null));
  };
  const test = async () => {
    controller.current?.abort();
    controller.current = new AbortController();
    setOutcome(await testConnector(requestFields(draft, options), controller.current.signal));
  };
  // What a test found is not true of other values.
  const edited = () => {
    controller.current?.abort();
    setOutcome(null);
  };
  return { busy, problems, isConflict, outcome, run, test, edited };
}

/** Move the focus to the first field that was refused, whose section is open by then, and scroll to an outcome. */
function useReport(
  form: { current: HTMLFormElement | null },
  report: { current: HTMLElement | null },
  { problems, outcome, busy }: Pick<ReturnType<typeof useCalls>, "problems" | "outcome" | "busy">,
): void {
  useEffect(() => {
    const refused = form.current?.querySelector<HTMLElement>('[aria-invalid="true"], [data-refused]');
    if (problems !== NO_PROBLEMS && refused) refused.focus();
    else if (problems !== NO_PROBLEMS || outcome || busy === "test")
      report.current?.scrollIntoView({ block: "nearest" });
  }, [form, report, problems, outcome, busy]);
}

function titleOf(initial: Draft, typeName: string): string {
  return initial.id === null ? `New connector: ${typeName}` : `Connector ${initial.niceName}`;
}
