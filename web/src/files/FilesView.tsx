import { useLocation } from "preact-iso";
import { EmptyState, ErrorMessage, Loading } from "../ui/States.tsx";
import { DirectoryView } from "./DirectoryView.tsx";
import { FilePage } from "./FilePage.tsx";
import styles from "./files.module.css";
import { Places } from "./Places.tsx";
import { storeOf, useStores } from "./stores.ts";
import { Transfers } from "./Transfers.tsx";

/** The files of the stores. The address holds the path, so links and the way back of the browser lead to it. */
export function FilesView() {
  const { query } = useLocation();
  const { stores, problem, reload } = useStores();
  return (
    <div class={styles.view}>
      <h1 class="visually-hidden">Files</h1>
      {problem ? <ErrorMessage problem={problem} onRetry={reload} /> : null}
      {!stores && !problem ? <Loading label="Loading stores" /> : null}
      {stores?.length === 0 ? (
        <EmptyState title="No file store">No store is configured, or you have no access to one.</EmptyState>
      ) : null}
      {stores?.[0] ? (
        <Stores {...{ stores }} path={query.path || stores[0].user_home_directory} sort={query.sort ?? ""} />
      ) : null}
    </div>
  );
}

interface Props {
  stores: NonNullable<ReturnType<typeof useStores>["stores"]>;
  path: string;
  sort: string;
}

function Stores({ stores, path, sort }: Props) {
  const store = storeOf(path, stores);
  return (
    <>
      <Places stores={stores} path={path} />
      <div class={styles.main}>
        <DirectoryView key={path} {...{ path, sort, store }} ofFile={<FilePage path={path} store={store} />} />
        <Transfers />
      </div>
    </>
  );
}
