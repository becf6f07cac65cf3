/** The text of the selected tab in CodeMirror. Each tab has its own state, so undo and selection stay with it. */
import {
  acceptCompletion,
  autocompletion,
  closeBrackets,
  closeBracketsKeymap,
  closeCompletion,
  completionKeymap,
} from "@codemirror/autocomplete";
import { defaultKeymap, history, historyKeymap, indentWithTab } from "@codemirror/commands";
import { bracketMatching, indentOnInput } from "@codemirror/language";
import { type Diagnostic, lintGutter, lintKeymap, setDiagnostics } from "@codemirror/lint";
import { highlightSelectionMatches, search, searchKeymap } from "@codemirror/search";
import { Annotation, Compartment, EditorState, type Extension, Prec, StateEffect, StateField } from "@codemirror/state";
import {
  Decoration,
  type DecorationSet,
  drawSelection,
  dropCursor,
  EditorView,
  highlightActiveLine,
  highlightActiveLineGutter,
  highlightSpecialChars,
  type KeyBinding,
  keymap,
  lineNumbers,
  placeholder,
} from "@codemirror/view";
import { codeTheme } from "./codeTheme.ts";
import { completionSources, type Scope } from "./completion.ts";
import { isNarrow } from "./layout.ts";
import { sqlDialect } from "./sql/dialects.ts";
import { type StatementSpan, split, statementAt } from "./sql/statements.ts";
import type { EditorTab } from "./tabs.ts";

export interface Actions {
  run: () => void;
  runAll: () => void;
  cancel: () => void;
  format: () => void;
  explain: () => void;
  save: () => void;
  help: () => void;
  newTab: () => void;
  moveTab: (step: number) => void;
}

/** The text reaches the tab, and the statement at the cursor is found, when the user has paused for so long. */
const PAUSE_MS = 120;
const PLACEHOLDER = "SELECT …";

const language = new Compartment();
const fromTab = Annotation.define<boolean>();
const setStatement = StateEffect.define<StatementSpan | null>();
const statementLine = Decoration.line({ class: "cm-statement" });

/** Marks the lines of the statement that is run next, if there are several. */
const statementField = StateField.define<DecorationSet>({
  create: () => Decoration.none,
  update(value, transaction) {
    let marked = value.map(transaction.changes);
    for (const effect of transaction.effects) {
      if (effect.is(setStatement)) marked = linesOf(transaction.state, effect.value);
    }
    return marked;
  },
  provide: (field) => EditorView.decorations.from(field),
});

function linesOf(state: EditorState, span: StatementSpan | null): DecorationSet {
  if (span === null) return Decoration.none;
  const last = state.doc.lineAt(Math.min(span.to, state.doc.length)).number;
  const lines = [];
  for (let number = state.doc.lineAt(span.from).number; number <= last; number += 1) {
    lines.push(statementLine.range(state.doc.line(number).from));
  }
  return Decoration.set(lines);
}

export class CodeEditor {
  readonly #view: EditorView;
  readonly #states = new WeakMap<EditorTab, EditorState>();
  readonly #extensions: Extension;
  #tab: EditorTab | null = null;
  #dialect = "";
  #timer: ReturnType<typeof setTimeout> | undefined;

  constructor(root: ShadowRoot, parent: HTMLElement, actions: Actions, scope: () => Scope | null) {
    this.#extensions = [
      // A held key must not run the statement again and again.
      Prec.highest(EditorView.domEventHandlers({ keydown: (event) => event.repeat && isRun(event) })),
      keymap.of(bindings(actions)),
      basics(),
      autocompletion({ override: completionSources(scope), maxRenderedOptions: 40 }),
      EditorView.updateListener.of((update) => {
        const isOwn = update.transactions.some((one) => one.annotation(fromTab));
        if ((update.docChanged || update.selectionSet) && !isOwn) this.#schedule();
      }),
      EditorView.domEventHandlers({ blur: () => this.flush() }),
    ];
    this.#view = new EditorView({ parent, root });
  }

  /** Show a tab with the highlighting of a dialect. */
  show(tab: EditorTab, dialect: string): void {
    if (tab !== this.#tab) {
      this.#leave();
      const state = this.#states.get(tab) ?? this.#newState(tab.content.peek().text);
      this.#tab = tab;
      this.#dialect = "";
      this.#view.setState(state);
    }
    if (dialect !== this.#dialect) {
      this.#dialect = dialect;
      this.#view.dispatch({ effects: language.reconfigure(sqlDialect(dialect).extension) });
    }
    this.#takeText(tab.content.peek().text);
    this.#schedule();
  }

  /** Take a text that was changed by something else than typing, such as another window, if its tab is shown. */
  take(tab: EditorTab, text: string): void {
    if (tab === this.#tab && this.#timer === undefined) this.#takeText(text);
  }

  get text(): string {
    return this.#view.state.doc.toString();
  }

  get selection(): { from: number; to: number } {
    const { from, to } = this.#view.state.selection.main;
    return { from, to };
  }

  focus(): void {
    this.#view.focus();
  }

  /** Insert a text at the cursor in place of the selection. */
  insert(text: string): void {
    this.#view.dispatch(this.#view.state.replaceSelection(text), { scrollIntoView: true, userEvent: "input.paste" });
    this.#view.focus();
  }

  /** Replace a part of the text, as one step that can be undone. */
  replace(from: number, to: number, text: string): void {
    this.#view.dispatch({ changes: { from, to, insert: text }, userEvent: "input.format", scrollIntoView: true });
  }

  /** Mark errors in place of those that were marked before, and show the first one. */
  mark(diagnostics: readonly Diagnostic[]): void {
    this.#view.dispatch(setDiagnostics(this.#view.state, diagnostics));
    const first = diagnostics[0];
    if (first) this.#view.dispatch({ effects: EditorView.scrollIntoView(first.from, { y: "nearest", yMargin: 40 }) });
  }

  /** Hide the completions, also those that are still looked up. */
  closeCompletions(): void {
    closeCompletion(this.#view);
  }

  /** Hand the text to the tab at once. */
  flush(): void {
    clearTimeout(this.#timer);
    this.#timer = undefined;
    const text = this.text;
    if (this.#tab && text !== this.#tab.content.peek().text) this.#tab.update({ text });
    const spans = split(text, this.#dialect);
    const current = spans.length > 1 ? statementAt(text, spans, this.#view.state.selection.main.head) : null;
    this.#view.dispatch({ effects: setStatement.of(current), annotations: fromTab.of(true) });
  }

  destroy(): void {
    this.#leave();
    this.#view.destroy();
  }

  #leave(): void {
    if (!this.#tab) return;
    this.flush();
    this.#states.set(this.#tab, this.#view.state);
    this.#tab = null;
  }

  #schedule(): void {
    clearTimeout(this.#timer);
    this.#timer = setTimeout(() => this.flush(), PAUSE_MS);
  }

  #newState(text: string): EditorState {
    return EditorState.create({ doc: text, extensions: this.#extensions, selection: { anchor: text.length } });
  }

  #takeText(text: string): void {
    const now = this.text;
    // CodeMirror keeps `\n` only.
    const next = text.replaceAll(/\r\n?/g, "\n");
    if (next === now) return;
    let start = 0;
    while (start < now.length && now[start] === next[start]) start += 1;
    let end = 0;
    while (end < now.length - start && end < next.length - start && now.at(-1 - end) === next.at(-1 - end)) end += 1;
    const changes = { from: start, to: now.length - end, insert: next.slice(start, next.length - end) };
    this.#view.dispatch({ changes, annotations: fromTab.of(true) });
  }
}

function isRun({ key, ctrlKey, metaKey }: KeyboardEvent): boolean {
  return key === "Enter" && (ctrlKey || metaKey);
}

function basics(): Extension {
  return [
    lineNumbers(),
    highlightActiveLineGutter(),
    highlightSpecialChars(),
    history(),
    drawSelection(),
    dropCursor(),
    EditorState.allowMultipleSelections.of(true),
    indentOnInput(),
    bracketMatching(),
    closeBrackets(),
    highlightActiveLine(),
    highlightSelectionMatches(),
    search({ top: true }),
    lintGutter(),
    placeholder(PLACEHOLDER),
    statementField,
    language.of([]),
    isNarrow.peek() ? EditorView.lineWrapping : [],
    EditorView.contentAttributes.of({
      "aria-label": "Statement",
      spellcheck: "false",
      autocapitalize: "off",
      // An editable element can take the focus anyway; the scroller around it needs a child that says so.
      tabindex: "0",
    }),
    keymap.of([
      { key: "Tab", run: acceptCompletion },
      ...closeBracketsKeymap,
      ...completionKeymap,
      ...defaultKeymap,
      ...searchKeymap,
      ...historyKeymap,
      ...lintKeymap,
      indentWithTab,
    ]),
    codeTheme,
  ];
}

function bindings(actions: Actions): KeyBinding[] {
  const bind = (key: string, action: () => void): KeyBinding => ({
    key,
    preventDefault: true,
    run: () => {
      action();
      return true;
    },
  });
  return [
    bind("Mod-Enter", actions.run),
    bind("Mod-Shift-Enter", actions.runAll),
    bind("Mod-.", actions.cancel),
    bind("Mod-Shift-f", actions.format),
    bind("Mod-Shift-e", actions.explain),
    bind("Mod-s", actions.save),
    bind("F1", actions.help),
    bind("Alt-Shift-n", actions.newTab),
    bind("Alt-PageDown", () => actions.moveTab(1)),
    bind("Alt-PageUp", () => actions.moveTab(-1)),
  ];
}
