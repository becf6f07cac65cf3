export function CatalogTree(_: { connector: string; onInsert?: (text: string) => void }) {
  return null;
}
