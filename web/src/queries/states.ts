import type { Schemas } from "../api/client.ts";

/** The states of statements as lists show them. */
export const STATE_TEXTS: Record<Schemas["HistoryEntry"]["data"]["state"], string> = {
  waiting: "Waiting",
  running: "Running",
  available: "Done",
  success: "Done",
  failed: "Failed",
  canceled: "Canceled",
  timed_out: "Timed out",
  expired: "Expired",
  closed: "Closed",
};
