import { Dialog } from "../ui/Dialog.tsx";
import { TokenList } from "./TokenList.tsx";

/** The user's own API tokens, at any address. */
export function TokensDialog({ onClose }: { onClose: () => void }) {
  return (
    <Dialog title="Your API tokens" onClose={onClose} isWide>
      <TokenList owner={{ whose: "own" }} />
    </Dialog>
  );
}
