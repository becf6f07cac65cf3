/** Colors and fonts of the page as values that a canvas takes. */

export interface Look {
  text: string;
  textSoft: string;
  line: string;
  surface: string;
  series: readonly string[];
  font: string;
}

const SERIES_TOKENS = ["--series-1", "--series-2", "--series-3", "--series-4", "--series-5", "--series-6"];

/** Return the look of the page as it is now, light or dark. */
export function lookOf(host: HTMLElement): Look {
  // A custom property returns its text, light-dark(…). As the color of an element it is resolved.
  const probe = document.createElement("span");
  host.append(probe);
  const resolve = (token: string) => {
    probe.style.color = `var(${token})`;
    return getComputedStyle(probe).color;
  };
  const look = {
    text: resolve("--text"),
    textSoft: resolve("--text-soft"),
    line: resolve("--line"),
    surface: resolve("--surface"),
    series: SERIES_TOKENS.map(resolve),
    font: `12px ${getComputedStyle(probe).fontFamily}`,
  };
  probe.remove();
  return look;
}

/** Return a resolved color with this opacity. */
export function translucent(color: string, opacity: number): string {
  return color.replace(/^rgb\((.*)\)$/, `rgba($1, ${opacity})`);
}
