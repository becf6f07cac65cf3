import { afterEach, beforeEach, expect, test, vi } from "vitest";
import { session } from "../app/session.ts";
import { openTab } from "./openTab.ts";
import { TabStorage } from "./tabStorage.ts";
import { addTab, closed, closeTab, loadTabs, reopenTab, saveNow, selectedTab, selectNext, tabs } from "./tabs.ts";

beforeEach(() => {
  vi.stubGlobal("fetch", async () => Response.json({ status: 0, username: userNameOfTest, app_config: {} }));
  session.begin({ access: "x" });
});

afterEach(() => {
  session.accessToken.value = null;
  localStorage.clear();
  sessionStorage.clear();
});

let userNameOfTest = "ana";

async function logInAgain(name = "ana") {
  session.accessToken.value = null;
  userNameOfTest = name;
  session.begin({ access: "y" });
  await loadTabs();
}

const titles = () => tabs.value.map(({ content }) => content.value.title);

test("the first tab is there without being opened", async () => {
  await loadTabs();
  expect(titles()).toEqual(["Query 1"]);
});

test("tabs survive a reload with text, selection and last operation", async () => {
  await loadTabs();
  const tab = addTab({ text: "SELECT 1", connector: "duckdb", parameters: { n: { text: "1", type: "bigint" } } });
  tab.update({ run: { operationId: "abc", from: 0, source: "SELECT 1" } });
  addTab({ text: "SELECT 2" });
  selectNext(-1);
  saveNow();
  await logInAgain();
  expect(titles()).toEqual(["Query 1", "Query 2", "Query 3"]);
  expect(selectedTab()?.content.value).toEqual(tab.content.value);
});

test("tabs of other users are not shown, and come back with their user", async () => {
  await loadTabs();
  addTab({ title: "Of Ana" });
  await logInAgain("bob");
  expect(titles()).toEqual(["Query 1"]);
  await logInAgain("ana");
  expect(titles()).toContain("Of Ana");
});

test("tabs that another view opens before the stored ones are loaded come after them, and are selected", async () => {
  await loadTabs();
  addTab({ title: "Stored" });
  session.accessToken.value = null;
  session.begin({ access: "z" });
  openTab({ statement: "SELECT 1", title: "Opened" });
  await loadTabs();
  expect(titles()).toEqual(["Query 1", "Stored", "Opened"]);
  expect(selectedTab()?.content.value.title).toBe("Opened");
});

test("a closed tab can be opened again, and the last one is replaced", async () => {
  await loadTabs();
  const tab = addTab({ text: "SELECT 1", title: "Kept" });
  closeTab(tab);
  expect(titles()).toEqual(["Query 1"]);
  reopenTab();
  expect(titles()).toEqual(["Query 1", "Kept"]);
  expect(closed.value).toEqual([]);
  for (const one of tabs.value) closeTab(one);
  expect(tabs.value).toHaveLength(1);
});

test("the same operation or saved query opens no second tab", async () => {
  await loadTabs();
  const tab = openTab({ document: "d-1", statement: "SELECT 1" });
  expect(openTab({ document: "d-1", statement: "SELECT 1" })).toBe(tab);
  const other = openTab({ operationId: "o-1" });
  expect(openTab({ operationId: "o-1" })).toBe(other);
  expect(tabs.value).toHaveLength(3);
});

test("changes of another window arrive, and a tab that it closes goes unless it is shown here", async () => {
  await loadTabs();
  const other = addTab({ title: "Other", text: "old" });
  const shown = addTab({ title: "Shown" });
  saveNow();
  const storage = new TabStorage("ana");
  const keyOf = (id: string) => `queryserver.tab.ana.${id}`;
  storage.save({ id: other.id, order: other.order, savedAt: 1, content: { ...other.content.value, text: "new" } });
  const send = (id: string, newValue: string | null) =>
    dispatchEvent(new StorageEvent("storage", { key: keyOf(id), newValue, storageArea: localStorage }));
  send(other.id, localStorage.getItem(keyOf(other.id)));
  expect(other.content.value.text).toBe("new");
  send(other.id, null);
  send(shown.id, null);
  expect(titles()).toEqual(["Query 1", "Shown"]);
});

test("entries that are no tabs are ignored", async () => {
  localStorage.setItem("queryserver.tab.ana.bad", "{");
  localStorage.setItem("queryserver.tab.ana.worse", '{"content": {"text": 5, "parameters": [], "run": {}}}');
  await loadTabs();
  expect(tabs.value).toHaveLength(1);
  expect(selectedTab()?.content.value).toMatchObject({ text: "", run: null });
});

test("the last changes of a closed tab do not store it again", async () => {
  await loadTabs();
  const tab = addTab({ text: "SELECT 1", title: "Closed" });
  closeTab(tab);
  tab.update({ text: "SELECT 12" });
  saveNow();
  await logInAgain();
  expect(titles()).not.toContain("Closed");
});
