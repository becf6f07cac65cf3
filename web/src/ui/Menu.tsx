import { ChevronDown } from "lucide-preact";
import type { ComponentChildren, TargetedKeyboardEvent } from "preact";
import { useId, useRef, useState } from "preact/hooks";
import { Button, IconButton } from "./Button.tsx";
import styles from "./Menu.module.css";

export interface MenuItem {
  label: string;
  icon?: ComponentChildren;
  onSelect: () => void;
  isDisabled?: boolean;
  isDanger?: boolean;
}

interface Props {
  label: string;
  items: readonly MenuItem[];
  /** The content of the button. Without `hasLabel` it is an icon, and the label is its name for screen readers. */
  children: ComponentChildren;
  hasLabel?: boolean;
  onToggle?: (isOpen: boolean) => void;
}

const MARGIN_PX = 8;

/** A button that opens a menu in the top layer (popover). Arrow keys, Home and End move; Escape, Tab and a click outside close it. */
export function Menu({ label, items, children, hasLabel = false, onToggle }: Props) {
  const id = useId();
  const menu = useRef<HTMLDivElement>(null);
  const root = useRef<HTMLSpanElement>(null);
  const [isOpen, setOpen] = useState(false);

  const open = (event: Event) => {
    const opens = event instanceof ToggleEvent && event.newState === "open";
    setOpen(opens);
    onToggle?.(opens);
    if (menu.current?.matches(":popover-open") && root.current) {
      place(menu.current, root.current.getBoundingClientRect());
      menu.current.querySelector<HTMLButtonElement>("button:not(:disabled)")?.focus();
    }
  };
  const shared = { popovertarget: id, "aria-haspopup": "menu", "aria-expanded": isOpen, "aria-controls": id } as const;
  return (
    <span ref={root}>
      {hasLabel ? (
        <Button kind="quiet" {...shared} aria-label={label}>
          {children}
          <ChevronDown size={14} aria-hidden />
        </Button>
      ) : (
        <IconButton label={label} {...shared}>
          {children}
        </IconButton>
      )}
      <div
        ref={menu}
        id={id}
        popover="auto"
        class={styles.menu}
        role="menu"
        aria-label={label}
        onToggle={open}
        onKeyDown={move}
      >
        {items.map((item) => (
          <button
            key={item.label}
            type="button"
            role="menuitem"
            class={item.isDanger ? `${styles.item} ${styles.danger}` : styles.item}
            disabled={item.isDisabled ?? false}
            onClick={() => {
              menu.current?.hidePopover();
              item.onSelect();
            }}
          >
            {item.icon}
            {item.label}
          </button>
        ))}
      </div>
    </span>
  );
}

/** Put the menu below the button, or above it where there is more room, inside the window. */
function place(menu: HTMLElement, button: DOMRect): void {
  const { width, height } = menu.getBoundingClientRect();
  const isBelow = button.bottom + height + MARGIN_PX <= innerHeight || button.top < height;
  const left = Math.max(MARGIN_PX, Math.min(button.left, innerWidth - width - MARGIN_PX));
  menu.style.left = `${left}px`;
  menu.style.top = `${isBelow ? button.bottom + 4 : button.top - height - 4}px`;
}

function move(event: TargetedKeyboardEvent<HTMLElement>): void {
  const menu = event.currentTarget;
  if (event.key === "Tab") menu.hidePopover();
  const items = [...menu.querySelectorAll<HTMLButtonElement>("button:not(:disabled)")];
  const now = items.findIndex((item) => item.matches(":focus"));
  const to = { ArrowDown: now + 1, ArrowUp: now - 1, Home: 0, End: items.length - 1 }[event.key];
  if (to === undefined) return;
  event.preventDefault();
  items[(to + items.length) % items.length]?.focus();
}
