import { CircleCheck, CircleX, RotateCw } from "lucide-preact";
import { api, data, type Schemas } from "../api/client.ts";
import { IconButton } from "../ui/Button.tsx";
import { EmptyState, ErrorMessage, Loading } from "../ui/States.tsx";
import { ago, dateText } from "../ui/texts.ts";
import { useLoaded } from "../ui/useLoaded.ts";
import styles from "./admin.module.css";
import { useRefreshed } from "./useRefreshed.ts";

type Instance = Schemas["AdminInstance"];

const REFRESH_MS = 10_000;
const KINDS: Record<Instance["kind"], string> = { server: "Server", worker: "Worker", beat: "Beat" };

/** The processes of the fleet (Contract platform 7.10). */
export function InstancesPage() {
  const { value, problem, isLoading, reload } = useLoaded("instances", async (signal) => {
    const answer = await data(api.GET("/api/v1/admin/instances", { signal }));
    return answer.instances;
  });
  useRefreshed(isLoading, reload, REFRESH_MS);
  return (
    <>
      <div class={styles.head}>
        <p class={styles.soft}>Processes of the last day. Those that ended regularly are not listed.</p>
        <IconButton label="Reload the instances" onClick={reload}>
          <RotateCw size={16} aria-hidden />
        </IconButton>
      </div>
      {problem ? <ErrorMessage problem={problem} onRetry={reload} /> : null}
      {value === null && !problem ? <Loading label="Loading instances" /> : null}
      {value?.length === 0 ? <EmptyState title="No process has sent a heartbeat within the last day." /> : null}
      {value && value.length > 0 ? <InstanceTable instances={value} /> : null}
    </>
  );
}

function InstanceTable({ instances }: { instances: readonly Instance[] }) {
  return (
    // biome-ignore lint/a11y/noNoninteractiveTabindex: a region that scrolls must be reachable with the keyboard
    <section class={styles.scroller} aria-label="Instances" tabIndex={0}>
      <table class={styles.table}>
        <thead>
          <tr>
            <th scope="col">State</th>
            <th scope="col">Name</th>
            <th scope="col">Kind</th>
            <th scope="col" class={styles.number}>
              Running
            </th>
            <th scope="col" class={styles.number}>
              Places
            </th>
            <th scope="col">Started</th>
            <th scope="col">Last heartbeat</th>
            <th scope="col">Version</th>
            <th scope="col">Id</th>
          </tr>
        </thead>
        <tbody>
          {instances.map((one) => (
            <tr key={one.id}>
              <td>
                <Alive isAlive={one.is_alive} />
              </td>
              <th scope="row" title={one.name}>
                {one.name}
              </th>
              <td>{KINDS[one.kind]}</td>
              <td class={styles.number}>{one.running}</td>
              <td class={styles.number}>{one.capacity > 0 ? one.capacity : "–"}</td>
              <td>
                <time dateTime={one.started} title={dateText(one.started)}>
                  {ago(one.started)}
                </time>
              </td>
              <td>
                <time dateTime={one.heartbeat} title={dateText(one.heartbeat)}>
                  {ago(one.heartbeat)}
                </time>
              </td>
              <td>{one.version}</td>
              <td title={one.id}>{one.id}</td>
            </tr>
          ))}
        </tbody>
      </table>
    </section>
  );
}

function Alive({ isAlive }: { isAlive: boolean }) {
  const Icon = isAlive ? CircleCheck : CircleX;
  return (
    <span class={`${styles.state} ${isAlive ? styles.good : styles.bad}`}>
      <Icon size={16} aria-hidden />
      {isAlive ? "Alive" : "Stopped unexpectedly"}
    </span>
  );
}
