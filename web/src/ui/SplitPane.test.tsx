import { fireEvent, render, screen } from "@testing-library/preact";
import { afterEach, expect, test, vi } from "vitest";
import { SplitPane } from "./SplitPane.tsx";

afterEach(() => localStorage.clear());

function show() {
  const shown = { name: "test", label: "Size", direction: "row", sized: "first", initial: 200 } as const;
  vi.spyOn(HTMLElement.prototype, "clientWidth", "get").mockReturnValue(600);
  render(<SplitPane {...shown} first={<p>one</p>} last={<p>two</p>} />);
  return screen.getByRole("separator", { name: "Size" });
}

test("arrow keys move the divider, within the smallest sizes, and the size is stored", () => {
  const divider = show();
  fireEvent.keyDown(divider, { key: "Home" });
  expect(localStorage.getItem("queryserver.layout.test")).toBe("120");
  fireEvent.keyDown(divider, { key: "End" });
  expect(localStorage.getItem("queryserver.layout.test")).toBe("480");
});

test("a double click restores the initial size", () => {
  const divider = show();
  fireEvent.keyDown(divider, { key: "End" });
  fireEvent.dblClick(divider);
  expect(localStorage.getItem("queryserver.layout.test")).toBeNull();
});
