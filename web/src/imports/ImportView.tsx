import { EmptyState } from "../ui/States.tsx";

export function ImportView() {
  return (
    <>
      <h1 class="visually-hidden">Import</h1>
      <EmptyState title="This view is not built yet." />
    </>
  );
}
