/** The views by path. Each is loaded when it is first opened, so that the first page stays small. */
import type { FunctionComponent } from "preact";
import { useEffect } from "preact/hooks";
import { lazy, Route, Router, useLocation } from "preact-iso";
import { EmptyState } from "../ui/States.tsx";
import { at } from "./prefix.ts";
import { MissingView } from "./ViewBoundary.tsx";

const EditorView = lazy(() => import("../editor/EditorView.tsx").then((module) => module.EditorView, missing));
const SharedResultView = lazy(() =>
  import("../results/SharedResultView.tsx").then((module) => module.SharedResultView, missing),
);
const TableDetails = lazy(() => import("../catalog/TableDetails.tsx").then((module) => module.TableDetails, missing));
const QueriesView = lazy(() => import("../queries/QueriesView.tsx").then((module) => module.QueriesView, missing));
const HistoryView = lazy(() => import("../queries/HistoryView.tsx").then((module) => module.HistoryView, missing));
const FilesView = lazy(() => import("../files/FilesView.tsx").then((module) => module.FilesView, missing));
const AdminView = lazy(() => import("../admin/AdminView.tsx").then((module) => module.AdminView, missing));
const ImportView = lazy(() => import("../imports/ImportView.tsx").then((module) => module.ImportView, missing));

function missing(): FunctionComponent {
  return MissingView;
}

export function Views() {
  return (
    <Router>
      <Route path={at("/editor")} component={EditorView} />
      <Route path={at("/results/:operationId")} component={SharedResultView} />
      <Route path={at("/tables/:connector/:database/:table")} component={TableDetails} />
      <Route path={at("/queries")} component={QueriesView} />
      <Route path={at("/history")} component={HistoryView} />
      <Route path={at("/files")} component={FilesView} />
      <Route path={at("/import")} component={ImportView} />
      <Route path={at("/admin/:page?")} component={AdminView} />
      <Route path={at("/")} component={Home} />
      <Route default component={NotFound} />
    </Router>
  );
}

const Home: FunctionComponent = () => {
  const { route } = useLocation();
  useEffect(() => route(at("/editor"), true), [route]);
  return null;
};

const NotFound: FunctionComponent = () => <EmptyState title="There is no page at this address." />;
