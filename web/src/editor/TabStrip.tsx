import { CircleAlert, EllipsisVertical, LoaderCircle, PanelLeftOpen, Plus, X } from "lucide-preact";
import { useEffect, useRef, useState } from "preact/hooks";
import { IconButton } from "../ui/Button.tsx";
import { Menu } from "../ui/Menu.tsx";
import { isSideOpen } from "./layout.ts";
import styles from "./TabStrip.module.css";
import { closed, closeTab, type EditorTab, reopenTab, selectedTab, selectTab, tabs } from "./tabs.ts";
import type { Workspace } from "./workspace.ts";

/** The open tabs. A double click or F2 renames one; a middle click or Delete closes it. */
export function TabStrip({ workspace }: { workspace: Workspace }) {
  const [renamed, setRenamed] = useState<EditorTab | null>(null);
  const selected = selectedTab();
  const others = tabs.value.filter((tab) => tab !== selected);
  const list = useRef<HTMLUListElement>(null);
  const close = (tab: EditorTab) => {
    closeTab(tab);
    // The focused button is gone with its tab.
    workspace.focus();
  };
  useEffect(() => {
    if (selected)
      list.current
        ?.querySelector("[aria-current]")
        ?.parentElement?.scrollIntoView({ block: "nearest", inline: "nearest" });
  }, [selected]);
  return (
    <div class={styles.strip}>
      {isSideOpen.value ? null : (
        <IconButton label="Show the side panel" onClick={() => (isSideOpen.value = true)}>
          <PanelLeftOpen size={18} aria-hidden />
        </IconButton>
      )}
      <ul ref={list} class={styles.tabs} aria-label="Editor tabs">
        {tabs.value.map((tab) => (
          <li key={tab.id} class={tab === selected ? `${styles.tab} ${styles.selected}` : styles.tab}>
            {tab === renamed ? (
              <TitleInput tab={tab} onEnd={() => setRenamed(null)} />
            ) : (
              <TabButton tab={tab} workspace={workspace} onRename={() => setRenamed(tab)} onClose={() => close(tab)} />
            )}
            <button
              type="button"
              class={styles.close}
              aria-label={`Close ${tab.content.value.title}`}
              title="Close"
              onClick={() => close(tab)}
            >
              <X size={14} aria-hidden />
            </button>
          </li>
        ))}
      </ul>
      <IconButton label="New tab (Alt+Shift+N)" onClick={workspace.newTab}>
        <Plus size={18} aria-hidden />
      </IconButton>
      <Menu
        label="Tab actions"
        items={[
          { label: "Rename", onSelect: () => setRenamed(selected) },
          { label: "Reopen closed tab", isDisabled: closed.value.length === 0, onSelect: reopenTab },
          {
            label: "Close other tabs",
            isDisabled: others.length === 0,
            onSelect: () => {
              for (const tab of others) closeTab(tab);
            },
          },
        ]}
      >
        <EllipsisVertical size={18} aria-hidden />
      </Menu>
    </div>
  );
}

interface TabButtonProps {
  tab: EditorTab;
  workspace: Workspace;
  onRename: () => void;
  onClose: () => void;
}

function TabButton({ tab, workspace, onRename, onClose }: TabButtonProps) {
  const { title } = tab.content.value;
  const press = (event: KeyboardEvent) => {
    if (event.key === "F2") onRename();
    else if (event.key === "Delete") onClose();
    else return;
    event.preventDefault();
  };
  return (
    <button
      type="button"
      class={styles.title}
      title={title}
      aria-current={tab === selectedTab() ? "true" : undefined}
      onClick={() => {
        selectTab(tab);
        workspace.focus();
      }}
      onDblClick={onRename}
      onAuxClick={(event) => {
        if (event.button === 1) onClose();
      }}
      onKeyDown={press}
    >
      <RunMark tab={tab} />
      <span class={styles.name}>{title}</span>
    </button>
  );
}

/** Whether the statement of the tab runs, or has failed. */
function RunMark({ tab }: { tab: EditorTab }) {
  const execution = tab.execution.value;
  if (execution?.isActive.value) return <LoaderCircle class={styles.running} size={14} aria-label="Running" />;
  if (execution?.error.value) return <CircleAlert class={styles.failed} size={14} aria-label="Failed" />;
  return null;
}

function TitleInput({ tab, onEnd }: { tab: EditorTab; onEnd: () => void }) {
  const input = useRef<HTMLInputElement>(null);
  useEffect(() => input.current?.select(), []);
  const take = () => {
    const title = input.current?.value.trim();
    if (title) tab.update({ title });
    onEnd();
  };
  return (
    <input
      ref={input}
      class={styles.rename}
      aria-label="Name of the tab"
      defaultValue={tab.content.peek().title}
      maxLength={100}
      onBlur={take}
      onKeyDown={(event) => {
        if (event.key === "Enter") take();
        else if (event.key === "Escape") onEnd();
      }}
    />
  );
}
