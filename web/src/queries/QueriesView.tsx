import { EmptyState } from "../ui/States.tsx";

export function QueriesView() {
  return (
    <>
      <h1 class="visually-hidden">Queries</h1>
      <EmptyState title="This view is not built yet." />
    </>
  );
}
