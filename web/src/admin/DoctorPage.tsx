import { CircleCheck, CircleX, Stethoscope, TriangleAlert } from "lucide-preact";
import type { FunctionComponent } from "preact";
import { api, data } from "../api/client.ts";
import { Button } from "../ui/Button.tsx";
import { ErrorMessage, Loading } from "../ui/States.tsx";
import { durationText } from "../ui/texts.ts";
import { useLoaded } from "../ui/useLoaded.ts";
import styles from "./admin.module.css";
import own from "./DoctorPage.module.css";
import { type Area, areasOf, type Finding, type State, summaryOf } from "./findings.ts";

interface Look {
  label: string;
  Icon: FunctionComponent<{ size?: number; "aria-hidden"?: boolean }>;
  color: string | undefined;
}

const LOOKS: Record<State, Look> = {
  ok: { label: "OK", Icon: CircleCheck, color: styles.good },
  warning: { label: "Warning", Icon: TriangleAlert, color: styles.warning },
  error: { label: "Error", Icon: CircleX, color: styles.bad },
};

/** What the doctor finds; it examines the deployment when the page is opened, and again on request. */
export function DoctorPage() {
  const { value, problem, isLoading, reload } = useLoaded("doctor", (signal) =>
    data(api.GET("/api/v1/admin/doctor", { signal })),
  );
  return (
    <>
      <div class={styles.head}>
        <div role="status">
          {value ? <p class={own.summary}>{isLoading ? "Examining again…" : summaryOf(value)}</p> : null}
          {value && !isLoading ? (
            <p class={styles.soft}>
              Examined by {value.host} in {durationText(value.took_ms)}.
            </p>
          ) : null}
        </div>
        <Button disabled={isLoading} onClick={reload}>
          <Stethoscope size={16} aria-hidden />
          Run again
        </Button>
      </div>
      {problem ? <ErrorMessage problem={problem} onRetry={reload} /> : null}
      {value === null && !problem ? <Loading label="Examining the deployment" /> : null}
      {value ? (
        <div class={own.areas}>
          {areasOf(value.findings).map((area) => (
            <AreaCard key={area.name} area={area} />
          ))}
        </div>
      ) : null}
    </>
  );
}

function AreaCard({ area }: { area: Area }) {
  const isMixed = area.findings.some(({ state }) => state !== area.state);
  return (
    <section class={own.area} aria-label={area.name}>
      <h2 class={own.name}>
        <span class={own.title}>{area.name}</span>
        <StateLabel state={area.state} />
      </h2>
      <ul class={own.findings}>
        {area.findings.map((finding, index) => (
          <FindingItem key={`${index}:${finding.what}`} finding={finding} hasState={isMixed} />
        ))}
      </ul>
    </section>
  );
}

function FindingItem({ finding, hasState }: { finding: Finding; hasState: boolean }) {
  return (
    <li class={own.finding}>
      {hasState ? <StateLabel state={finding.state} /> : null}
      <div>
        <p>{finding.what}</p>
        {finding.to_do ? <p class={styles.soft}>{finding.to_do}</p> : null}
      </div>
    </li>
  );
}

function StateLabel({ state }: { state: State }) {
  const { label, Icon, color } = LOOKS[state];
  return (
    <span class={`${styles.state} ${color ?? ""}`}>
      <Icon size={16} aria-hidden />
      {label}
    </span>
  );
}
