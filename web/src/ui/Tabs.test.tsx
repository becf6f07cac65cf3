import { fireEvent, render, screen } from "@testing-library/preact";
import { expect, test, vi } from "vitest";
import { Tabs } from "./Tabs.tsx";

test("arrow keys select the next tab and wrap around", () => {
  const onSelect = vi.fn();
  const tabs = [
    { key: "rows", label: "Rows" },
    { key: "log", label: "Log" },
  ] as const;
  render(<Tabs label="Result" tabs={tabs} selected="log" onSelect={onSelect} />);
  fireEvent.keyDown(screen.getByRole("tab", { name: "Log" }), { key: "ArrowRight" });
  expect(onSelect).toHaveBeenCalledWith("rows");
  expect(screen.getByRole("tab", { name: "Rows" })).toBe(document.activeElement);
});
