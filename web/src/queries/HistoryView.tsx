import { EmptyState } from "../ui/States.tsx";

export function HistoryView() {
  return (
    <>
      <h1 class="visually-hidden">History</h1>
      <EmptyState title="This view is not built yet." />
    </>
  );
}
