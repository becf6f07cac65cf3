/** Return a new `Idempotency-Key`: a call that is repeated with its key takes effect once. */
export function newKey(): string {
  // crypto.randomUUID exists in secure contexts only, and servers in private networks often have no certificate.
  return Array.from(crypto.getRandomValues(new Uint8Array(16)), (byte) => byte.toString(16).padStart(2, "0")).join("");
}
