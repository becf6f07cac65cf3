/** The findings of the doctor, by area (Contract platform 7.11). */
import type { Schemas } from "../api/client.ts";

export type Report = Schemas["AdminDoctorResponse"];
export type Finding = Schemas["DoctorFinding"];
export type State = Finding["state"];

export interface Area {
  name: string;
  /** The most severe state of its findings. */
  state: State;
  findings: readonly Finding[];
}

const SEVERITY: Record<State, number> = { error: 0, warning: 1, ok: 2 };

/** Return the areas with their findings: the most severe first, else in the order of the server. */
export function areasOf(findings: readonly Finding[]): Area[] {
  const areas = new Map<string, Finding[]>();
  for (const finding of findings) areas.set(finding.area, [...(areas.get(finding.area) ?? []), finding]);
  return [...areas]
    .map(([name, some]) => {
      const sorted = some.toSorted((one, other) => SEVERITY[one.state] - SEVERITY[other.state]);
      return { name, findings: sorted, state: sorted[0]?.state ?? "ok" };
    })
    .toSorted((one, other) => SEVERITY[one.state] - SEVERITY[other.state]);
}

/** Return the number of errors and warnings as text. */
export function summaryOf({ errors, warnings }: Pick<Report, "errors" | "warnings">): string {
  if (errors === 0 && warnings === 0) return "No problems were found.";
  return `${counted(errors, "error")}, ${counted(warnings, "warning")}.`;
}

function counted(count: number, noun: string): string {
  return `${count} ${noun}${count === 1 ? "" : "s"}`;
}
