const meta = document.querySelector<HTMLMetaElement>('meta[name="url-prefix"]');

/** What the setting `desktop.url_prefix` puts before every path, without a slash at its end; usually empty. */
export const urlPrefix: string = meta?.content ?? "";

/** Return the address of a page of the console, for example `at("/files")`. Every link goes through it. */
export function at(path: `/${string}`): string {
  return urlPrefix + path;
}
