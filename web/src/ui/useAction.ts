import { useState } from "preact/hooks";

interface Action {
  isBusy: boolean;
  problem: unknown;
  run: (action: () => Promise<void>) => void;
}

/** The state of a call that a button starts: whether it runs, and why it failed. */
export function useAction(): Action {
  const [isBusy, setBusy] = useState(false);
  const [problem, setProblem] = useState<unknown>(null);
  const run = (action: () => Promise<void>) => {
    setBusy(true);
    setProblem(null);
    action()
      .catch(setProblem)
      .finally(() => setBusy(false));
  };
  return { isBusy, problem, run };
}
