import {
  BookMarked,
  FileUp,
  FolderOpen,
  History,
  KeyRound,
  LogOut,
  Monitor,
  Moon,
  ServerCog,
  SquareTerminal,
  Sun,
} from "lucide-preact";
import type { ComponentChildren, ComponentType, FunctionComponent } from "preact";
import { useEffect, useLayoutEffect, useState } from "preact/hooks";
import { useLocation } from "preact-iso";
import { clearToasts, notifyProblem, Toasts } from "../ui/Toasts.tsx";
import { isAdmin } from "./config.ts";
import { DropOverlay } from "./DropOverlay.tsx";
import icon from "./icon.svg";
import { at } from "./prefix.ts";
import styles from "./Shell.module.css";
import { session } from "./session.ts";
import { nextTheme, type Theme, theme } from "./theme.ts";

interface NavItem {
  path: `/${string}`;
  label: string;
  Icon: FunctionComponent<{ size?: number; "aria-hidden"?: boolean }>;
  isForAdmins?: boolean;
}

const ITEMS: readonly NavItem[] = [
  { path: "/editor", label: "Editor", Icon: SquareTerminal },
  { path: "/queries", label: "Queries", Icon: BookMarked },
  { path: "/history", label: "History", Icon: History },
  { path: "/files", label: "Files", Icon: FolderOpen },
  { path: "/import", label: "Import", Icon: FileUp },
  { path: "/admin", label: "Operate", Icon: ServerCog, isForAdmins: true },
];

const THEME_ICONS: Record<Theme, NavItem["Icon"]> = { system: Monitor, light: Sun, dark: Moon };
const ICON_PX = 20;

/** The frame of every view behind the login: navigation and the main area. */
export function Shell({ children }: { children: ComponentChildren }) {
  const { path } = useLocation();
  const [Tokens, setTokens] = useState<ComponentType<{ onClose: () => void }> | null>(null);
  const showTokens = async () => {
    const { TokensDialog } = await import("../admin/TokensDialog.tsx");
    setTokens(() => TokensDialog);
  };
  const ThemeIcon = THEME_ICONS[theme.value];
  const shown = ITEMS.find((item) => path.startsWith(at(item.path)))?.label;
  // Effects of views, which may set a title of their own, come after layout effects.
  // biome-ignore lint/correctness/useExhaustiveDependencies: each address gets its title, also after one of a view
  useLayoutEffect(() => {
    document.title = shown === undefined ? "Query Server" : `${shown} – Query Server`;
  }, [path, shown]);
  // The next user of this page must not read the messages of the one before.
  useEffect(() => clearToasts, []);
  return (
    <div class={styles.shell}>
      <a class={styles.skip} href="#main">
        Skip to content
      </a>
      <nav class={styles.nav} aria-label="Views">
        <a class={styles.home} href={at("/editor")} aria-label="Query Server">
          <img src={icon} alt="" width={32} height={32} />
        </a>
        {ITEMS.filter(({ isForAdmins }) => !isForAdmins || isAdmin.value).map(({ path: to, label, Icon }) => (
          <a key={to} class={styles.link} href={at(to)} aria-current={path.startsWith(at(to)) ? "page" : undefined}>
            <Icon size={ICON_PX} aria-hidden />
            {label}
          </a>
        ))}
        <div class={styles.end}>
          {/* Administrators have a page with the tokens of all users, and their own. */}
          {isAdmin.value ? null : (
            <button
              type="button"
              class={styles.link}
              onClick={() => showTokens().catch(notifyProblem)}
              aria-label="Tokens"
              title="Your API tokens"
            >
              <KeyRound size={ICON_PX} aria-hidden />
              <span class={styles.word}>Tokens</span>
            </button>
          )}
          <button
            type="button"
            class={styles.link}
            onClick={nextTheme}
            aria-label="Theme"
            title={`Theme: ${theme.value}`}
          >
            <ThemeIcon size={ICON_PX} aria-hidden />
            <span class={styles.word}>Theme</span>
          </button>
          <button
            type="button"
            class={styles.link}
            aria-label="Log out"
            title="Log out"
            onClick={() => void session.end()}
          >
            <LogOut size={ICON_PX} aria-hidden />
            <span class={styles.word}>Log out</span>
          </button>
        </div>
      </nav>
      <main id="main" class={styles.main} tabIndex={-1}>
        {children}
      </main>
      {Tokens ? <Tokens onClose={() => setTokens(null)} /> : null}
      <Toasts />
      <DropOverlay />
    </div>
  );
}
