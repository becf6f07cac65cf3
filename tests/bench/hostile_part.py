"""One hostile user among ten ordinary users for two minutes, followed by a minute without attacks."""

from pathlib import Path

from tests.bench.setting import Measured
from tests.hostile import scenario


async def hostile(folder: Path) -> list[Measured]:
    """Return the ordinary users' latencies and failures, and the server's resource usage.

    Errors and the responses to attacks are printed.
    """
    report = await scenario.run(folder, attacked_s=120, afterward_s=60)
    for error in report.errors[:20]:
        print(f"  {error}")
    for outcome, number in sorted(report.outcomes.items()):
        print(f"  {number:5} x {outcome}")
    limit = f"< {scenario.P99_MS} ms"
    return [
        Measured("calls of ten users beside a hostile one", str(report.calls)),
        Measured("errors of theirs", str(len(report.errors)), "0"),
        Measured("their statements lost to the process of the file that it shares", str(report.lost)),
        Measured("check_status p50", f"{report.quantile_ms(0.5, of='check_status_ms'):.0f} ms"),
        Measured("check_status p99", f"{report.quantile_ms(0.99, of='check_status_ms'):.0f} ms", limit),
        Measured("pages p50", f"{report.quantile_ms(0.5, of='pages_ms'):.0f} ms"),
        Measured("pages p99", f"{report.quantile_ms(0.99, of='pages_ms'):.0f} ms", limit),
        Measured("server process, before", f"{report.idle_mib:.0f} MiB"),
        Measured("server process, largest", f"{report.peak_mib:.0f} MiB", f"< {scenario.PEAK_MIB} MiB"),
        Measured("server and its helpers, largest", f"{report.peak_with_helpers_mib:.0f} MiB"),
        Measured(
            "server process, a minute after", f"{report.afterward_mib:.0f} MiB", f"< {scenario.AFTERWARD_MIB} MiB"
        ),
    ]
