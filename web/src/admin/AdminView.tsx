import type { ComponentType } from "preact";
import { useEffect, useRef } from "preact/hooks";
import { lazy, useLocation } from "preact-iso";
import { isAdmin } from "../app/config.ts";
import { at } from "../app/prefix.ts";
import { EmptyState } from "../ui/States.tsx";
import styles from "./admin.module.css";

interface AdminPage {
  /** The second segment of the address. */
  key: string;
  label: string;
  Page: ComponentType;
}

const ConnectorsPage = lazy(() => import("./ConnectorsPage.tsx").then((module) => module.ConnectorsPage));
const DoctorPage = lazy(() => import("./DoctorPage.tsx").then((module) => module.DoctorPage));
const GroupsPage = lazy(() => import("./GroupsPage.tsx").then((module) => module.GroupsPage));
const InstancesPage = lazy(() => import("./InstancesPage.tsx").then((module) => module.InstancesPage));
const StatementsPage = lazy(() => import("./StatementsPage.tsx").then((module) => module.StatementsPage));
const TokensPage = lazy(() => import("./TokensPage.tsx").then((module) => module.TokensPage));
const UsersPage = lazy(() => import("./UsersPage.tsx").then((module) => module.UsersPage));

/** The pages for administrators, in the order in which they are listed. */
const PAGES: readonly AdminPage[] = [
  { key: "statements", label: "Statements", Page: StatementsPage },
  { key: "connectors", label: "Connectors", Page: ConnectorsPage },
  { key: "users", label: "Users", Page: UsersPage },
  { key: "groups", label: "Groups", Page: GroupsPage },
  { key: "tokens", label: "API tokens", Page: TokensPage },
  { key: "instances", label: "Instances", Page: InstancesPage },
  { key: "doctor", label: "Doctor", Page: DoctorPage },
];

/** The pages for administrators. The server checks the right too, in each call. */
export function AdminView({ page }: { page?: string }) {
  const { route } = useLocation();
  const isMissing = page === undefined;
  const pages = useRef<HTMLElement>(null);
  // In a narrow window, the link of the shown page may be outside of the bar.
  // biome-ignore lint/correctness/useExhaustiveDependencies: each page has another link
  useEffect(() => {
    pages.current?.querySelector("[aria-current]")?.scrollIntoView({ block: "nearest", inline: "nearest" });
  }, [page]);
  useEffect(() => {
    if (isAdmin.value && isMissing) route(at("/admin/statements"), true);
  }, [isMissing, route]);
  if (!isAdmin.value) {
    return (
      <>
        <h1 class="visually-hidden">Operate</h1>
        <EmptyState title="These pages are for administrators.">Your user is not an administrator.</EmptyState>
      </>
    );
  }
  if (isMissing) return null;
  const Page = PAGES.find(({ key }) => key === page)?.Page;
  return (
    <div class={styles.view}>
      <h1 class="visually-hidden">Operate</h1>
      <nav ref={pages} class={styles.pages} aria-label="Operate">
        {PAGES.map(({ key, label }) => (
          <a key={key} class={styles.page} href={at(`/admin/${key}`)} aria-current={key === page ? "page" : undefined}>
            {label}
          </a>
        ))}
      </nav>
      <div class={styles.content}>
        {Page ? <Page key={page} /> : <EmptyState title="There is no page at this address." />}
      </div>
    </div>
  );
}
