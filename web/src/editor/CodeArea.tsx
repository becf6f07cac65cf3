import { useEffect, useRef } from "preact/hooks";
import { CodeEditor } from "./codeEditor.ts";
import styles from "./EditorView.module.css";
import type { Workspace } from "./workspace.ts";

/** The text of the selected tab. It is in a shadow root, whose style sheets the content security policy permits. */
export function CodeArea({ workspace }: { workspace: Workspace }) {
  const host = useRef<HTMLDivElement>(null);
  useEffect(() => {
    if (!host.current) return;
    const root = host.current.shadowRoot ?? host.current.attachShadow({ mode: "open" });
    const parent = document.createElement("div");
    parent.style.height = "100%";
    root.replaceChildren(parent);
    const editor = new CodeEditor(root, parent, workspace, workspace.scope);
    workspace.attach(editor);
    editor.focus();
    return () => workspace.detach();
  }, [workspace]);
  return <div ref={host} class={styles.code} />;
}
