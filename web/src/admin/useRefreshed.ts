import { useEffect } from "preact/hooks";

/** Call `reload` this long after the last load ended, again and again, while the page is visible. */
export function useRefreshed(isLoading: boolean, reload: () => void, everyMs: number): void {
  useEffect(() => {
    if (isLoading) return;
    let timer: ReturnType<typeof setTimeout> | undefined;
    const plan = () => {
      clearTimeout(timer);
      if (document.visibilityState === "visible") timer = setTimeout(reload, everyMs);
    };
    plan();
    document.addEventListener("visibilitychange", plan);
    return () => {
      clearTimeout(timer);
      document.removeEventListener("visibilitychange", plan);
    };
  }, [isLoading, reload, everyMs]);
}
