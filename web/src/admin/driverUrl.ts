/** The parts of a driver URL, `driver://user:password@host:port/database?option=value` (Contract platform 5.11). */

export interface UrlParts {
  driver: string;
  username: string;
  password: string;
  host: string;
  port: string;
  /** Without the first slash. */
  path: string;
  /** Options, as written in the URL. */
  query: string;
}

const URL_PATTERN =
  /^([a-z][\w+.-]*):\/\/(?:([^:@/?#]*)(?::([^@/?#]*))?@)?(\[[^\]@/?#]*\]|[^:@/?#[\]]*)(?::(\d*))?(?:\/([^?#]*))?(?:\?([^#]*))?$/i;
/** The server compares these with the text of the URL, so they are never percent-encoded. */
const PLACEHOLDERS = ["USER", "PASSWORD"].map((name) => `$\{${name}}`);

/** Return the parts of a URL, name and password decoded; null if the text is no URL that can be built from parts. */
export function urlParts(text: string): UrlParts | null {
  const found = URL_PATTERN.exec(text.trim());
  if (!found) return null;
  const [, driver = "", username = "", password = "", host = "", port = "", path = "", query = ""] = found;
  try {
    return {
      driver,
      username: decodeURIComponent(username),
      password: decodeURIComponent(password),
      host,
      port,
      path,
      query,
    };
  } catch {
    return null; // a percent sign that begins no code
  }
}

/** Return the URL of these parts. Empty parts are left out, with their separators. */
export function urlText({ driver, username, password, host, port, path, query }: UrlParts): string {
  const secret = password ? `:${encoded(password)}` : "";
  const login = username || password ? `${encoded(username)}${secret}@` : "";
  const server = `${host}${port ? `:${port}` : ""}`;
  return `${driver}://${login}${server}${path ? `/${path}` : ""}${query ? `?${query}` : ""}`;
}

/** Return the beginning of a new URL: driver and port of an example; null if the example has no such parts. */
export function urlBeginning(example: string): string | null {
  const parts = urlParts(example);
  if (!parts) return null;
  return urlText({ ...parts, username: "", password: "", host: "", path: "", query: "" });
}

function encoded(text: string): string {
  return PLACEHOLDERS.includes(text) ? text : encodeURIComponent(text);
}
