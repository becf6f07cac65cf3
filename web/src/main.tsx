import "./ui/tokens.css";
import "./ui/base.css";
import { render } from "preact";
import { App } from "./app/App.tsx";

const root = document.getElementById("app");
if (root) render(<App />, root);
