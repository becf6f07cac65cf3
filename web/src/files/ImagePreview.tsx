import { useState } from "preact/hooks";
import { ticketed } from "../app/download.ts";
import { ErrorMessage, Loading } from "../ui/States.tsx";
import { useLoaded } from "../ui/useLoaded.ts";
import { downloadUrl } from "./downloads.ts";
import { nameOf } from "./paths.ts";
import styles from "./preview.module.css";

export function ImagePreview({ path }: { path: string }) {
  const { value: url, problem, reload } = useLoaded(path, () => ticketed(downloadUrl(path, true)));
  const [isBroken, setBroken] = useState(false);
  if (problem) return <ErrorMessage problem={problem} onRetry={reload} />;
  if (isBroken) return <ErrorMessage problem={new Error("The browser cannot show this image.")} />;
  if (!url) return <Loading />;
  return (
    <div class={styles.image}>
      <img src={url} alt={nameOf(path)} onError={() => setBroken(true)} />
    </div>
  );
}
