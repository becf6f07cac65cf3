import { notify, notifyProblem } from "./Toasts.tsx";

/** Copy a text, and show a message that it is copied. */
export async function copyText(text: string, what = "Copied."): Promise<void> {
  try {
    if (navigator.clipboard) await navigator.clipboard.writeText(text);
    else copyByCommand(text);
    notify(what);
  } catch (problem) {
    notifyProblem(problem);
  }
}

/** Copy with the old command: pages on plain http have no other way, except on localhost. */
function copyByCommand(text: string): void {
  const source = document.createElement("textarea");
  source.value = text;
  source.className = "visually-hidden";
  const focused = document.activeElement;
  (document.querySelector("dialog[open]") ?? document.body).append(source);
  source.select();
  const isCopied = document.execCommand("copy");
  source.remove();
  if (focused instanceof HTMLElement) focused.focus();
  if (!isCopied) throw new Error("The browser does not permit copying.");
}
