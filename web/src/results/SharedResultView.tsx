import { EmptyState } from "../ui/States.tsx";

export function SharedResultView() {
  return (
    <>
      <h1 class="visually-hidden">Result</h1>
      <EmptyState title="This view is not built yet." />
    </>
  );
}
