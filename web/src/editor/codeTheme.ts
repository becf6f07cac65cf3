/** How the text of the editor looks, in terms of the design tokens, which shadow roots inherit. */
import { HighlightStyle, syntaxHighlighting } from "@codemirror/language";
import { EditorView } from "@codemirror/view";
import { tags } from "@lezer/highlight";

const UNDERLINE = {
  backgroundImage: "none",
  textDecoration: "underline wavy var(--bad) 1px",
  textUnderlineOffset: "3px",
};
// The default marker is an image in a data: address, which the content security policy forbids.
const MARKER = { content: "normal", width: "0.75em", height: "0.75em", margin: "0.15em", borderRadius: "50%" };
/** A letter for each kind of completion: the default icons are characters that many fonts lack. */
const ICONS = { keyword: "K", type: "K", class: "T", property: "C", function: "F", namespace: "D", variable: "A" };

const theme = EditorView.theme({
  "&": { height: "100%", color: "var(--text)", backgroundColor: "var(--surface)", fontSize: "13.5px" },
  "&.cm-focused": { outline: "none" },
  ".cm-scroller": { fontFamily: "var(--mono)", lineHeight: "1.55" },
  ".cm-content": { padding: "8px 0", caretColor: "var(--text)" },
  ".cm-line": { padding: "0 12px 0 8px" },
  ".cm-cursor, .cm-dropCursor": { borderLeftColor: "var(--text)", borderLeftWidth: "2px" },
  ".cm-gutters": { color: "var(--text-soft)", backgroundColor: "var(--surface)", border: "none" },
  ".cm-lineNumbers .cm-gutterElement": { padding: "0 6px 0 12px", minWidth: "36px" },
  ".cm-gutter-lint": { width: "1.4em" },
  ".cm-gutter-lint .cm-gutterElement": { padding: "0.25em 0" },
  ".cm-activeLineGutter": { color: "var(--text)", backgroundColor: "transparent" },
  ".cm-activeLine": { backgroundColor: "color-mix(in srgb, var(--accent-ground) 45%, transparent)" },
  "&.cm-focused > .cm-scroller > .cm-selectionLayer .cm-selectionBackground, .cm-selectionBackground": {
    background: "color-mix(in srgb, var(--accent) 28%, transparent)",
  },
  ".cm-selectionMatch, .cm-searchMatch": { backgroundColor: "color-mix(in srgb, var(--series-5) 28%, transparent)" },
  ".cm-searchMatch-selected": { backgroundColor: "color-mix(in srgb, var(--series-5) 60%, transparent)" },
  "&.cm-focused .cm-matchingBracket": {
    backgroundColor: "var(--accent-ground)",
    outline: "1px solid var(--line-strong)",
  },
  "&.cm-focused .cm-nonmatchingBracket": { backgroundColor: "var(--bad-ground)" },
  ".cm-placeholder": { color: "var(--text-soft)" },
  ".cm-statement": { boxShadow: "inset 2px 0 var(--accent)" },
  ".cm-lintRange-error": UNDERLINE,
  ".cm-lint-marker-error": { ...MARKER, background: "var(--bad)" },
  ".cm-tooltip": {
    color: "var(--text)",
    backgroundColor: "var(--raised)",
    border: "1px solid var(--line)",
    borderRadius: "var(--radius)",
    boxShadow: "var(--shadow)",
    overflow: "hidden",
  },
  ".cm-diagnostic-error": {
    borderLeft: "4px solid var(--bad)",
    maxWidth: "60ch",
    whiteSpace: "pre-wrap",
    overflowWrap: "anywhere",
  },
  ".cm-tooltip.cm-tooltip-autocomplete > ul": { fontFamily: "var(--mono)", maxHeight: "18em", minWidth: "260px" },
  ".cm-tooltip.cm-tooltip-autocomplete > ul > li": {
    display: "flex",
    alignItems: "baseline",
    gap: "6px",
    padding: "3px 8px",
    lineHeight: "1.5",
  },
  ".cm-tooltip-autocomplete ul li[aria-selected]": { color: "var(--text)", background: "var(--accent-ground)" },
  ".cm-completionLabel": { flex: "1", overflow: "hidden", textOverflow: "ellipsis" },
  ".cm-completionMatchedText": { color: "var(--accent)", textDecoration: "none", fontWeight: "700" },
  ".cm-completionDetail": {
    color: "var(--text-soft)",
    fontStyle: "normal",
    fontSize: "0.88em",
    maxWidth: "22ch",
    overflow: "hidden",
    textOverflow: "ellipsis",
  },
  ".cm-completionIcon": {
    color: "var(--text-soft)",
    fontSize: "0.8em",
    fontWeight: "700",
    lineHeight: "1.9",
    opacity: "1",
    paddingRight: "0.4em",
    textAlign: "center",
    width: "1.2em",
  },
  ...Object.fromEntries(
    Object.entries(ICONS).map(([type, letter]) => [`.cm-completionIcon-${type}::after`, { content: `"${letter}"` }]),
  ),
  ".cm-completionIcon-class, .cm-completionIcon-property": { color: "var(--accent)" },
  ".cm-completionInfo": { maxWidth: "44ch", whiteSpace: "pre-wrap", padding: "6px 10px" },
  ".cm-panels": { color: "var(--text)", backgroundColor: "var(--sunken)", borderColor: "var(--line)" },
  ".cm-panels.cm-panels-top": { borderBottom: "1px solid var(--line)" },
  ".cm-panel.cm-search": { padding: "6px 32px 6px 8px", fontFamily: "var(--font)" },
  ".cm-panel.cm-search label": { fontSize: "13px" },
  ".cm-panel.cm-search [name=close]": { color: "var(--text)", fontSize: "20px", padding: "0 8px" },
  ".cm-textfield": {
    color: "var(--text)",
    backgroundColor: "var(--surface)",
    border: "1px solid var(--line-strong)",
    borderRadius: "4px",
  },
  ".cm-button": {
    color: "var(--text)",
    background: "var(--raised)",
    border: "1px solid var(--line)",
    borderRadius: "4px",
  },
});

const highlighting = HighlightStyle.define([
  { tag: tags.keyword, color: "var(--series-1)", fontWeight: "600" },
  { tag: [tags.string, tags.special(tags.string)], color: "var(--series-3)" },
  { tag: [tags.number, tags.bool, tags.null], color: "var(--series-2)" },
  { tag: tags.typeName, color: "var(--series-6)" },
  { tag: tags.standard(tags.name), color: "var(--series-6)" },
  { tag: tags.special(tags.name), color: "var(--series-4)" },
  { tag: tags.comment, color: "var(--text-soft)", fontStyle: "italic" },
]);

export const codeTheme = [theme, syntaxHighlighting(highlighting)];
