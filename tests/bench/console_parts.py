"""The web console in a Chromium on the server's machine: first view, first row, scrolling and typing.

Times are read from the browser's clock in the animation frame after the one in which a text is in the page.
"""

import time
from statistics import median

import httpx
from playwright.async_api import BrowserContext, Page, Route
from tests.bench.setting import PASSWORD, Bench, Measured, administrator_token
from tests.console.conftest import WIDE, log_in, running_browser
from tests.console.results import calls, open_result, run

_USER = "root"
_ROUNDS = 7
_WAIT_MS = 30_000
_ROWS = "SELECT i AS id, 'row ' || i AS text, i / 7.0 AS ratio, i % 13 = 0 AS flag FROM range({count}) t(i)"
# A statement of about a second: the page learns of its end from the event stream, not from the response of execute.
_SECOND = "SELECT count(*) + {number} AS answer FROM range(300000000) t(i) WHERE i % 3 = 1"
_TEXT = "SELECT country, sum(amount) AS total FROM shop.orders WHERE ordered_at > '2024-01-01' GROUP BY country "
_WATCH = """
  window.seen = new Map();
  window.tasks = [];
  window.inputs = [];
  const isEditor = (one) => one.shadowRoot?.querySelector(".cm-content");
  const look = () => {
    const found = [...document.querySelectorAll("[role=gridcell]")].map((one) => one.textContent);
    if (document.querySelector("[type=password]")) found.push("login");
    const hasEditor = [...document.querySelectorAll("div")].some(isEditor);
    if (hasEditor && document.querySelector("[role=treeitem]")) found.push("editor");
    for (const text of found.filter((one) => !window.seen.has(one))) {
      window.seen.set(text, Infinity);
      requestAnimationFrame(() => window.seen.set(text, performance.timeOrigin + performance.now()));
    }
    requestAnimationFrame(look);
  };
  requestAnimationFrame(look);
  new PerformanceObserver((list) => window.tasks.push(...list.getEntries().map((one) => one.duration)))
    .observe({ type: "longtask" });
  new PerformanceObserver((list) => window.inputs.push(...list.getEntries().map((one) => one.duration)))
    .observe({ type: "event", durationThreshold: 16 });
"""
_TRANSFERRED_KIB = """
  performance.getEntriesByType("resource").filter((one) => one.name.includes("/console/assets/"))
    .reduce((sum, one) => sum + one.transferSize, 0) / 1024
"""
_SCROLL = """async (grid) => {
  const frame = () => new Promise(requestAnimationFrame);
  const gaps = [];
  let last = await frame();
  while (grid.scrollTop < grid.scrollHeight - grid.clientHeight - 1) {
    grid.scrollTop += 300;
    const now = await frame();
    gaps.push(now - last);
    last = now;
  }
  return gaps;
}"""
_JUMP = """async (grid, share) => {
  const frame = () => new Promise(requestAnimationFrame);
  const box = grid.getBoundingClientRect();
  const began = performance.now();
  grid.scrollTop = (grid.scrollHeight - grid.clientHeight) * share;
  const isShown = (cell) => {
    const { top, bottom } = cell.getBoundingClientRect();
    return bottom < box.bottom && top > box.top && cell.textContent.startsWith("row ");
  };
  do await frame(); while (![...grid.querySelectorAll("[role=gridcell]")].some(isShown));
  return performance.now() - began;
}"""


async def console(bench: Bench) -> list[Measured]:
    """Measure the console with the browser of an administrator."""
    await administrator_token(bench)
    async with running_browser() as browser:

        async def profile() -> BrowserContext:
            context = await browser.new_context(base_url=bench.server.base_url, viewport=WIDE)
            await context.add_init_script(_WATCH)
            return context

        measured = [*await _first_views([await profile() for _ in range(_ROUNDS)])]
        for measure in (_first_rows, _scrolling, _jumps, _typing):
            context = await profile()
            measured += await measure(context, bench)
            await context.close()
        return measured


async def _first_views(profiles: list[BrowserContext]) -> list[Measured]:
    """Open the page in new profiles, whose caches are empty, and again when the user is logged in."""
    logins, editors, again = list[float](), list[float](), list[float]()
    loaded_kib = 0.0
    for context in profiles:
        page = await context.new_page()
        await page.goto("/")
        logins.append(await _since_navigation(page, "login"))
        await log_in(page, _USER, PASSWORD)
        session = await context.new_cdp_session(page)
        await session.send("Network.clearBrowserCache")
        await page.goto("/editor")
        editors.append(await _since_navigation(page, "editor"))
        loaded_kib = await page.evaluate(_TRANSFERRED_KIB)
        await page.goto("/editor")
        again.append(await _since_navigation(page, "editor"))
        await context.close()
    return [
        Measured("first view: the form of the login, empty cache", _ms(logins), "<= 1 s"),
        Measured("first view: editor with the tree, empty cache", _ms(editors), "<= 1 s"),
        Measured("the same, files that were loaded", f"{loaded_kib:.0f} KiB"),
        Measured("first view: editor with the tree, cached", _ms(again), "<= 1 s"),
    ]


async def _first_rows(context: BrowserContext, bench: Bench) -> list[Measured]:
    page = await context.new_page()
    await page.goto("/")
    await log_in(page, _USER, PASSWORD)
    await page.get_by_role("combobox", name="Connector").select_option("duckdb")
    quick, slow = list[float](), list[float]()
    for number in range(_ROUNDS):
        quick.append(await _run(page, f"SELECT {4200 + number} AS answer", str(4200 + number)))
    async with calls(bench.server.base_url, _USER, PASSWORD) as client:
        for number in range(_ROUNDS):
            async with page.expect_response("**/editor/execute/**") as submitted:
                await _begin(page, _SECOND.format(number=number))
            ended_at = await _end(client, (await (await submitted.value).json())["history_uuid"])
            slow.append(await _seen(page, str(100_000_000 + number)) - ended_at)
    return [
        Measured("from the key that runs SELECT 1 to its row on the screen", _ms(quick)),
        Measured("from the end event of a statement of 1 s to its row on the screen", _ms(slow), "<= 150 ms"),
    ]


async def _run(page: Page, statement: str, answer: str) -> float:
    """Run a statement; return the milliseconds from the key press to its answer on the screen."""
    began = await _begin(page, statement)
    return await _seen(page, answer) - began


async def _begin(page: Page, statement: str) -> float:
    """Run a statement; return the time of the key press in milliseconds since the epoch."""
    await page.get_by_role("textbox", name="Statement").focus()
    await page.keyboard.press("ControlOrMeta+A")
    await page.keyboard.insert_text(statement)
    began: float = await page.evaluate("performance.timeOrigin + performance.now()")
    await page.keyboard.press("ControlOrMeta+Enter")
    return began


async def _end(client: httpx.AsyncClient, operation_id: str) -> float:
    """Return when a client of the API receives the end of a statement, in milliseconds since the epoch."""
    async with client.stream("GET", f"/api/v1/editor/events/{operation_id}") as events:
        async for line in events.aiter_lines():
            if line == "event: end":
                return time.time() * 1000
    message = "The stream was cut."
    raise AssertionError(message)


async def _scrolling(context: BrowserContext, bench: Bench) -> list[Measured]:
    page = await _result(context, bench, 1_000)
    frames: list[float] = await page.get_by_role("grid", name="Rows").evaluate(_SCROLL)
    tasks: list[float] = await page.evaluate("window.tasks")
    return [
        Measured("scrolling 1,000 rows, 300 px in each frame: longest frame", f"{max(frames):.0f} ms", "<= 50 ms"),
        Measured("the same, tasks longer than 50 ms", str(len(tasks)), "0"),
    ]


async def _jumps(context: BrowserContext, bench: Bench) -> list[Measured]:
    page = await _result(context, bench, 1_000_000)
    grid = page.get_by_role("grid", name="Rows")
    before: int = await page.evaluate("performance.memory.usedJSHeapSize")
    jumps: list[float] = [await grid.evaluate(_JUMP, step * 37 % 60 / 60) for step in range(1, 60)]
    grown: int = (await page.evaluate("performance.memory.usedJSHeapSize")) - before
    return [
        Measured("1,000,000 rows: jump to another place until its rows are shown", _ms(jumps)),
        Measured("the same, growth of the JS heap over 59 jumps", f"{grown / 2**20:.0f} MiB", "< 60 MiB"),
    ]


async def _typing(context: BrowserContext, _bench: Bench) -> list[Measured]:
    """Type while each call for completions takes 2 s."""
    page = await context.new_page()
    await page.goto("/")
    await log_in(page, _USER, PASSWORD)
    await page.get_by_role("combobox", name="Connector").select_option("duckdb")

    async def hold(route: Route) -> None:
        await page.wait_for_timeout(2000)
        await route.continue_()

    await page.route("**/autocomplete/**", hold)
    await page.get_by_role("textbox", name="Statement").focus()
    await page.evaluate("window.tasks.length = window.inputs.length = 0")
    await page.keyboard.type(_TEXT, delay=40)
    await page.wait_for_timeout(300)
    inputs: list[float] = await page.evaluate("window.inputs")
    tasks: list[float] = await page.evaluate("window.tasks")
    await page.unroute_all(behavior="ignoreErrors")
    return [
        Measured(
            f"typing {len(_TEXT)} characters: slowest from key to paint",
            f"{max(inputs, default=16):.0f} ms",
            "<= 50 ms",
        ),
        Measured("the same, tasks longer than 50 ms", str(len(tasks)), "0"),
    ]


async def _result(context: BrowserContext, bench: Bench, rows: int) -> Page:
    async with calls(bench.server.base_url, _USER, PASSWORD) as client:
        operation_id = await run(client, _ROWS.format(count=rows))
    page = await open_result(context, operation_id, _USER, PASSWORD)
    await _seen(page, "row 0")
    await page.wait_for_timeout(500)
    await page.evaluate("window.tasks.length = 0")
    return page


async def _seen(page: Page, text: str) -> float:
    """Wait until a text was painted; return the time in milliseconds since the epoch."""
    await page.wait_for_function("(text) => window.seen.get(text) < Infinity", arg=text, timeout=_WAIT_MS)
    return await page.evaluate("(text) => window.seen.get(text)", text)


async def _since_navigation(page: Page, text: str) -> float:
    return await _seen(page, text) - await page.evaluate("performance.timeOrigin")


def _ms(times: list[float]) -> str:
    return f"{median(times):.0f} ms, at most {max(times):.0f}"
