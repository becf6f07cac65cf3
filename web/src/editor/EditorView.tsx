import { EmptyState } from "../ui/States.tsx";

export function EditorView() {
  return (
    <>
      <h1 class="visually-hidden">Editor</h1>
      <EmptyState title="This view is not built yet." />
    </>
  );
}
