import { EmptyState } from "../ui/States.tsx";

export function FilesView() {
  return (
    <>
      <h1 class="visually-hidden">Files</h1>
      <EmptyState title="This view is not built yet." />
    </>
  );
}
