import type { ComponentChildren } from "preact";
import { useEffect, useErrorBoundary } from "preact/hooks";
import { useLocation } from "preact-iso";
import { Button } from "../ui/Button.tsx";
import { EmptyState } from "../ui/States.tsx";

/** Shows a message in place of a view that cannot be rendered, until another address is opened. */
export function ViewBoundary({ children }: { children: ComponentChildren }) {
  const { url } = useLocation();
  // Not `reportError` itself, which Preact would call as a method of another object: an "Illegal invocation".
  const [problem, reset] = useErrorBoundary((cause) => reportError(cause));
  // biome-ignore lint/correctness/useExhaustiveDependencies: another address is another attempt
  useEffect(reset, [url]);
  if (problem) return <Failure title="This view cannot be shown." />;
  return <>{children}</>;
}

/** A view whose files cannot be loaded: a server that was updated has files of other names. */
export function MissingView() {
  return <Failure title="This view could not be loaded. Perhaps the server was updated." />;
}

function Failure({ title }: { title: string }) {
  return (
    <div role="alert">
      <EmptyState title={title}>
        <Button onClick={() => location.reload()}>Reload the page</Button>
      </EmptyState>
    </div>
  );
}
