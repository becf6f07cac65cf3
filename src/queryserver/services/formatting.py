"""Scripts laid out for people (Contract editor 8.4). No engine is called."""

import asyncio
from concurrent.futures import Executor

from queryserver.domain.errors import MissingParameter, PayloadTooLarge
from queryserver.formats.sql import formatted


async def format_script(script: str | None, dialect: str | None, *, max_bytes: int, threads: Executor) -> str:
    """The script formatted, or as it came where that cannot be done for sure; by the rules of `dialect` if given.

    Raises MissingParameter, PayloadTooLarge.
    """
    if script is None:
        raise MissingParameter("statements is required and must not be blank.")
    if len(script) > max_bytes or len(script.encode(errors="surrogatepass")) > max_bytes:
        raise PayloadTooLarge(f"statements: above the limit of {max_bytes} bytes.")
    return await asyncio.get_running_loop().run_in_executor(threads, formatted, script, dialect)
