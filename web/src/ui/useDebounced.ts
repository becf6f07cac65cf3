import { useEffect, useState } from "preact/hooks";

/** Return the value as it was when it last rested for this time, so that typing does not start a call per key. */
export function useDebounced<T>(value: T, ms = 250): T {
  const [rested, setRested] = useState(value);
  useEffect(() => {
    const timer = setTimeout(() => setRested(value), ms);
    return () => clearTimeout(timer);
  }, [value, ms]);
  return rested;
}
