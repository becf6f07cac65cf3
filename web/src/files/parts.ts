/** How a file is cut into the parts of an upload (Contract storage 9.2), and what is left to send. */
import { newKey } from "../api/keys.ts";

export interface PartPlan {
  size: number;
  partBytes: number;
  parts: number;
}

/** S3 refuses smaller parts, except as the last one. */
const MIN_PART_BYTES = 5 * 1024 * 1024;
const MAX_PARTS = 10_000;

/** Return the plan for a file of `size` bytes; `preferredBytes` is the server's preference. An empty file is one part. */
export function planOf(size: number, preferredBytes: number): PartPlan {
  const partBytes = Math.max(MIN_PART_BYTES, preferredBytes, Math.ceil(size / MAX_PARTS));
  return { size, partBytes, parts: Math.max(1, Math.ceil(size / partBytes)) };
}

/** Return the first byte of a part, and the byte after its last one. */
export function rangeOf(plan: PartPlan, part: number): readonly [number, number] {
  return [part * plan.partBytes, Math.min(plan.size, (part + 1) * plan.partBytes)];
}

export function allParts(plan: PartPlan): readonly number[] {
  return Array.from({ length: plan.parts }, (_, part) => part);
}

/** Return how many bytes have arrived if these parts are missing. */
export function arrivedBytes(plan: PartPlan, missing: Iterable<number>): number {
  let left = 0;
  for (const part of missing) {
    const [start, end] = rangeOf(plan, part);
    left += end - start;
  }
  return plan.size - left;
}

const FIRST_PAUSE_MS = 500;
const LONGEST_PAUSE_MS = 15_000;

/** Return the pause before attempt number `attempt` (from 0): doubling, up to 15 s. */
export function pauseMs(attempt: number, retryAfterS: number | null): number {
  if (retryAfterS !== null) return Math.min(60_000, retryAfterS * 1000);
  return Math.min(LONGEST_PAUSE_MS, FIRST_PAUSE_MS * 2 ** attempt);
}

/** Return the SHA-256 of bytes in hexadecimal digits; null on pages without https, where browsers do not offer it. */
export async function sha256(bytes: ArrayBuffer): Promise<string | null> {
  if (!globalThis.isSecureContext || globalThis.crypto?.subtle === undefined) return null;
  const digest = new Uint8Array(await crypto.subtle.digest("SHA-256", bytes));
  return Array.from(digest, (byte) => byte.toString(16).padStart(2, "0")).join("");
}

/** Return a random UUID, also on pages without https. */
export function newUuid(): string {
  const digits = newKey();
  const variant = ((Number.parseInt(digits.slice(16, 18), 16) & 0x3f) | 0x80).toString(16);
  const groups = [digits.slice(0, 8), digits.slice(8, 12), `4${digits.slice(13, 16)}`, variant + digits.slice(18, 20)];
  return [...groups, digits.slice(20)].join("-");
}
