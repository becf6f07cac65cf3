import { FileUp } from "lucide-preact";
import { useEffect } from "preact/hooks";
import { useLocation } from "preact-iso";
import { config } from "./config.ts";
import styles from "./DropOverlay.module.css";
import { isDraggingFile, watchDrops } from "./drop.ts";
import { at } from "./prefix.ts";

/** Opens the import with a file that is dropped on the page, and says so while the file is dragged over it. */
export function DropOverlay() {
  const { route } = useLocation();
  const isEnabled = config.value?.importer.is_enabled ?? false;
  useEffect(() => {
    if (!isEnabled) return;
    return watchDrops(() => route(at("/import")));
  }, [isEnabled, route]);
  if (!isDraggingFile.value) return null;
  return (
    <div class={styles.overlay} aria-hidden>
      <div class={styles.card}>
        <FileUp size={28} aria-hidden />
        Drop the file to import it as a table
      </div>
    </div>
  );
}
