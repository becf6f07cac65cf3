import { HardDrive, House, Trash2 } from "lucide-preact";
import { useLocation } from "preact-iso";
import { api, data } from "../api/client.ts";
import { notify, notifyProblem } from "../ui/Toasts.tsx";
import styles from "./files.module.css";
import { addressOf, isInTrash, isWithin, rootOf } from "./paths.ts";
import { type Store, TITLES } from "./stores.ts";

/** The stores, with the places in them that users go to first. */
export function Places({ stores, path }: { stores: readonly Store[]; path: string }) {
  return (
    <nav class={styles.places} aria-label="Stores">
      {stores.map((store) => (
        <StorePlaces key={store.name} store={store} path={path} />
      ))}
    </nav>
  );
}

function StorePlaces({ store, path }: { store: Store; path: string }) {
  const { route } = useLocation();
  const { user_home_directory: home, file_system: scheme } = store;
  const root = rootOf(home);
  const openTrash = async () => {
    const params = { query: { path: home } };
    const { trash_path: trash } = await data(api.GET("/api/v1/storage/trash/path", { params }));
    if (trash === null) notify("The trash is empty.");
    else route(addressOf(trash));
  };
  const isHome = isWithin(path, home) && !isInTrash(path);
  return (
    <div class={styles.store}>
      <h2>{TITLES[scheme]}</h2>
      <a href={addressOf(home)} aria-current={isHome && home !== root ? "true" : undefined}>
        <House size={16} aria-hidden />
        Home
      </a>
      <a href={addressOf(root)} aria-current={path === root ? "true" : undefined}>
        <HardDrive size={16} aria-hidden />
        All files
      </a>
      {store.has_trash ? (
        <button type="button" onClick={() => openTrash().catch(notifyProblem)}>
          <Trash2 size={16} aria-hidden />
          Trash
        </button>
      ) : null}
    </div>
  );
}
