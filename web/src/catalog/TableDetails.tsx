import { EmptyState } from "../ui/States.tsx";

export function TableDetails() {
  return (
    <>
      <h1 class="visually-hidden">Table</h1>
      <EmptyState title="This view is not built yet." />
    </>
  );
}
