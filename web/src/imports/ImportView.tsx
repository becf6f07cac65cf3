import { useSignalEffect } from "@preact/signals";
import { useEffect } from "preact/hooks";
import { useLocation } from "preact-iso";
import { config } from "../app/config.ts";
import { droppedFile } from "../app/drop.ts";
import { at } from "../app/prefix.ts";
import { EmptyState } from "../ui/States.tsx";
import { DraftForm } from "./DraftForm.tsx";
import { RunPanel } from "./RunPanel.tsx";
import { leave, run } from "./run.ts";
import { SourcePanel } from "./SourcePanel.tsx";
import { arrival, draft, openFile, openStored, targets } from "./state.ts";

/** Makes a table of a file. `/import?path=…` begins with a file of a store. */
export function ImportView() {
  useGivenFile();
  if (!config.value?.importer.is_enabled) return <Impossible title="You do not have the right to import files." />;
  if (targets().length === 0) return <Impossible title="You have no data source in which tables can be created." />;
  if (run.value !== null) return <RunPanel key={run.value.execution.operationId.value} run={run.value} />;
  if (draft.value === null || arrival.value.kind !== "none" || arrival.value.problem) return <SourcePanel />;
  return <DraftForm key={draft.value.source.path} draft={draft.value} />;
}

function Impossible({ title }: { title: string }) {
  return (
    <>
      <h1 class="visually-hidden">Import</h1>
      <EmptyState title={title} />
    </>
  );
}

/** Begin with a file that was dropped on the page, or whose path another view gave. */
function useGivenFile(): void {
  const { query, route } = useLocation();
  const path = query.path ?? "";
  useSignalEffect(() => {
    const file = droppedFile.value;
    if (file === null) return;
    droppedFile.value = null;
    leave();
    void openFile(file);
  });
  useEffect(() => {
    if (path === "") return;
    leave();
    void openStored(path);
    // A return to this page must not read the file again.
    route(at("/import"), true);
  }, [path, route]);
}
