import { useEffect, useRef, useState } from "preact/hooks";
import { type Login, session } from "../app/session.ts";
import { loginProblem } from "./texts.ts";

/** A form that logs in: whether a login is on its way, and why the last one failed. */
export function useLogin(credentials: string) {
  const [problem, setProblem] = useState("");
  const [isBusy, setBusy] = useState(false);
  // `autofocus` has an effect for the first form of a document only.
  const form = useRef<HTMLFormElement>(null);
  useEffect(() => form.current?.querySelector("input")?.focus(), []);
  const logIn = async (attempt: () => Promise<Login>) => {
    setBusy(true);
    setProblem("");
    try {
      await session.hasEnded();
      session.begin(await attempt());
    } catch (failure) {
      setProblem(loginProblem(failure, credentials));
      setBusy(false);
    }
  };
  return { form, problem, isBusy, logIn };
}

/** Return the text of a field of a form that was submitted. */
export function fieldOf(event: SubmitEvent, name: string): string {
  const form = event.currentTarget instanceof HTMLFormElement ? event.currentTarget : undefined;
  const value = new FormData(form).get(name);
  return typeof value === "string" ? value : "";
}
