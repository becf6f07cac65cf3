"""The keys of the prompt: Enter runs complete input, and Tab completes."""

import asyncio

from prompt_toolkit.application import run_in_terminal
from prompt_toolkit.buffer import Buffer
from prompt_toolkit.completion import CompleteEvent, Completer, Completion, get_common_complete_suffix
from prompt_toolkit.key_binding import KeyBindings, KeyPressEvent

from queryserver_client.cli.failures import say
from queryserver_client.cli.splitting import is_whole, word_command


def key_bindings(completer: Completer, connector: str) -> KeyBindings:
    """Return the keys that differ from those of prompt_toolkit."""
    keys = KeyBindings()

    @keys.add("enter")
    def _(event: KeyPressEvent) -> None:
        buffer = event.current_buffer
        if buffer.complete_state and buffer.complete_state.current_completion:
            buffer.complete_state = None
        elif is_whole(buffer.text, connector):
            buffer.validate_and_handle()
        else:
            if word_command(buffer.document.current_line) is not None:
                run_in_terminal(lambda: say("the statement is not complete; end it with ; or discard it with Ctrl-C"))
            buffer.insert_text("\n")

    @keys.add("tab")
    def _(event: KeyPressEvent) -> None:
        buffer = event.current_buffer
        state = buffer.complete_state
        if state is not None and len(state.completions) > 1:
            buffer.complete_next()
        else:
            event.app.create_background_task(_complete(buffer, completer))

    return keys


async def _complete(buffer: Buffer, completer: Completer) -> None:
    """Insert the only candidate, or what all candidates have in common, and show the candidates.

    prompt_toolkit ignores a Tab while it still looks for the candidates of the previous key, and only selects a single
    candidate, so that the next Enter would not run the statement.
    """
    document = buffer.document
    event = CompleteEvent(completion_requested=True)
    found: list[Completion] = await asyncio.to_thread(lambda: list(completer.get_completions(document, event)))
    if buffer.document != document or not found:
        return
    if len(found) == 1:
        buffer.cancel_completion()
        buffer.apply_completion(found[0])
        return
    if common := get_common_complete_suffix(document, found):
        buffer.cancel_completion()
        buffer.insert_text(common)
    buffer.start_completion(complete_event=event)
