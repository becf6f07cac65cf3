/** What the parts of the editor view share: the commands, and what the selected tab shows beside its text. */
import { computed, effect, type Signal, signal, untracked } from "@preact/signals";
import { api, data } from "../api/client.ts";
import { type ApiError, asApiError, isAbort } from "../api/errors.ts";
import { within } from "../api/timeouts.ts";
import { type Connector, config, connectors } from "../app/config.ts";
import { notify, notifyProblem } from "../ui/Toasts.tsx";
import { bytesText } from "../ui/texts.ts";
import type { CodeEditor } from "./codeEditor.ts";
import { type Scope, warmUp } from "./completion.ts";
import { attachRun, markOf, runTarget, type Target, targetAt, targetOfRun, wholeOf } from "./runs.ts";
import { type Bound, bind } from "./sql/parameters.ts";
import { errorMark } from "./sql/positions.ts";
import type { TabContent } from "./tabContent.ts";
import { addTab, type EditorTab, saveNow, selectedTab, selectNext } from "./tabs.ts";

/** The plan of a statement: requested, received or refused. */
export interface Plan {
  statement: string;
  text: string | null;
  estimates: readonly string[];
  problem: ApiError | null;
}

/** Return the connector of a tab; null if it does not exist (any more). */
export function connectorOf({ connector }: Pick<TabContent, "connector">): Connector | null {
  const id = connector || (config.value?.default_sql_interpreter ?? "");
  const found = connectors.value.find((one) => one.id === id);
  return found ?? (connector === "" ? (connectors.value[0] ?? null) : null);
}

export class Workspace {
  readonly isHelpOpen = signal(false);
  readonly isSaveOpen = signal(false);
  readonly plan: Signal<Plan | null> = signal(null);
  /** Parameters of the selected tab that had no value at the last run. Each run sets a new list. */
  readonly missing = signal<readonly string[]>([]);
  readonly #connector = computed(() => {
    const tab = selectedTab();
    return tab && connectorOf(tab.content.value);
  });
  readonly #database = computed(() => selectedTab()?.content.value.database ?? "");
  readonly #stops: Array<() => void> = [];
  /** The error, or the execution without one, that each tab's marks are of. */
  readonly #marked = new WeakMap<EditorTab, object>();
  #editor: CodeEditor | null = null;
  #ended = new AbortController();

  /** Where completion looks names up. */
  readonly scope = (): Scope | null => {
    const content = selectedTab()?.content.peek();
    const connector = content ? connectorOf(content) : null;
    return content && connector ? { connector, database: content.database } : null;
  };

  attach(editor: CodeEditor): void {
    this.#editor = editor;
    this.#ended = new AbortController();
    const leave = () => {
      editor.flush();
      saveNow();
    };
    addEventListener("pagehide", leave);
    this.#stops.push(
      () => removeEventListener("pagehide", leave),
      effect(() => this.#showTab(editor)),
      effect(() => this.#takeChanges(editor)),
      effect(() => this.#warmUp()),
      effect(() => this.#showError(editor)),
    );
  }

  detach(): void {
    for (const stop of this.#stops.splice(0)) stop();
    this.#ended.abort();
    this.#editor?.destroy();
    this.#editor = null;
  }

  /** Run the selection, or the statement at the cursor. */
  readonly run = (): void => {
    this.#start((text, dialect, selection) => targetAt(text, dialect, selection));
  };

  /** Run all statements of the tab in order. */
  readonly runAll = (): void => {
    this.#start((text, dialect) => wholeOf(text, dialect));
  };

  /** Run what the tab has run before, with the present values of its parameters. */
  readonly runAgain = (): void => {
    this.#start((text, dialect) => targetOfRun(text, dialect, selectedTab()?.content.peek().run ?? null));
  };

  readonly cancel = (): void => {
    selectedTab()?.execution.peek()?.cancel().catch(notifyProblem);
  };

  readonly newTab = (): void => {
    const { connector = "", database = "" } = selectedTab()?.content.peek() ?? {};
    addTab({ connector, database });
    this.#editor?.focus();
  };

  readonly moveTab = (step: number): void => {
    selectNext(step);
    this.#editor?.focus();
  };

  readonly help = (): void => {
    this.isHelpOpen.value = true;
  };

  readonly save = (): void => {
    this.#editor?.flush();
    if (selectedTab()?.content.peek().text.trim()) this.isSaveOpen.value = true;
    else notify("There is no text to save.");
  };

  readonly insert = (text: string): void => {
    this.#editor?.insert(text);
  };

  readonly focus = (): void => {
    this.#editor?.focus();
  };

  /** Format the selection, or the whole text. The text stays if it was changed meanwhile. */
  readonly format = async (): Promise<void> => {
    const editor = this.#editor;
    const tab = selectedTab();
    if (!editor || !tab) return;
    const { text, selection } = editor;
    const [from, to] = selection.from < selection.to ? [selection.from, selection.to] : [0, text.length];
    const dialect = connectorOf(tab.content.peek())?.dialect ?? null;
    const body = { statements: text.slice(from, to), dialect };
    if (body.statements.trim() === "") return;
    try {
      const signal = within(this.#ended.signal);
      const { formatted_statements: formatted } = await data(api.POST("/api/v1/editor/format", { body, signal }));
      if (selectedTab() !== tab || editor.text !== text) notify("The text was changed while it was formatted.");
      else if (formatted !== body.statements) editor.replace(from, to, formatted);
    } catch (problem) {
      if (!isAbort(problem)) notifyProblem(problem);
    }
  };

  /** Show the plan of the selection, or of the statement at the cursor. */
  readonly explain = async (): Promise<void> => {
    const prepared = this.#prepare((text, dialect, selection) => targetAt(text, dialect, selection));
    if (!prepared) return;
    const { connector, content, bound } = prepared;
    const plan: Plan = { statement: bound.text, text: null, estimates: [], problem: null };
    this.plan.value = plan;
    const show = (changes: Partial<Plan>) => {
      if (this.plan.value === plan) this.plan.value = { ...plan, ...changes };
    };
    const body = { statement: bound.text, database: content.database || null, parameters: bound.values };
    const params = { path: { dialect: connector.id } };
    const { signal } = this.#ended;
    try {
      const answer = await data(api.POST("/api/v1/editor/explain/{dialect}", { params, body, signal }));
      const cost = "estimated_cost" in answer ? answer.estimated_cost : undefined;
      const bytes = "estimated_bytes" in answer ? answer.estimated_bytes : undefined;
      const estimates = [
        ...(bytes === undefined ? [] : [`Estimated data to read: ${bytesText(bytes)}`]),
        ...(cost === undefined ? [] : [`Estimated cost: ${cost.toLocaleString("en")}`]),
      ];
      show({ text: "explanation" in answer ? answer.explanation : "", estimates });
    } catch (problem) {
      if (isAbort(problem)) return;
      const error = asApiError(problem);
      show({ problem: error });
      this.#markExplained(error, prepared);
    }
  };

  #showTab(editor: CodeEditor): void {
    const tab = selectedTab();
    const dialect = this.#connector.value?.dialect ?? "";
    if (tab) untracked(() => editor.show(tab, dialect));
    this.missing.value = [];
  }

  /** Take what another window has changed in the selected tab. */
  #takeChanges(editor: CodeEditor): void {
    const tab = selectedTab();
    if (!tab) return;
    const { text } = tab.content.value;
    untracked(() => {
      editor.take(tab, text);
      attachRun(tab);
    });
  }

  /** Only when the scope changes: at each change of the text, a data source that is down would be called again. */
  #warmUp(): void {
    const connector = this.#connector.value;
    const database = this.#database.value;
    if (connector) untracked(() => warmUp({ connector, database }));
  }

  #showError(editor: CodeEditor): void {
    const tab = selectedTab();
    const execution = tab?.execution.value;
    if (!tab || !execution) return;
    const error = execution.error.value;
    const isGone = error?.code === "operation_not_found" && execution.state.value === "unknown";
    untracked(() => {
      if (isGone) {
        // The server keeps operations for some days only, and the tab stays longer.
        tab.execution.value = null;
        tab.update({ run: null });
        return;
      }
      if (this.#marked.get(tab) === (error ?? execution)) return;
      this.#marked.set(tab, error ?? execution);
      const dialect = connectorOf(tab.content.peek())?.dialect ?? "";
      const current = { ...tab.content.peek(), text: editor.text };
      const mark = error && markOf(current, dialect, error);
      editor.mark(mark ? [{ ...mark, severity: "error", message: error.message }] : []);
    });
  }

  /** Mark the error of an explained statement, unless the text or the tab was changed meanwhile. */
  #markExplained(error: ApiError, { tab, text, target, bound }: Prepared): void {
    const { line, column } = error.body;
    if (typeof line !== "number" || selectedTab() !== tab || this.#editor?.text !== text) return;
    const mark = errorMark(bound.text, line, typeof column === "number" ? column : null);
    if (!mark) return;
    const from = target.from + bound.toSource(mark.from);
    const to = Math.max(from + 1, target.from + bound.toSource(mark.to));
    this.#editor.mark([{ from, to, severity: "error", message: error.message }]);
  }

  #start(choose: Choose): void {
    // The second click of a double click must not run the statement again.
    if (selectedTab()?.execution.peek()?.state.peek() === "submitting") return;
    const prepared = this.#prepare(choose);
    if (!prepared) return;
    const { tab, connector, target, bound } = prepared;
    runTarget(tab, connector, target, bound);
  }

  /** Return what is needed to send a part of the text; null, after saying why, if something is missing. */
  #prepare(choose: Choose): Prepared | null {
    const tab = selectedTab();
    const editor = this.#editor;
    if (!tab || !editor) return null;
    editor.flush();
    // They would cover the result.
    editor.closeCompletions();
    const content = tab.content.peek();
    const connector = connectorOf(content);
    if (!connector) {
      notify(
        connectors.value.length === 0
          ? "You have no connectors. An administrator can permit you to use them."
          : "Choose a connector first: that of this tab does not exist any more, or you may not use it.",
      );
      return null;
    }
    const { text } = editor;
    const target = choose(text, connector.dialect, editor.selection);
    if (!target) {
      notify("There is no statement to run.");
      return null;
    }
    const bound = bind(text.slice(target.from, target.to), connector.dialect, content.parameters);
    this.missing.value = bound.missing;
    return bound.missing.length > 0 ? null : { tab, connector, content, text, target, bound };
  }
}

interface Prepared {
  tab: EditorTab;
  connector: Connector;
  content: TabContent;
  text: string;
  target: Target;
  bound: Bound;
}

type Choose = (text: string, dialect: string, selection: { from: number; to: number }) => Target | null;
