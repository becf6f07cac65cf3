/** Return the address of the content of a file. It needs a ticket, see `app/download.ts`. */
export function downloadUrl(path: string, isInline = false): string {
  const disposition = isInline ? "&disposition=inline" : "";
  return `/api/v1/storage/download?path=${encodeURIComponent(path)}${disposition}`;
}
