import { notify, notifyProblem } from "./Toasts.tsx";

/** Copy a text, and show a message that it is copied. Pages on plain http have no clipboard, except on localhost. */
export async function copyText(text: string, what = "Copied."): Promise<void> {
  try {
    if (!navigator.clipboard) throw new Error("The browser permits copying only over https or on localhost.");
    await navigator.clipboard.writeText(text);
    notify(what);
  } catch (problem) {
    notifyProblem(problem);
  }
}
