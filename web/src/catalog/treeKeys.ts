import type { TreeRow } from "./treeRows.ts";

/** What a key does: select the line at an index, open or close the selected line, or show its menu. */
type Command = { do: "select"; index: number } | { do: "activate" } | { do: "menu" };

type Pressed = Pick<KeyboardEvent, "key" | "shiftKey">;

/**
 * Return what a key does in a tree, or null if it has no meaning there.
 *
 * `page` is the number of lines that page keys move by, `word` the letters typed so far. The index may be outside of
 * the list; the caller limits it.
 */
export function commandOf(
  rows: readonly TreeRow[],
  active: number,
  { key, shiftKey }: Pressed,
  page: number,
  word: string,
): Command | null {
  const row = rows[active];
  if (key === "ContextMenu" || (key === "F10" && shiftKey)) return { do: "menu" };
  if (key === "Enter" || key === " ") return row ? { do: "activate" } : null;
  if (key === "ArrowRight" && row?.isOpen === false) return { do: "activate" };
  if (key === "ArrowLeft" && row?.isOpen === true) return { do: "activate" };
  const index = target(rows, active, key, page) ?? (word === "" ? null : found(rows, active, word));
  return index === null ? null : { do: "select", index };
}

function target(rows: readonly TreeRow[], active: number, key: string, page: number): number | null {
  const moves: Readonly<Record<string, number | null>> = {
    ArrowDown: active + 1,
    ArrowUp: active - 1,
    Home: 0,
    End: rows.length - 1,
    PageDown: active + page,
    PageUp: active - page,
    ArrowRight: rows[active]?.isOpen ? active + 1 : null,
    ArrowLeft: parentIndex(rows, active),
  };
  return moves[key] ?? null;
}

function parentIndex(rows: readonly TreeRow[], active: number): number | null {
  const level = rows[active]?.level ?? 0;
  for (let index = active - 1; index >= 0; index--) {
    if ((rows[index]?.level ?? 0) < level) return index;
  }
  return null;
}

/** The next line that starts with the word. One letter, also repeated, moves on; a longer word may match this line. */
function found(rows: readonly TreeRow[], active: number, word: string): number | null {
  const isOneLetter = [...word].every((letter) => letter === word[0]);
  const wanted = isOneLetter ? word.slice(0, 1) : word;
  for (let step = isOneLetter ? 1 : 0; step <= rows.length; step++) {
    const index = (Math.max(active, 0) + step) % rows.length;
    if (rows[index]?.node?.label.toLowerCase().startsWith(wanted)) return index;
  }
  return null;
}
