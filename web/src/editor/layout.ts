/** The layout of the editor, as far as it is not the size of a pane. */
import { effect, signal } from "@preact/signals";
import { browserStorage } from "../app/storage.ts";

const KEY = "queryserver.layout.editor.side";
const narrow = matchMedia("(max-width: 720px)");

/** Whether the window is too narrow for two columns. */
export const isNarrow = signal(narrow.matches);
/** Whether the tables are shown: beside the text, or in narrow windows in place of it. */
export const isSideOpen = signal(!narrow.matches && browserStorage.get(KEY) !== "closed");

narrow.addEventListener("change", () => {
  isNarrow.value = narrow.matches;
  isSideOpen.value = !narrow.matches && browserStorage.get(KEY) !== "closed";
});

effect(() => {
  const isOpen = isSideOpen.value;
  // In a narrow window the panel is opened for one choice only.
  if (!isNarrow.peek()) browserStorage.set(KEY, isOpen ? "open" : "closed");
});
