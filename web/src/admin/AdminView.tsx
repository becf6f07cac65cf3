import { EmptyState } from "../ui/States.tsx";

export function AdminView() {
  return (
    <>
      <h1 class="visually-hidden">Operate</h1>
      <EmptyState title="This view is not built yet." />
    </>
  );
}
